"""Sequences of different lengths, one after the other in few arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


def concatenated_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenate arange(starts[i], starts[i] + lengths[i]) in the dtype of starts."""
    sizes = lengths.astype(starts.dtype)  # uint64 and int64 would make float64
    before = np.cumsum(sizes, dtype=starts.dtype) - sizes
    index = np.repeat(starts - before, lengths)
    index += np.arange(len(index), dtype=starts.dtype)
    return index


def offsets(lengths: np.ndarray) -> np.ndarray:
    """Return where pieces of these lengths begin, and the total: int64 [n + 1]."""
    found = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=found[1:])
    return found


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths, in shards of one array each.

    Sequence i is the ids from offsets[i] to offsets[i + 1] of all shards together, and
    lies in one shard.
    """

    shards: Sequence[np.ndarray]  # of ids: uint16 or int32
    offsets: np.ndarray  # int64 [n + 1]
    edges: np.ndarray  # int64 [shards + 1], the ids before each shard

    @staticmethod
    def of(sequences: Sequence[Sequence[int]]) -> "Ragged":
        """Concatenate sequences in memory."""
        ids = np.fromiter(chain.from_iterable(sequences), np.int32)
        return Ragged.one(ids, np.fromiter(map(len, sequences), np.int64))

    @staticmethod
    def one(ids: np.ndarray, lengths: np.ndarray) -> "Ragged":
        """Return the sequences of an array of ids, by their lengths [n]."""
        return Ragged([ids], offsets(lengths), np.array([0, len(ids)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the ids of one sequence, EOS included; IndexError outside 0..n-1."""
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        return self.gather(np.array([index]))[0]

    @property
    def tokens(self) -> np.ndarray:
        """The ids of all sequences; a copy if there are several shards."""
        return self.shards[0] if len(self.shards) == 1 else np.concatenate(self.shards)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, EOS included: int32 [n]."""
        return np.diff(self.offsets).astype(np.int32)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sequences one after the other, and their lengths: int64 [n]."""
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        return self._take(starts, lengths), lengths

    def _take(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return pieces of the ids, each within a shard, one after the other."""
        if len(self.shards) == 1 or not len(starts):
            return self.shards[0][concatenated_ranges(starts, lengths)]
        shards = np.searchsorted(self.edges, starts, side="right") - 1
        order = np.argsort(shards, kind="stable")
        numbers, first = np.unique(shards[order], return_index=True)
        found = np.empty(lengths.sum(), self.shards[0].dtype)
        places = offsets(lengths)[:-1]
        for number, own in zip(numbers, np.split(order, first[1:]), strict=True):
            there = concatenated_ranges(starts[own] - self.edges[number], lengths[own])
            here = concatenated_ranges(places[own], lengths[own])
            found[here] = self.shards[number][there]
        return found

    def select(self, indices: np.ndarray) -> "Ragged":
        """Return some of the sequences, in memory."""
        return Ragged.one(*self.gather(indices))
