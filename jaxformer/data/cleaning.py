"""Which training pairs are kept: tokenised in chunks, and counted where dropped.

Web text holds blank sides, whole paragraphs and sentences that translate nothing, and
a model learns them too. Nothing disappears silently: every dropped pair is counted in
a `CorpusReport` under its reason. Used by `jaxformer.data.corpus`, for training pairs
only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

import numpy as np

from jaxformer.batch import UNK
from jaxformer.data.sources import Pair
from jaxformer.data.tokenizer import Tokenizer

REASONS = ("empty", "too_long", "ratio", "duplicate")
# A short sentence may well translate into one several times as long.
_RATIO_SLACK = 5
_CHUNK = 30_000  # pairs tokenised at a time


@dataclass
class SideReport:
    """The kept sentences of one language; tokens include EOS."""

    tokens: int = 0
    unknown: int = 0  # tokens that are UNK
    longest: int = 0  # tokens

    def add(self, sequences: list[list[int]]) -> None:
        """Count these sentences."""
        self.tokens += sum(map(len, sequences))
        self.unknown += sum(sequence.count(UNK) for sequence in sequences)
        self.longest = max([self.longest, *map(len, sequences)])


@dataclass
class CorpusReport:
    """What became of the pairs of a split."""

    pairs: int = 0  # as read: kept and dropped
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    source: SideReport = field(default_factory=SideReport)
    target: SideReport = field(default_factory=SideReport)

    def __str__(self) -> str:
        """One line for the log."""
        dropped = [f"{count:,} {why}" for why, count in self.dropped.items() if count]
        sides = [
            f"{name} {side.tokens / max(self.kept, 1):.1f} tokens a sentence, longest "
            f"{side.longest}, {side.unknown:,} unknown"
            for name, side in (("source", self.source), ("target", self.target))
        ]
        return (
            f"{self.kept:,} of {self.pairs:,} pairs kept, dropped: "
            f"{', '.join(dropped) or 'none'}; {'; '.join(sides)}"
        )


def clean(
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    report: CorpusReport,
    *,
    max_length: int,
    max_ratio: float,
    deduplicate: bool,
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Tokenise in chunks and drop what is no training pair, counting it in `report`.

    Dropped for the first of these that holds: "empty" (a side is blank), "too_long" (a
    side has more than `max_length` tokens, EOS included), "ratio" (the longer side has
    more than `max_ratio` times the pieces of the shorter, plus 5), "duplicate" (the
    same source and target came before).
    """
    seen = SeenPairs()
    pairs = iter(pairs)
    while chunk := list(islice(pairs, _CHUNK)):
        sources, targets = zip(*chunk, strict=True)
        sources, targets = tokenizer.encode(sources), tokenizer.encode_target(targets)
        reasons = _reasons(sources, targets, max_length, max_ratio)
        if deduplicate:
            kept = np.flatnonzero(reasons == -1)
            is_new = seen.add([chunk[i] for i in kept])
            reasons[kept[~is_new]] = REASONS.index("duplicate")
        for index, reason in enumerate(REASONS):
            report.dropped[reason] += int(np.count_nonzero(reasons == index))
        kept = np.flatnonzero(reasons == -1)
        sources, targets = [sources[i] for i in kept], [targets[i] for i in kept]
        report.pairs += len(chunk)
        report.kept += len(kept)
        report.source.add(sources)
        report.target.add(targets)
        yield sources, targets


def _reasons(
    sources: list[list[int]],
    targets: list[list[int]],
    max_length: int,
    max_ratio: float,
) -> np.ndarray:
    """Index into REASONS for each pair, -1 where it stays; duplicates not looked at."""
    lengths = np.array([list(map(len, sources)), list(map(len, targets))])  # with EOS
    shorter, longer = lengths.min(axis=0), lengths.max(axis=0)
    is_uneven = longer - 1 > max_ratio * (shorter - 1) + _RATIO_SLACK
    tests = {"empty": shorter == 1, "too_long": longer > max_length, "ratio": is_uneven}
    return np.select(
        list(tests.values()), [REASONS.index(r) for r in tests], default=-1
    )


class SeenPairs:
    """Which sentence pairs came before: 8 bytes a pair.

    Pairs are known by a 64-bit hash: of 36M different pairs (WMT14 en-fr), one is taken
    for a duplicate of another with a chance of 1 in 28,000.
    """

    def __init__(self) -> None:
        self._hashes = np.zeros(0, np.uint64)  # sorted

    def add(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Whether each pair is new, bool [n]; of equal pairs here only the first is."""
        digests = (
            blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()
            for source, target in pairs
        )
        hashes = np.frombuffer(b"".join(digests), np.uint64)
        values, first = np.unique(hashes, return_index=True)
        places = np.searchsorted(self._hashes, values)
        is_known = np.zeros(len(values), bool)
        within = places < len(self._hashes)
        is_known[within] = self._hashes[places[within]] == values[within]
        self._hashes = np.insert(self._hashes, places[~is_known], values[~is_known])
        is_new = np.zeros(len(pairs), bool)
        is_new[first[~is_known]] = True
        return is_new
