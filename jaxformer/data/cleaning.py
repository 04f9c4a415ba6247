"""Tokenise sentence pairs; drop and count those that would harm training.

Web text holds blank sides, whole paragraphs and pairs that do not translate each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

import numpy as np

from jaxformer.batch import UNK, Tokenizer
from jaxformer.data.sources import Pair
from jaxformer.data_config import DataConfig

REASONS = ("empty", "too_long", "ratio", "duplicate")
_RATIO_SLACK = 5  # tokens: the translation of a short sentence may be far longer
_CHUNK = 30_000  # pairs tokenised at a time


@dataclass
class SideReport:
    """Counts of the kept sentences of one language; tokens include EOS."""

    tokens: int = 0
    unknown: int = 0  # tokens that are UNK
    longest: int = 0  # tokens

    def __add__(self, other: "SideReport") -> "SideReport":
        tokens, unknown = self.tokens + other.tokens, self.unknown + other.unknown
        return SideReport(tokens, unknown, max(self.longest, other.longest))


@dataclass
class CorpusReport:
    """Counts of the kept and dropped pairs of a split."""

    pairs: int = 0  # kept and dropped
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    source: SideReport = field(default_factory=SideReport)
    target: SideReport = field(default_factory=SideReport)

    def __add__(self, other: "CorpusReport") -> "CorpusReport":
        dropped = {why: self.dropped[why] + other.dropped[why] for why in REASONS}
        pairs, kept = self.pairs + other.pairs, self.kept + other.kept
        source, target = self.source + other.source, self.target + other.target
        return CorpusReport(pairs, kept, dropped, source, target)

    def __str__(self) -> str:
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


class Chunk(NamedTuple):
    """Kept pairs, each part a list [sources, targets]."""

    ids: list[list[list[int]]]  # EOS last
    texts: list[list[str]]


def clean(
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    report: CorpusReport,
    config: DataConfig | None,
) -> Iterator[Chunk]:
    """Yield chunks of tokenised pairs; count them in `report`.

    Without a config every pair is kept. Else a pair is dropped for the first of:

    - "empty": a side is blank, but for a tag.
    - "too_long": a side has more than `max_length` tokens, EOS included.
    - "ratio": the longer side has more than `max_ratio` times the tokens of the
      shorter, plus 5; EOS not counted.
    - "duplicate": an earlier kept pair has the same source and target.
    """
    seen = SeenPairs()
    pairs = iter(pairs)
    while chunk := list(islice(pairs, _CHUNK)):
        source_text, target_text = zip(*chunk, strict=True)
        sides = [tokenizer.encode(source_text), tokenizer.encode_target(target_text)]
        kept = np.arange(len(chunk))
        if config:
            checks = length_faults(sides, config)
            if config.deduplicate:
                checks["duplicate"] = ~seen.add(chunk)
            for reason, fails in checks.items():
                report.dropped[reason] += int(fails[kept].sum())
                kept = kept[~fails[kept]]
        report.pairs += len(chunk)
        report.kept += len(kept)
        sides = [[side[i] for i in kept] for side in sides]
        texts = [[side[i] for i in kept] for side in (source_text, target_text)]
        for counts, side in zip((report.source, report.target), sides, strict=True):
            counts.tokens += sum(map(len, side))
            counts.unknown += sum(ids.count(UNK) for ids in side)
            counts.longest = max([counts.longest, *map(len, side)])
        yield Chunk(sides, texts)


def breaks_ratio(
    lengths: np.ndarray, is_tagged: bool | np.ndarray, max_ratio: float
) -> np.ndarray:
    """Whether one side of a pair is too long for the other, bool [n].

    `lengths` is int [2, n], EOS included. The tag of a source does not count.
    """
    source, target = lengths[0] - is_tagged, lengths[1]
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    return longer - 1 > max_ratio * (shorter - 1) + _RATIO_SLACK


def length_faults(
    sides: Sequence[Sequence[Sequence[int]]], config: DataConfig
) -> dict[str, np.ndarray]:
    """Return by reason of `clean` which pairs have a wrong length: bool [n] each.

    `sides` are the ids of n sources, with their tag, and of n targets, EOS last.
    """
    lengths = np.array([list(map(len, side)) for side in sides])  # [2, n]
    is_tagged = bool(config.tag)
    return {
        "empty": (lengths[0] - is_tagged == 1) | (lengths[1] == 1),
        "too_long": lengths.max(axis=0) > config.max_length,
        "ratio": breaks_ratio(lengths, is_tagged, config.max_ratio),
    }


class SeenPairs:
    """The set of sentence pairs seen so far, as 64-bit hashes.

    Two of the 36M pairs of WMT14 en-fr share a hash with probability 1 / 28,000.
    """

    def __init__(self) -> None:
        # Sorted. The largest hash is always in, so that every search ends at an entry.
        self._hashes = np.array([2**64 - 1], np.uint64)

    def add(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Add pairs; return whether each is the first of its kind, bool [n]."""
        digests = (
            blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()
            for source, target in pairs
        )
        hashes = np.frombuffer(b"".join(digests), np.uint64)
        values, first = np.unique(hashes, return_index=True)
        index = np.searchsorted(self._hashes, values)
        absent = self._hashes[index] != values
        self._hashes = np.insert(self._hashes, index[absent], values[absent])
        is_new = np.zeros(len(pairs), bool)
        is_new[first[absent]] = True
        return is_new
