"""HTML and XML as tokens, which together are the text that was read."""

import codecs
import collections
import contextlib
import html
import itertools
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from typing import NamedTuple
from xml.parsers import expat

from jaxformer.system.errors import InputError

# Elements without an end.
_VOID = "area base br col embed hr img input link meta param source track wbr"
# Elements that end a paragraph.
_BLOCKS = (
    "address article aside blockquote center details dialog dir div dl fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr main menu nav ol "
    "p pre search section summary table ul"
)
# The open elements that a start tag ends, where HTML lets their end tags be left out.
_ENDED = {
    **dict.fromkeys(_BLOCKS.split(), ("p",)),
    "li": ("li", "p"),
    **dict.fromkeys(("dd", "dt"), ("dd", "dt", "p")),
    "option": ("option",),
    "optgroup": ("option", "optgroup"),
    **dict.fromkeys(("td", "th"), ("td", "th", "p")),
    **dict.fromkeys(("colgroup", "thead"), ("caption", "colgroup", "p")),
    "tr": ("tr", "td", "th", "caption", "colgroup", "p"),
    **dict.fromkeys(
        ("tbody", "tfoot"),
        ("thead", "tbody", "tr", "td", "th", "caption", "colgroup", "p"),
    ),
}
_ENDABLE = {"html", "body"}.union(*_ENDED.values())


class Token(NamedTuple):
    """A part of a document: `raw` as it stands, and `text` that a reader sees.

    The kinds are "text"; "open" and "close", always in pairs; "break", a line end that
    may move; and "other", such as a comment. The "close" of an element that is one tag
    has no characters.
    """

    kind: str
    raw: str
    text: str = ""
    name: str = ""
    attributes: Mapping[str, str | None] = {}


Part = str | list[Token]  # of a document: it stays as it is, or is one text


class Parts(NamedTuple):
    """The parts of a document; `escape` writes text, and `join` the document."""

    parts: Sequence[Part]
    escape: Callable[[str], str] = str
    join: Callable[[Sequence[str]], str] = "".join


class _HTMLTokens(HTMLParser):
    """Finds tokens of HTML, without their raw text, and where each begins.

    Its text has no "&": Python's parser stops at "&#" that begins no number.
    `close` is never called: it would read an unfinished tag or comment at the end as
    text, one "<" after the other, in quadratic time.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._void = _VOID.split()
        self.found: list[tuple[int, Token]] = []
        lengths = (len(line) + 1 for line in text.split("\n"))
        self._lines = [0, *itertools.accumulate(lengths)]

    def _add(self, kind: str, after: int = 0, **fields: object) -> None:
        line, column = self.getpos()
        token = Token(kind, "", **fields)
        self.found.append((self._lines[line - 1] + column + after, token))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("open", name=tag, attributes=dict(attrs))
        if tag in self._void:
            self._add("close", len(self.get_starttag_text()), name=tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self._void:
            self._add("close", len(self.get_starttag_text()), name=tag)

    def handle_endtag(self, tag: str) -> None:
        self._add("close", name=tag)

    def handle_data(self, data: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("other")

    handle_decl = handle_pi = unknown_decl = handle_comment


def html_tokens(text: str, *, is_escaped: bool = True) -> list[Token]:
    """Read HTML; without `is_escaped`, text with tags whose "&" is a plain character.

    An unfinished tag or comment at the end of HTML stays as it is. Raises InputError
    for marked sections that Python's parser does not read.
    """
    parser = _HTMLTokens(text)
    try:
        parser.feed(text.replace("&", "_"))
    except AssertionError:
        if not is_escaped:
            return [Token("text", text, text)]
        raise InputError(
            f"line {parser.getpos()[0]} has '<![', which begins no section of HTML; "
            "write &lt;![ or remove it"
        ) from None
    rest = len(text) - len(parser.rawdata)
    parser.found.append((rest, Token("other" if is_escaped else "text", "")))
    unescape = html.unescape if is_escaped else str
    tokens = [
        each._replace(text=unescape(each.raw)) if each.kind == "text" else each
        for each in _with_raw(parser.found, text)
    ]
    return _closed(tokens)


def _closed(tokens: Sequence[Token]) -> list[Token]:
    """Add end tags that HTML makes optional; a tag without its other is "other"."""
    found: list[Token] = []
    opened: list[int] = []
    counts = collections.Counter[str]()  # of opened tags, by name

    def end() -> None:
        at = opened.pop()
        counts[found[at].name] -= 1
        if found[at].name in _ENDABLE:
            found.append(Token("close", "", name=found[at].name))
        else:
            found[at] = found[at]._replace(kind="other")

    for token in tokens:
        if token.kind == "open":
            while opened and found[opened[-1]].name in _ENDED.get(token.name, ()):
                end()
            opened.append(len(found))
            counts[token.name] += 1
        elif token.kind == "close" and counts[token.name]:
            while found[opened[-1]].name != token.name:
                end()
            opened.pop()
            counts[token.name] -= 1
        elif token.kind == "close":
            token = token._replace(kind="other")
        found.append(token)
    while opened:
        end()
    return found


def require_utf8(encoding: str) -> None:
    """Raise InputError for a document that declares another encoding."""
    with contextlib.suppress(LookupError):
        if codecs.lookup(encoding).name == "utf-8":
            return
    raise InputError(f"the document declares the encoding {encoding!r}; make it UTF-8")


def xml_tokens(text: str) -> list[Token]:
    """Read XML; entities of the document's own and CDATA sections stay as they are.

    Raises InputError, with line and column, if it is not well-formed, and for a
    declared encoding that is not UTF-8.
    """
    found: list[tuple[int, Token]] = []
    parser, is_cdata = expat.ParserCreate("utf-8"), False

    def add(kind: str, text: str = "", **fields: object) -> None:
        kind = "other" if is_cdata else kind
        found.append((parser.CurrentByteIndex, Token(kind, "", text, **fields)))

    def add_other(raw: str) -> None:
        nonlocal is_cdata
        is_cdata = raw == "<![CDATA[" or (is_cdata and raw != "]]>")
        add("other", raw if raw.startswith("&") else "")

    def declare(version: str, encoding: str | None, alone: int) -> None:
        require_utf8(encoding or "utf-8")
        add("other")

    parser.StartElementHandler = lambda name, own: add(
        "open", "", name=name, attributes=own
    )
    parser.EndElementHandler = lambda name: add("close", name=name)
    parser.CharacterDataHandler = lambda text: add("text", "" if is_cdata else text)
    parser.XmlDeclHandler, parser.DefaultHandler = declare, add_other
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise InputError(
            f"line {error.lineno}, column {error.offset + 1}: this is no well-formed "
            f"XML ({expat.ErrorString(error.code)}); correct it"
        ) from None
    return _with_raw(found, text.encode())


def _with_raw(found: Sequence[tuple[int, Token]], text: str | bytes) -> list[Token]:
    """Give tokens their raw text, up to the next offset; join neighbours of text."""
    tokens: list[Token] = []
    offsets = [*(offset for offset, _ in found), len(text)]
    for (_, token), span in zip(found, itertools.pairwise(offsets), strict=True):
        raw = text[slice(*span)]
        raw = raw if isinstance(raw, str) else raw.decode()
        if tokens and token.kind == tokens[-1].kind == "text":
            last = tokens.pop()
            raw, token = last.raw + raw, token._replace(text=last.text + token.text)
        tokens.append(token._replace(raw=raw))
    return tokens
