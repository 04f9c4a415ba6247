"""A piece of text without its tags, which are put back into the translation."""

import html
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxformer.decoding.placeholders import Placeholders
from jaxformer.documents.halves import (
    Half,
    half_of,
    native_half_of,
    pairs_of,
    values_of,
)
from jaxformer.documents.links import (
    Alignment,
    is_one_word,
    is_spaced,
    nearest_pairs,
)
from jaxformer.documents.tokens import Token

_SPACES = " \t\n\r\f"  # a no-break space is a character of the text
_REST = re.compile(r"\w{0,64}")  # of a word
_CLOSING, _OPENING = tuple(",.;:!?)]}\u2026"), tuple("([{")  # a space follows, precedes
_LONGEST_SHOWN = 40  # characters of code, or a placeholder, translated as it stands


@dataclass(eq=False)
class _Node:
    """An element ("pair"), or what has no content, such as a placeholder."""

    kind: str  # that of its token, or "pair"
    open: str  # written before its content
    begin: int  # of the text without tags
    end: int
    shown: str = ""  # of a placeholder: what is translated in its place
    close: str = ""  # written behind its content
    children: list["_Node"] = field(default_factory=list)
    place: tuple[int, int] = (0, 0)  # in the translation
    is_found: bool = False  # a placeholder at that place, or an element with one
    half: Half | None = None


class Segment:
    """A text that is translated as a whole, and the tags that were in it.

    `text` is what is translated, "" if there is nothing. Each run of white space in it
    becomes a space; both ends keep theirs. `escape` writes text in the document.
    """

    def __init__(
        self,
        tokens: Sequence[Token],
        placeholders: Placeholders,
        escape: Callable[[str], str] = str,
    ) -> None:
        self._placeholders, self._escape = placeholders, escape
        self._root = _Node("pair", "", 0, 0)
        self._nodes = [self._root]  # parents before children
        self._stack = [self._root]  # that are open
        self._written: list[str] = []
        self._length = 0
        seen = [at for at, each in enumerate(tokens) if each.text.strip()]
        first, last = (seen[0], seen[-1]) if seen else (0, -1)
        has_letters = False
        for at, token in enumerate(tokens):
            if token.kind == "open":
                self._stack.append(self._add("open", token.raw))
            elif token.kind == "close" and len(self._stack) > 1:
                node = self._stack.pop()
                node.kind, node.close, node.end = "pair", token.raw, self._length
            elif token.kind == "text" and first <= at <= last:
                text = token.text
                begin = len(text) - len(text.lstrip()) if at == first else 0
                end = len(text.rstrip()) if at == last else len(text)
                self._add("other", text[:begin])
                has_letters |= self._add_text(text[begin:end], token.raw)
                self._add("other", text[end:])
            elif token.kind == "other":
                shown = placeholders.symbol or _if_short(token.text.strip(_SPACES))
                node = self._add("other", token.raw, token.text.strip() and shown)
                node.half = native_half_of(token.raw)
            else:
                self._add(token.kind, token.raw)
                self._write(" " if token.kind == "break" else "")
        while len(self._stack) > 1:  # each is the last child of the one before it
            node = self._stack.pop()
            self._stack[-1].children += node.children
            node.children = []
        self._root.end = self._length
        text = "".join(self._written)
        self.text = text if has_letters else ""
        self._inner = len(text) - len(text.lstrip()), len(text.rstrip())

    @property
    def has_inside(self) -> bool:
        """Whether a tag or a placeholder is inside the text, not only around it."""
        edges = {edge for node in self._nodes for edge in (node.begin, node.end)}
        return bool(edges - {0, self._length})

    def _add(self, kind: str, raw: str, shown: str = "") -> _Node:
        """Add a tag or a placeholder to the innermost element."""
        begin = self._length
        self._written += [shown] if shown else []
        self._length += len(shown)
        node = _Node(kind, raw, begin, self._length, shown)
        self._stack[-1].children.append(node)
        self._nodes.append(node)
        return node

    def _add_text(self, text: str, raw: str) -> bool:
        """Add text with its placeholders; return whether it has letters besides.

        A placeholder that stands so in `raw`, such as {% if a > b %}, is not escaped.
        """
        at, has_letters = 0, False
        found = [*self._placeholders.find(text)]
        counts = Counter(text[begin:end] for begin, end, _ in found)
        forms: dict[str, list[str]] = {}
        for begin, end, _ in self._placeholders.find(raw) if raw != text else ():
            own = raw[begin:end]
            forms.setdefault(html.unescape(own), []).append(own)
        # Without those of which some are another placeholder in `raw`.
        same = {
            own: iter(forms[own]) for own in forms if len(forms[own]) == counts[own]
        }
        for begin, end, shown in found:
            has_letters |= self._write(text[at:begin])
            if shown not in self._placeholders.symbols:
                shown = _if_short(shown)
            own = text[begin:end]
            is_raw = raw == text or (own in same and next(same[own]) == own)
            node = self._add("other", own if is_raw else self._escape(own), shown)
            node.half = half_of(own)
            at = end
        return self._write(text[at:]) or has_letters

    def _write(self, text: str) -> bool:
        text = re.sub(f"[{_SPACES}]+", " ", text)
        if text[:1] == " " and (not self._written or self._written[-1][-1] == " "):
            text, last = text[1:], self._nodes[-1]
            if last.begin == last.end == self._length:  # with spaces on both sides
                last.open += " "
        self._written += [text] if text else []
        self._length += len(text)
        return any(map(str.isalpha, text))

    def write(self, target: str, alignment: Alignment) -> tuple[str, list[str]]:
        """Return the translation with all tags and placeholders, each once.

        Also returns the placeholders that the translation has in excess.
        """
        keep = bytearray(b"\1") * len(target)  # 0: a placeholder stands in its place
        self._find_shown(target, alignment, keep)
        for node in reversed(self._nodes):
            if not node.is_found:
                node.place = self._place(node, target, alignment)
            if found := [each.place for each in node.children if each.is_found]:
                begins, ends = zip(node.place, *found, strict=True)
                node.place, node.is_found = (min(begins), max(ends)), True
            _put_in_order(node.children)
        least = 0
        for node in self._root.children:
            if node.kind in ("open", "close"):  # of elements that others share
                least = max(least, node.place[0])
                node.place = (least, least)
        left = "".join(itertools.compress(target, keep))
        others = [left[begin:end] for begin, end, _ in self._placeholders.find(left)]
        return self._joined(target, keep), others

    def _find_shown(self, target: str, alignment: Alignment, keep: bytearray) -> None:
        """Find what stands for placeholders, in any case and with or without spaces."""
        groups: dict[str, list[_Node]] = {}
        for node in self._nodes:
            if node.shown:
                groups.setdefault(node.shown, []).append(node)
        padded, source = f" {target} ", f" {self.text} "
        # The longest first, and of one length first as they stand: {n} and {N} are two.
        offsets = [at for at, each in enumerate(target) if not each.isspace()]
        ways = (str, target, range(len(target))), (_folded, _folded(target), offsets)
        tries = sorted(itertools.product(ways, groups), key=lambda each: -len(each[1]))
        for (fold, written, places), shown in tries:
            nodes = [each for each in groups[shown] if not each.is_found]
            is_symbol = shown in self._placeholders.symbols
            if not (nodes or is_symbol):
                continue
            # It may be within a word if it is in the source, as %(n)s in %(n)sMB.
            before = any(_is_inside(source, node.begin) for node in groups[shown])
            behind = any(_is_inside(source, node.end) for node in groups[shown])
            own = fold(shown)
            found, at = [], written.find(own)
            while at >= 0:
                begin, end = places[at], places[at + len(own) - 1] + 1
                is_whole = (before or not _is_inside(padded, begin)) and (
                    behind or not _is_inside(padded, end)
                )
                if is_whole and keep.find(0, begin, end) < 0:
                    found.append((begin, end))
                at = written.find(own, at + (len(own) if is_whole else 1))
            linked = [alignment.source_of(begin) for begin, _ in found]
            middles = [(each.begin + each.end) / 2 for each in nodes]
            for node, at in nearest_pairs(middles, linked):
                nodes[node].place, nodes[node].is_found = found[at], True
                begin, end = found[at]
                keep[begin:end] = bytes(end - begin)
            # Surplus symbols go; other surplus placeholders may be text.
            for begin, end in found if is_symbol else ():
                if keep[begin]:
                    before, behind = target[:begin][-1:], target[end : end + 2]
                    begin -= before == " " and _is_closing(behind)
                    end += not before and behind[:1] == " "
                    keep[begin:end] = bytes(end - begin)

    def _place(self, node: _Node, target: str, alignment: Alignment) -> tuple[int, int]:
        """Find where in the translation the content of an element or a tag belongs."""
        (first, last), text, size = self._inner, self.text, len(target)
        if node.begin <= first or node.begin >= last:
            if node.end >= last:
                return (0 if node.begin <= first else size), size
            if node.end <= first:
                return 0, 0
        if node.kind == "break":  # as far in the translation as in the text
            at = node.begin * size // len(text)
            spaces = target.find(" ", at), target.rfind(" ", 0, at)
            at = min(spaces, key=lambda each: abs(each - at) if each >= 0 else size)
            return (at, at) if at >= 0 else (size, size)
        span = node.begin, node.end
        if run := alignment.run(*span):
            inside = text[slice(*span)].strip()
            (begin, *_), (_, end, _) = run[0], run[-1]
            begin -= _marks(inside, target[max(0, begin - 8) : begin][::-1])
            return begin, end + _marks(inside[::-1], target[end : end + 8])
        offset = node.begin
        if offset and is_one_word(text[offset - 1 : offset + 1]):
            # Inside a word: from its end, `near` returns the word as `before`.
            offset = _REST.match(text, offset).end()
        before, behind = alignment.near(offset)
        if behind and (text[node.begin - 1].isspace() or not before):
            at = behind.begin
            at -= _marks(text[span[0] : span[0] + 8], target[max(0, at - 8) : at][::-1])
            return at, at
        at = before.end if before else 0
        at += _marks(text[max(0, span[0] - 8) : span[0]][::-1], target[at : at + 8])
        return at, at

    def _joined(self, target: str, keep: bytearray) -> str:
        out, at, is_line = [], 0, False
        line_ends: list[int] = []  # indices in `out`
        source = f" {self.text} "  # so that offsets are one larger
        last, last_node = "", None  # what is written; if it is a placeholder

        def separate(written: str, node: _Node | None) -> None:
            nonlocal last, last_node
            behind = source[last_node.end + 1] if last_node else ""
            before = source[node.begin] if node else ""
            is_lost = any(each and not each.is_found for each in (last_node, node))
            meet = last[-1:], written[:1]
            is_apart = all(meet) and _is_apart(*meet, behind, before, is_lost=is_lost)
            out.append(" " if is_apart else "")
            last, last_node = written, node

        def write(end: int) -> None:
            nonlocal at, is_line
            text = "".join(itertools.compress(target[at:end], keep[at:end]))
            text = text.lstrip(_SPACES) if is_line else text
            is_line = is_line and not text
            if text:
                separate(text, None)
            out.append(self._escape(text))
            at = max(at, end)

        root = self._root
        stack = [(root, len(target), _placed(root, (0, len(target))))]
        while stack:
            node, end, children = stack[-1]
            if (found := next(children, None)) is None:
                write(end)
                out.append(node.close)
                stack.pop()
                continue
            child, place = found
            write(place[0])
            if child.kind == "break":
                out[-1] = out[-1].rstrip(_SPACES)
                is_line, last, last_node = True, "", None
                line_ends.append(len(out))
            if child.shown:
                separate(child.open, child)
            out.append(child.open)
            if child.kind == "pair":
                stack.append((child, place[1], _placed(child, place)))
        return _without_empty_lines(out, line_ends)


def _without_empty_lines(out: list[str], line_ends: Sequence[int]) -> str:
    """Join strings, without the line ends at which a subtitle would end too early."""
    begin = 0
    for at in line_ends:
        if "".join(out[begin:at]).strip():
            begin = at + 1
        else:
            out[at] = ""
    if begin and not "".join(out[begin:]).strip():
        out[begin - 1] = ""
    return "".join(out)


def _folded(text: str) -> str:
    """Return a text in lower case, without spaces; the others keep one character."""
    return "".join(each.lower()[0] for each in text if not each.isspace())


def _put_in_order(nodes: Sequence[_Node]) -> None:
    """Sort the places of halves and of tags without text by their order in the source.

    A translation may exchange whole pairs of halves, if it has all.
    """
    own = [
        each
        for each in nodes
        if each.half or (each.begin == each.end and each.kind in ("other", "pair"))
        if each.open.strip()
    ]
    values = values_of(each.half for each in own)
    own = [each for each in own if not (each.is_found and each.half in values)]
    pairs = pairs_of([each.half for each in own])
    is_whole = {*itertools.chain(*pairs)} == {*range(len(own))}
    if is_whole and all(each.is_found for each in own):
        order = sorted(range(len(own)), key=lambda at: own[at].place)
        written = pairs_of([own[at].half for at in order])
        if pairs == {(order[begin], order[end]) for begin, end in written}:
            return
    places = sorted((each.place, each.is_found) for each in own)
    for node, place in zip(own, places, strict=True):
        node.place, node.is_found = place


def _if_short(text: str) -> str:
    """Return code or a placeholder that can be translated as it stands, else ""."""
    is_short = len(text) <= _LONGEST_SHOWN and "\n" not in text
    return text if is_short and not text.isspace() else ""


def _is_inside(padded: str, at: int) -> bool:
    """Whether an offset of a text with a space at both ends is inside a word."""
    return is_one_word(padded[at : at + 2])


def _is_apart(
    last: str, first: str, behind: str, before: str, *, is_lost: bool
) -> bool:
    """Whether a space is missing between two pieces, of which one is a placeholder.

    `last` and `first` are the characters that meet. `behind` follows the first piece in
    the source, if it is a placeholder, and `before` precedes the second one; else "".
    `is_lost`: the translation lacked it, and has no space for it.
    """
    gaps = behind + before
    if not is_lost:
        return is_one_word(last + first) and not any(map(str.isalnum, gaps))
    if behind and before:
        return any(map(str.isspace, gaps))
    other, marks = (last, _CLOSING) if before else (first, _OPENING)
    is_mark = gaps.isspace() and other in marks
    return bool(gaps) and (is_mark or (is_spaced(other) and not gaps.isalnum()))


def _is_closing(text: str) -> bool:
    """Whether a text is empty, or begins with a space or a mark that ends a word."""
    kind = unicodedata.category(text[0]) if text else "Zs"
    return kind[0] == "Z" or (kind in ("Pe", "Pf", "Po") and not text[1:].isalnum())


def _marks(text: str, target: str) -> int:
    """Count the punctuation at the beginning of both texts."""
    pairs = itertools.takewhile(
        lambda pair: not any(each.isalnum() or each.isspace() for each in pair),
        zip(text, target, strict=False),
    )
    return sum(1 for _ in pairs)


def _placed(
    node: _Node, place: tuple[int, int]
) -> Iterator[tuple[_Node, tuple[int, int]]]:
    """Yield the children of a node in their order, side by side in its place."""
    at, last = place
    for child in sorted(node.children, key=lambda child: child.place[0]):
        begin = min(max(child.place[0], at), last)
        at = min(max(child.place[1], begin), last)
        yield child, (begin, at)
