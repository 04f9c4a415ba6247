"""Plain text, subtitles and gettext's .po files: what of their lines is translated."""

import gettext
import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import polib

from jaxformer.decoding.placeholders import Placeholders
from jaxformer.documents.tokens import Part, Parts, Token, html_tokens
from jaxformer.system.errors import InputError

_WIDE = 50  # least characters of the longest line of a paragraph that was broken
# The beginning of a line that is no text: white space, marks of quotations and lists.
_LEADER = re.compile(r"\s*(?:(?:[-*+>#|\u2022]{1,9}|\d{1,3}[.)])[ \t]+)*")
_SPEAKER = re.compile(r"(?:<[^<>\n]*>|\{[^{}\n]*\})*[-\u2013]\s*")
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_END = re.compile(r"((?:\r\n?|\n)[ \t]*)")
# Of a .po file: a comment, or a string, in the first line of a field behind its name.
_PO_LINE = re.compile(
    r"(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s*)?"
    r'(?:"(?:[^"\\]|\\[\\ntrvbf"])*")?)\s*'
)
_TIME = re.compile(r"(<[\d:.]+>)")
_CHARSET = re.compile(r"charset=[^\s;]*")

_Tokens = Callable[[str], list[Token]]
_tagged = partial(html_tokens, is_escaped=False)


def _plain(text: str) -> list[Token]:
    return [Token("text", text, text)]


def _split(tokens: Sequence[Token], ends: re.Pattern[str], kind: str) -> list[Token]:
    """Split text tokens at `ends`, a group, whose matches become tokens of a kind."""
    found = []
    for token in tokens:
        if token.kind != "text":
            found.append(token)
            continue
        # `raw` is split, since a time in `text` may stand as &lt;10:30&gt;.
        text_of = str if token.text == token.raw else html.unescape
        for at, raw in enumerate(ends.split(token.raw)):
            is_end = at % 2 == 1
            token = Token(kind, raw) if is_end else Token("text", raw, text_of(raw))
            found.append(token)
    return found


def _timed(text: str) -> list[Token]:
    """Read the text of a cue of WebVTT, whose tags may be times."""
    return _split(html_tokens(text), _TIME, "other")


def _line(line: str, tokens_of: _Tokens, leader: re.Pattern[str]) -> list[Part]:
    """Divide a line, or several that are one text, into its beginning, text and end.

    Line ends within the text become tokens, which move with the translation.
    """
    begin = match.end() if (match := leader.match(line)) else 0
    end = max(begin, len(line.rstrip()))
    tokens = _split(tokens_of(line[begin:end]), _END, "break")
    return [line[:begin], tokens, line[end:]]


def _paragraphs(text: str, tokens_of: _Tokens) -> Iterator[Part]:
    """Divide a text into lines, and into paragraphs that were broken at a width.

    A line was broken if the first word of the next one had no room in it. The lines of
    a paragraph begin below the text of its first line.
    """
    lines = _LINE.findall(text)
    leaders = [_LEADER.match(line)[0] for line in lines]
    begin = 0
    while begin < len(lines):
        end, column = begin + 1, len(leaders[begin])
        while end < len(lines) and lines[begin].strip() and lines[end].strip():
            if leaders[end].strip() or len(leaders[end]) != column:
                break
            end += 1
        group = lines[begin:end]
        width = max(len(line.rstrip()) for line in group)
        is_broken = width >= _WIDE and all(
            len(line.rstrip()) + 1 + len(after.split()[0]) > width
            for line, after in itertools.pairwise(group)
        )
        for line in ["".join(group)] if is_broken else group:
            yield from _line(line, tokens_of, _LEADER)
        begin = end


def read_txt(text: str) -> Parts:
    """Read plain text: each line or broken paragraph is translated by itself."""
    return Parts([*_paragraphs(text, _plain)])


def _cues(text: str, tokens_of: _Tokens) -> Iterator[Part]:
    """Divide subtitles: a cue is one text, of a dialogue one for each dash."""
    cue: list[str] = []  # its texts
    is_cue = False
    for line, after in itertools.pairwise([*_LINE.findall(text), "", ""]):
        # In SubRip's files text may follow a blank line, and a number may follow text.
        is_number = line.strip().isdecimal() and (not is_cue or "-->" in after)
        is_text = is_cue or tokens_of is _tagged
        if is_text and not is_number and line.strip() and "-->" not in line:
            is_dialogue = cue and _SPEAKER.match(line) and _SPEAKER.match(cue[0])
            cue.append(line if is_dialogue or not cue else cue.pop() + line)
            continue
        for each in cue:
            yield from _line(each, tokens_of, _SPEAKER)
        cue, is_cue = [], "-->" in line or (is_cue and bool(line.strip()))
        yield line


def read_srt(text: str) -> Parts:
    """Read SubRip's subtitles. Raises InputError if there are none."""
    if "-->" not in text:
        raise InputError("no line has times, such as 00:00:01,000 --> 00:00:02,000")
    return Parts([*_cues(text, _tagged)])


def read_vtt(text: str) -> Parts:
    """Read WebVTT. Raises InputError for another format."""
    if not text.startswith("WEBVTT"):
        raise InputError("line 1 is not WEBVTT; give a file of WebVTT")
    return Parts([*_cues(text, _timed)], partial(html.escape, quote=False))


def _values(text: str) -> list[str]:
    shown = [shown for _, _, shown in Placeholders().find(text)]
    return sorted(shown + re.findall(r"\d+", text))


def _plural_forms(header: str) -> list[set[int]]:
    """Return the numbers that use each plural form, of those that tell all apart.

    A template's header, and none, declare none. Raises InputError.
    """
    found = re.search(r"nplurals\s*=\s*([1-9])\s*;\s*plural\s*=([^;]+)", header)
    forms: list[set[int]] = [set() for _ in range(int(found[1]) if found else 0)]
    try:
        form_of = gettext.c2py(found[2].strip()) if found else None
        for number in (*range(200), 1_000_000) if found else ():
            if not 0 <= (form := form_of(number)) < len(forms):
                raise ValueError(f"{number} has form {form}")
            forms[form].add(number)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InputError(f"Plural-Forms is {header!r} ({error}); correct it") from None
    return forms


def read_po(text: str) -> Parts:
    """Read a .po file: entries without a translation get one; the others stay.

    A plural form that only the number 1 uses is translated from the singular. So are
    others that 1 uses, as Russian's form of 1 and 21, if the singular has the
    placeholders and the numbers of the plural.
    Raises InputError if it cannot be read, or if polib would change a line.
    """
    for number, line in enumerate(_LINE.findall(text), start=1):
        if not _PO_LINE.fullmatch(line.strip()):
            raise InputError(
                f"line {number} is no line of a .po file: {line.strip()[:60]!r}; "
                "correct it"
            )
    try:
        file = polib.pofile(f"{text}\n")  # without a line end it may be a path
    except (OSError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"this is no .po file ({error}); correct it") from None
    parts: list[Part] = []
    takes: list[tuple[dict | polib.POEntry, object, int]] = []

    def add(source: str, forms: dict, form: object) -> None:
        own = [*_paragraphs(source, _tagged)]
        parts.extend(own)
        takes.append((forms, form, len(own)))

    entries = [
        entry
        for entry in file
        if not (entry.obsolete or entry.msgstr or any(entry.msgstr_plural.values()))
    ]
    has_plurals = any(entry.msgid_plural for entry in entries)
    header = file.metadata.get("Plural-Forms", "") if has_plurals else ""
    declared = _plural_forms(header)
    for entry in entries:
        one, other, plurals = entry.msgid, entry.msgid_plural, entry.msgstr_plural
        if not other:
            add(one, vars(entry), "msgstr")
            continue
        forms = declared or [{1}, *[set()] * max(1, len(plurals) - 1)]
        plurals.clear()
        for form, uses in enumerate(forms):
            is_one = uses == {1} or (1 in uses and _values(one) == _values(other))
            add(one if is_one else other, plurals, form)

    def join(written: Sequence[str]) -> str:
        if content_type := file.metadata.get("Content-Type"):
            file.metadata["Content-Type"] = _CHARSET.sub("charset=UTF-8", content_type)
        rest = iter(written)
        for forms, form, count in takes:
            forms[form] = "".join(itertools.islice(rest, count))
        lines = f"{file}".rstrip("\n") + "\n"
        lines = lines.removeprefix("" if text.startswith("#") else "#\n")
        return lines.replace("\n", "\r\n") if "\r\n" in text else lines

    return Parts(parts, join=join if takes else lambda written: text)
