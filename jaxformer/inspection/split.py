"""Read one split of a corpus and collect the findings in its text."""

import re
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from jaxformer.data.sources import Pair, Part
from jaxformer.data.tokenizer import normalise
from jaxformer.errors import InputError
from jaxformer.inspection.finding import SIDES, Finding
from jaxformer.inspection.languages import Languages

# Neither text nor white space: controls (a tab is white space), line ends that are not
# \n, soft hyphens, marks of direction and of width, what decoding could not read, and
# private use. A joiner is usual in Persian, Hindi and emoji, not after a Latin letter.
_ODD = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\uffff\ue000-\uf8ff]|(?<![\u0590-\U0010ffff])[\u200c\u200d]"
)
_GROUPS = 10  # the texts with most pairs
_GROUP_EXAMPLES = 5


class Split:
    """Findings of one split by their kinds, and its lengths in words.

    `hashes` has int64 [pairs] of whole pairs and of either side, 0 where one is blank:
    24 bytes a pair. Among 9 million texts two share a hash with a chance of 1 in
    450,000.
    """

    def __init__(self, parts: Iterable[Part], languages: Languages | None) -> None:
        """Read the parts. Raises InputError as reading does, and if there is no pair.

        Without `languages`, sentences in the wrong language are not searched for.
        """
        self.pairs = 0
        self.files: list[tuple[str, str, int]] = []
        self.findings: dict[str, Finding] = defaultdict(Finding)
        self.words: dict[str, Counter[int]] = {side: Counter() for side in SIDES}
        self._languages = languages
        self._hashes = {kind: array("q") for kind in ("pair", *SIDES)}
        for part in parts:
            self.files.append((part.source, part.target, self.pairs))
            for pair in part.pairs:
                self._inspect(pair)
                self.pairs += 1
        if not self.pairs:
            raise InputError("a split holds no pair")
        self.hashes = {k: np.frombuffer(h, np.int64) for k, h in self._hashes.items()}
        for kind, hashes in self.hashes.items():
            self.findings[f"{kind}_repeated"] = find_repeats(hashes)

    def _inspect(self, pair: Pair) -> None:
        texts = source, target = normalise(pair[0]), normalise(pair[1])
        for side, raw, text in zip(SIDES, pair, texts, strict=True):
            self.words[side][len(text.split())] += 1
            self._hashes[side].append(hash(text) if text else 0)
            if not text:
                self.findings[f"{side}_blank"].add(self.pairs)
            if odd := count_odd_characters(raw):
                self.findings[f"{side}_characters"].add(self.pairs, odd)
        self._hashes["pair"].append(hash(texts) if source and target else 0)
        if source and source == target:
            self.findings["identical_sides"].add(self.pairs)
        if self._languages:
            for kind, language, odds in self._languages.judge(texts):
                labels = {language: 1} if language else {}
                self.findings[kind].add(self.pairs, labels, odds)


def count_odd_characters(sentence: str) -> dict[str, int]:
    """Count characters that text should not have: {"U+2028 LINE SEPARATOR": 2, ...}.

    A sentence that Unicode would compose otherwise has "not NFC" once.
    """
    if sentence.isascii() and sentence.isprintable():
        return {}
    counts = Counter(
        f"U+{ord(c):04X} {unicodedata.name(c, 'CONTROL OR PRIVATE USE')}"
        for c in _ODD.findall(sentence)
    )
    if not unicodedata.is_normalized("NFC", sentence):
        counts["not NFC"] = 1
    return counts


def find_repeats(hashes: np.ndarray) -> Finding:
    """Find pairs whose text an earlier pair has; hash 0 has no text.

    The labels are the texts with most pairs, numbered from 1.
    """
    values, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
    repeated = np.flatnonzero((counts > 1) & (values != 0))
    found = Finding()
    found.pairs = found.count = int(counts[repeated].sum()) - len(repeated)
    largest_first = repeated[np.lexsort((firsts[repeated], -counts[repeated]))]
    for number, i in enumerate(largest_first[:_GROUPS], start=1):
        indices = np.flatnonzero(hashes == values[i])[:_GROUP_EXAMPLES].tolist()
        pairs, examples = int(counts[i]), [(0.0, -index) for index in indices]
        found.labels[str(number)] = Finding(pairs, pairs, examples=examples)
    return found


def find_overlap(hashes: np.ndarray, others: np.ndarray) -> dict[int, int]:
    """Find pairs whose text occurs in another split: {index: first index there}."""
    values, firsts = np.unique(others, return_index=True)
    nearest = np.minimum(np.searchsorted(values, hashes), len(values) - 1)
    found = np.flatnonzero((values[nearest] == hashes) & (hashes != 0))
    return dict(zip(found.tolist(), firsts[nearest[found]].tolist(), strict=True))
