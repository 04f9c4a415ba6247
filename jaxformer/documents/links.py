"""Links from the words of a translation to offsets in its source."""

import bisect
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

# A word, one character of a script that puts no spaces between words, or punctuation
# between spaces.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\U0003ffff"
_WORD = re.compile(rf"[^\W{_NO_SPACES}]+|\w|(?<!\S)[^\w\s]+(?!\S)")
# Links that are read for all spans of a text; a paragraph with tags needs thousands.
_MOST_READ = 100_000
_WINDOW = 16  # characters in which a piece is sought; more for each piece not found


def is_one_word(text: str) -> bool:
    """Whether a text is one word, of letters and digits without spaces."""
    return text.isalnum() and _WORD.fullmatch(text) is not None


def is_spaced(text: str) -> bool:
    """Whether a character belongs to a word, of a script with spaces between words."""
    return text.isalnum() and re.match(f"[{_NO_SPACES}]", text) is None


class Word(NamedTuple):
    """A word of a translation, and the offset in the source that it is linked to."""

    begin: int
    end: int
    source: float


class Alignment:
    """The words of a translation that have a link.

    `links` are indices of the `pieces` of both texts. Without links a word is linked
    to the place at the same relative position of the source.
    """

    def __init__(
        self,
        source: str,
        target: str,
        pieces: tuple[Sequence[str], Sequence[str]] = ((), ()),
        links: Sequence[tuple[int, int]] = (),
    ) -> None:
        words = [match.span() for match in _WORD.finditer(target)]
        if links:
            ours, theirs = _spans(pieces[1], target), _spans(pieces[0], source)
            spans = ((ours[t], theirs[s]) for s, t in links)
            known = sorted(
                (own, sum(other) / 2) for own, other in spans if own and other
            )
        else:
            scale = len(source) / max(1, len(target))
            known = [(span, sum(span) / 2 * scale) for span in words]
        self._words: list[Word] = []
        self._unread = _MOST_READ
        at = 0
        for begin, end in words:
            while at < len(known) and known[at][0][1] <= begin:
                at += 1
            if at < len(known) and known[at][0][0] < end:
                self._words.append(Word(begin, end, known[at][1]))
        order = sorted(range(len(self._words)), key=lambda at: self._words[at].source)
        self._order, self._sources = order, [self._words[at].source for at in order]

    def source_of(self, offset: int) -> float:
        """Return the link of the word at or behind an offset of the translation."""
        at = bisect.bisect_left(self._words, (offset,))
        return self._words[at].source if at < len(self._words) else math.inf

    def run(self, begin: int, end: int) -> Sequence[Word]:
        """Return the words linked to a span of the source that stand together.

        The run has the highest score: the number of its words that are linked to the
        span, less the number of its other words. Once _MOST_READ links were read, only
        the words of the first and the last link in the span are returned.
        """
        low, high = (bisect.bisect_left(self._sources, at) for at in (begin, end))
        if high - low > self._unread:
            ends = sorted((self._order[low], self._order[high - 1]))
            return [self._words[at] for at in ends]
        self._unread -= high - low
        best, most, score, first, last = (0, 0), 0, 0, 0, 0
        for at in sorted(self._order[low:high]):
            score -= at - last - 1
            if score <= 0:
                score, first = 0, at
            score, last = score + 1, at
            if score > most:
                most, best = score, (first, at + 1)
        return self._words[slice(*best)]

    def near(self, offset: int) -> tuple[Word | None, Word | None]:
        """Return the words linked before and behind an offset of the source."""
        at = bisect.bisect_left(self._sources, offset)
        before = self._words[self._order[at - 1]] if at else None
        behind = self._words[self._order[at]] if at < len(self._order) else None
        return before, behind


def nearest_pairs(
    middles: Sequence[float], linked: Sequence[float]
) -> list[tuple[int, int]]:
    """Pair offsets in the source with links to it, of which there may be more or fewer.

    `middles` are in order. Pairs of indices are in the order of the source, as many as
    there can be, so that the sum of the distances is least.
    """
    import numpy as np  # --help needs none

    if not (middles and linked):
        return []
    order = sorted(range(len(linked)), key=linked.__getitem__)
    # A place without a linked word behind it is as far as the farthest.
    farthest = max([middles[-1], *(each for each in linked if each < math.inf)])
    sides = middles, [min(linked[at], farthest) for at in order]
    few, many = map(np.array, sorted(sides, key=len))
    skips = len(many) - len(few)
    sums: list[np.ndarray] = []  # by how many of `many` are skipped before
    for at, place in enumerate(few):
        least = np.minimum.accumulate(sums[-1]) if sums else 0
        sums.append(least + abs(many[at : at + skips + 1] - place))
    chosen, skip = [], skips
    for at in reversed(range(len(few))):
        skip = int(np.argmin(sums[at][: skip + 1]))
        chosen.append(at + skip)
    pairs = enumerate(reversed(chosen))
    if len(middles) > len(linked):
        return [(own, order[at]) for at, own in pairs]
    return [(own, order[at]) for own, at in pairs]


def _spans(pieces: Sequence[str], text: str) -> list[tuple[int, int] | None]:
    """Find pieces in their text; None: EOS, a tag, or a piece that is not in it."""
    spans: list[tuple[int, int] | None] = []
    at = lost = 0
    for piece in pieces:
        own = piece.replace("\u2581", " ").strip()
        begin = text.find(own, at, at + len(own) + _WINDOW * min(1 + lost, _WINDOW))
        if own and begin >= 0:
            at, lost = begin + len(own), 0
            spans.append((begin, at))
        else:
            lost += bool(own)
            spans.append(None)
    return spans
