"""Inspect a parallel corpus before training on it, for `jaxformer check`.

Splits are read without the cleaning of training text. Lines count from 1 and end at
"\\n" alone.
"""

import heapq
import re
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from jaxformer.config.data import DataConfig, SplitOf
from jaxformer.config.languages import language_code
from jaxformer.inspection.alignment import find_shifted
from jaxformer.system.errors import InputError
from jaxformer.text.flaws import OF_TEXTS, open_languages
from jaxformer.text.languages import Languages
from jaxformer.text.lines import normalise
from jaxformer.text.sources import Pair, TextPart, in_chunks, read_pairs, read_parts
from jaxformer.tokens import SIDES

Described = dict[str, Any]  # values of JSON
Files = list[tuple[str, str, int]]  # of both sides, index of their first pair
EXAMPLES = 20  # of each finding; all are counted
_LABELS = 10  # of each finding that are reported, the most frequent ones
_MOST_LABELS = 100_000  # that are counted
_GROUP_EXAMPLES = 5  # of a text that is repeated
# Controls but the tab, line ends but \n, soft hyphens, marks of direction and width,
# replacement characters, private use. Joiners are usual in Persian, Hindi and emoji,
# not after a Latin letter.
_ODD = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\uffff\ue000-\uf8ff]|(?<![\u0590-\U0010ffff])[\u200c\u200d]"
)


@dataclass
class TextFinding:
    """The pairs of a split, by index, that have one property."""

    pairs: int = 0
    count: int = 0  # a pair may have it several times
    labels: dict[str, "TextFinding"] = field(default_factory=dict)
    examples: list[tuple[float, int]] = field(default_factory=list)  # (odds, -index)
    at: array = field(default_factory=lambda: array("q"))  # all indices

    def add(
        self, index: int, labels: Mapping[str, int] | None = None, odds: float = 0.0
    ) -> None:
        """Count a pair once, or as often as it has each of `labels`.

        The examples with the highest odds are kept, the first ones of equal odds.
        """
        self.pairs += 1
        self.at.append(index)
        self.count += sum((labels or {}).values()) or 1
        is_full = len(self.examples) == EXAMPLES
        keep = heapq.heappushpop if is_full else heapq.heappush
        keep(self.examples, (odds, -index))
        for label, times in (labels or {}).items():
            if label in self.labels or len(self.labels) < _MOST_LABELS:
                of_label = self.labels.setdefault(label, TextFinding())
                of_label.add(index, odds=odds)
                of_label.count += times - 1

    def indices(self) -> list[int]:
        """Return the examples in the order in which they are reported."""
        return [-index for _, index in sorted(self.examples, reverse=True)]

    def describe(self, example: Callable[[int], Described]) -> Described:
        """Convert to JSON, with the most frequent labels, by `example` of an index."""
        labels = sorted(self.labels.items(), key=lambda item: -item[1].pairs)[:_LABELS]
        return {
            "pairs": self.pairs,
            "count": self.count,
            "examples": [example(index) for index in self.indices()],
            "labels": {label: found.describe(example) for label, found in labels},
        }


class Split:
    """Findings of one split by their kinds, and its lengths in words.

    `hashes` has int64 [pairs] of whole pairs and of either side, 0 where one is blank.
    Among 9 million texts two share a hash with a chance of 1 in 450,000.
    """

    def __init__(self, parts: Iterable[TextPart], languages: Languages | None) -> None:
        """Read the parts. Raises InputError as reading does.

        Without `languages`, sentences in the wrong language are not searched for.
        """
        self.pairs = 0
        self.files: Files = []
        self.findings: dict[str, TextFinding] = defaultdict(TextFinding)
        self.words: dict[str, Counter[int]] = {side: Counter() for side in SIDES}
        self.hashes = {kind: array("q") for kind in ("pair", *SIDES)}
        for part in parts:
            self.files.append((part.source, part.target, self.pairs))
            for chunk in in_chunks(part.pairs):
                if self.pairs == self.files[-1][2] and is_header(chunk[0]):
                    self.findings["header"].add(self.pairs)
                self._inspect(chunk, languages)
                self.pairs += len(chunk)
        for kind, values in self.hashes.items():
            self.hashes[kind] = values = np.frombuffer(values, np.int64)
            once = values.copy()  # a pair that occurs again repeats no other
            once[self.findings["pair_repeated"].at] = 0
            self.findings[f"{kind}_repeated"] = find_repeats(once)

    def _inspect(self, chunk: list[Pair], languages: Languages | None) -> None:
        sides = list(zip(*chunk, strict=True))
        sources, targets = texts = [list(map(normalise, side)) for side in sides]
        pairs = [*zip(sources, targets, strict=True)]
        self.hashes["pair"].extend([hash(pair) if all(pair) else 0 for pair in pairs])
        has = {k: [any(map(f, pair)) for pair in chunk] for k, f in OF_TEXTS.items()}
        has["identical_sides"] = [bool(one) and one == other for one, other in pairs]
        shifts = find_shifted(sources, targets)
        for index in np.flatnonzero(shifts).tolist():
            when = {1: "target one line late", -1: "target one line early"}
            label = {when[int(shifts[index])]: 1}
            self.findings["shifted"].add(self.pairs + index, label)
        for side, raws, clean in zip(SIDES, sides, texts, strict=True):
            self.words[side].update(t.count(" ") + 1 if t else 0 for t in clean)
            self.hashes[side].extend([hash(text) if text else 0 for text in clean])
            has[f"{side}_blank"] = [not text for text in clean]
            for index, raw in enumerate(raws, self.pairs):
                if odd := count_odd_characters(raw):
                    self.findings[f"{side}_characters"].add(index, odd)
        for kind, which in has.items():
            for index in np.flatnonzero(which).tolist():
                self.findings[kind].add(self.pairs + index)
        found = languages.judge(sources, targets) if languages else ()
        for index, kind, language, odds in found:
            labels = {language: 1} if language else {}
            self.findings[kind].add(self.pairs + index, labels, odds)


def place(index: int, side: str, files: Files) -> tuple[str, int]:
    """Return the file that has that side of a pair, and its line from 1."""
    source, target, first = next(f for f in reversed(files) if f[2] <= index)
    return target if side == "target" else source, index - first + 1


def is_header(pair: Pair) -> bool:
    """Whether both sides are names of languages, as above the columns of a table."""
    return all(text.isalpha() and language_code(text) for text in pair)


def count_odd_characters(sentence: str) -> dict[str, int]:
    """Count characters that text should not have: {"U+2028 LINE SEPARATOR": 2, ...}.

    A sentence that Unicode would compose otherwise has "not NFC" once.
    """
    if sentence.isascii() and sentence.isprintable():
        return {}
    odd, unnamed = _ODD.findall(sentence), "CONTROL OR PRIVATE USE"
    counts = Counter(f"U+{ord(c):04X} {unicodedata.name(c, unnamed)}" for c in odd)
    is_composed = unicodedata.is_normalized("NFC", sentence)
    return {**counts, **({} if is_composed else {"not NFC": 1})}


def find_repeats(hashes: np.ndarray) -> TextFinding:
    """Find pairs whose text an earlier pair has; hash 0 has no text.

    The labels are the texts with most pairs, numbered from 1.
    """
    values, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
    repeated = np.flatnonzero((counts > 1) & (values != 0))
    found = TextFinding()
    is_later = hashes != 0
    is_later[firsts] = False
    found.at.extend(np.flatnonzero(is_later).tolist())
    found.pairs = found.count = len(found.at)
    largest_first = repeated[np.lexsort((firsts[repeated], -counts[repeated]))]
    for number, i in enumerate(largest_first[:_LABELS], start=1):
        indices = np.flatnonzero(hashes == values[i])[:_GROUP_EXAMPLES].tolist()
        pairs, examples = int(counts[i]), [(0.0, -index) for index in indices]
        found.labels[str(number)] = TextFinding(pairs, pairs, examples=examples)
    return found


def find_overlap(hashes: np.ndarray, others: np.ndarray) -> dict[int, int]:
    """Find pairs whose text occurs in another split: {index: first index there}."""
    values, firsts = np.unique(others, return_index=True)
    nearest = np.minimum(np.searchsorted(values, hashes), len(values) - 1)
    found = np.flatnonzero((values[nearest] == hashes) & (hashes != 0))
    return dict(zip(found.tolist(), firsts[nearest[found]].tolist(), strict=True))


def inspect_corpus(config: DataConfig) -> Described:
    """Inspect the splits that exist; return JSON values.

    "splits" has the "pairs", "files", "lengths" and "findings" by kind of each split;
    "left_out" has the reason why a split or the languages were not inspected.
    """
    left_out: dict[str, str] = {}
    splits: dict[str, Split] = {}
    for name, (_, kind, data) in config.texts.items():
        languages = None
        try:
            languages = open_languages((data.source_language, data.target_language))
        except InputError as error:
            left_out[f"languages {data.direction}"] = str(error)
        try:
            splits[name] = Split(read_parts(data, kind), languages)
        except InputError as error:
            left_out[name] = str(error)
    trains = {k: v for k, v in splits.items() if config.texts[k].split == "train"}
    described = {k: _describe(v, config.texts[k], k, trains) for k, v in splits.items()}
    return {"splits": described, "left_out": left_out}


def _describe(
    split: Split, text: SplitOf, name: str, trains: dict[str, Split]
) -> Described:
    """Convert a split to JSON, with its overlap with train and the texts to quote."""
    overlaps: dict[str, dict[int, tuple[int, Split]]] = {}
    in_train: dict[str, dict[str, list[int]]] = {}  # the pairs of train, by split
    for side, hashes in split.hashes.items() if name not in trains and trains else ():
        kind = f"{side}_overlap"
        overlaps[kind] = {
            index: (there, train)
            for train in reversed(trains.values())
            for index, there in find_overlap(hashes, train.hashes[side]).items()
        }
        for index in overlaps[kind]:
            split.findings[kind].add(index)
        shared = hashes[[*overlaps[kind]]]
        in_train[kind] = {
            each: np.flatnonzero(np.isin(train.hashes[side], shared)).tolist()
            for each, train in trains.items()
        }
    findings = [*split.findings.values()]
    findings += [label for found in findings for label in found.labels.values()]
    quoted = {index for found in findings for index in found.indices()}
    pairs = islice(read_pairs(text.data, text.split), max(quoted, default=-1) + 1)
    texts = {index: pair for index, pair in enumerate(pairs) if index in quoted}

    def example(index: int, kind: str) -> Described:
        side = kind.partition("_")[0]
        result = {"place": place(index, side, split.files)}
        if kind in overlaps:
            there, train = overlaps[kind][index]
            result["train"] = place(there, side, train.files)
        return {**result, "text": texts[index]}

    return {
        "pairs": split.pairs,
        "files": split.files,
        "lengths": {
            side: {"words": dict(sorted(split.words[side].items()))} for side in SIDES
        },
        "findings": {
            kind: found.describe(partial(example, kind=kind))
            | {"at": [*found.at], "train_at": in_train.get(kind, {})}
            for kind, found in split.findings.items()
        },
    }
