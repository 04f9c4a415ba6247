"""What is counted sentence by sentence: lengths, unknown words, odd characters.

Every tally sees a split in blocks, remembers pairs by their index in it, and holds no
text but the words and characters that it has to name. Used by
`jaxformer.inspection.corpus`.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxformer.batch import UNK
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.inspection.languages import SPACELESS

KEPT = 20  # examples of a finding that are remembered; all are counted
_MOST_NAMED = 20  # words named, the most frequent ones
_LONG_WORD = 4  # letters: a shorter word may well be its characters
_REMEMBERED = 400_000  # words known to be whole
_RATIO_STEPS = 32  # of a doubling
# Neither text nor white space: controls (a tab is white space), line ends that are not
# \n, soft hyphens, marks of direction and of width, what decoding could not read, and
# private use. A joiner is usual in Persian, Hindi and emoji, not after a Latin letter.
_ODD = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\uffff\ue000-\uf8ff]|(?<![\u0590-\U0010ffff])[\u200c\u200d]"
)
_NAMES = {  # of control characters, which Unicode gives no name
    "\n": "LINE FEED", "\r": "CARRIAGE RETURN", "\x1b": "ESCAPE", "\x7f": "DELETE",
    "\x85": "NEXT LINE",
}  # fmt: skip
NOT_COMPOSED = "not NFC"


@dataclass
class Found:
    """How often something was found, and in which pairs first."""

    count: int = 0
    pairs: int = 0
    indices: list[int] = field(default_factory=list)

    def add(self, index: int, count: int = 1) -> None:
        """Count it once more, or `count` times, in the pair of that index."""
        self.count += count
        self.pairs += 1
        if len(self.indices) < KEPT:
            self.indices.append(index)


class Lengths:
    """Exact histograms of one side, in words and in pieces without EOS."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {
            "words": Counter(),
            "pieces": Counter(),
        }

    def add(self, words: Sequence[int], pieces: Sequence[int]) -> None:
        """Count the sentences of a block."""
        self._counts["words"].update(words)
        self._counts["pieces"].update(pieces)

    def result(self) -> dict[str, dict[int, int]]:
        """{"words": {length: sentences}, "pieces": ...}, shortest first."""
        return {
            unit: dict(sorted(found.items())) for unit, found in self._counts.items()
        }


class Ratios:
    """Target pieces over source pieces, of pairs with text on both sides."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, source: np.ndarray, target: np.ndarray) -> None:
        """Count the pairs of a block by their numbers of pieces."""
        both = (source > 0) & (target > 0)
        steps = np.round(_RATIO_STEPS * np.log2(target[both] / source[both]))
        self._counts.update(steps.astype(int).tolist())

    def result(self) -> dict[str, Any]:
        """Percentiles, within 2 %, and a histogram by rounded power of sqrt(2)."""
        steps = np.array(sorted(self._counts), int)
        counts = np.array([self._counts[step] for step in steps], int)
        histogram: Counter[float] = Counter()
        for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
            histogram[round(2 * step / _RATIO_STEPS) / 2] += count
        shares = np.cumsum(counts) / max(counts.sum(), 1)
        percentiles = {
            percent: round(float(2 ** (steps[place] / _RATIO_STEPS)), 2)
            for percent in (1, 5, 50, 95, 99)
            if (place := int(np.searchsorted(shares, percent / 100))) < len(steps)
        }
        return {
            "percentiles": percentiles,
            "histogram_log2": dict(sorted(histogram.items())),
        }


class Words:
    """Words of one side that the tokeniser does not know or spells letter by letter."""

    def __init__(self, tokenizer: Tokenizer, encode: Callable) -> None:
        """`encode` is the tokeniser's method for that side."""
        self._encode = encode
        self._sizes = [len(piece.removeprefix("▁")) for piece in tokenizer.pieces()]
        self._whole: set[str] = set()
        self._words = 0
        self._found: dict[str, dict[str, Found]] = {"unknown": {}, "spelt_out": {}}
        self._totals = {kind: Found() for kind in self._found}

    def add(self, first: int, sentences: Sequence[Sequence[str]]) -> None:
        """Count the words of a block, of which the first sentence has index `first`."""
        self._words += sum(map(len, sentences))
        new = {w for words in sentences for w in words if w not in self._whole}
        if not new:
            return
        kinds = self._classify(sorted(new))
        if len(self._whole) > _REMEMBERED:
            self._whole.clear()
        self._whole |= new - kinds.keys()
        if not kinds:
            return
        for index, words in enumerate(sentences, start=first):
            if kinds.keys().isdisjoint(words):
                continue
            seen = Counter(word for word in words if word in kinds)
            for kind, total in self._totals.items():
                here = {w: n for w, n in seen.items() if kinds[w] == kind}
                if here:
                    total.add(index, sum(here.values()))
                for word, count in here.items():
                    self._found[kind].setdefault(word, Found()).add(index, count)
        self._prune()

    def _classify(self, words: Sequence[str]) -> dict[str, str]:
        """Which of the words are "unknown" or "spelt_out"."""
        kinds = {}
        for word, (*ids, _) in zip(words, self._encode(words), strict=True):
            if UNK in ids:
                kinds[word] = "unknown"
            elif (
                max((self._sizes[i] for i in ids), default=0) <= 1
                and sum(map(str.isalpha, word)) >= _LONG_WORD
                and not SPACELESS.search(word)
            ):
                kinds[word] = "spelt_out"
        return kinds

    def _prune(self) -> None:
        """Forget rare ones of very many: only the most frequent are named."""
        for kind, found in self._found.items():
            if len(found) > _REMEMBERED:
                most = sorted(found.items(), key=lambda item: -item[1].count)
                self._found[kind] = dict(most[: _REMEMBERED // 2])

    def result(self) -> dict[str, Any]:
        """Counts of words, and the most frequent words of either kind as `Found`."""
        return {
            "words": self._words,
            **{
                kind: {
                    "total": self._totals[kind],
                    "most": dict(
                        sorted(
                            found.items(), key=lambda item: (-item[1].count, item[0])
                        )[:_MOST_NAMED]
                    ),
                }
                for kind, found in self._found.items()
            },
        }


class Characters:
    """Characters of one side that text should not have, by code point."""

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}

    def add(self, first: int, sentences: Sequence[str]) -> None:
        """Look through the raw sentences of a block that begins with index `first`."""
        for index, sentence in enumerate(sentences, start=first):
            if sentence.isascii() and sentence.isprintable():
                continue
            if odd := _ODD.findall(sentence):
                for character, count in Counter(odd).items():
                    self._found.setdefault(character, Found()).add(index, count)
            if not unicodedata.is_normalized("NFC", sentence):
                self._found.setdefault(NOT_COMPOSED, Found()).add(index)

    def result(self) -> dict[str, Found]:
        """By `name_character`, or NOT_COMPOSED; those of most pairs first."""
        most = sorted(self._found.items(), key=lambda item: (-item[1].pairs, item[0]))
        return {name_character(character): found for character, found in most}


def name_character(character: str) -> str:
    """Name one character as in "U+0085 NEXT LINE"; other text is returned as it is."""
    if len(character) != 1:
        return character
    name = unicodedata.name(character, None) or _NAMES.get(character)
    if name is None:
        is_private = unicodedata.category(character) == "Co"
        name = "PRIVATE USE" if is_private else "CONTROL CHARACTER"
    return f"U+{ord(character):04X} {name}"
