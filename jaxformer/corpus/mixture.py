"""Which pairs of several corpora an epoch has: each corpus by its weight.

Of a corpus of weight 2.25, an epoch has every pair twice and a quarter of the pairs a
third time. This quarter is drawn anew for each epoch, with equal chances: the pairs are
sorted by length and cut, at a random place, into equal strata, and each gives a random
pair. So an epoch has short and long pairs in proportion. Each slot for a drawn pair has
the room of the longest pair that it may hold, so that the rows of a plan are the same
in all epochs; the pairs of a slot have nearly the same lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Weighted(NamedTuple):
    """Pairs begin ... end - 1 of the training text, and how often an epoch has each."""

    begin: int
    end: int
    weight: float


class DrawnPairs(NamedTuple):
    """Draw `count` of n pairs, the first of them `begin`."""

    begin: int
    ranks: np.ndarray  # [n] equal for equal lengths, near for similar ones
    count: int

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """First and last place, by rank, of each draw; place n is place 0 again."""
        edges = self._edges(0), self._edges(len(self.ranks) - 1)
        return edges[0][:-1], edges[1][1:] - 1

    def pairs(self, bits: np.random.BitGenerator) -> np.ndarray:
        """Draw, each pair with the chance count / n, and none twice: int64 [count]."""
        n = len(self.ranks)
        edges = self._edges(int(bits.random_raw()) * n >> 64)
        random = bits.random_raw(self.count) >> np.uint64(32)
        within = random * np.diff(edges).astype(np.uint64) >> np.uint64(32)
        places = (edges[:-1] + within.astype(np.int64)) % n
        return self.begin + shuffle_within(self.ranks, bits)[places]

    def _edges(self, shift: int) -> np.ndarray:
        """Begin of each stratum and end of the last, int64 [count + 1]; shift < n."""
        steps = np.arange(self.count + 1, dtype=np.int64) * len(self.ranks)
        return (steps + shift) // self.count


@dataclass(frozen=True, eq=False)
class Mixture:
    """The slots of an epoch: S of them, with room for pairs of certain lengths."""

    lengths: tuple[np.ndarray, np.ndarray]  # int32 [S] source and target tokens
    repeated: np.ndarray  # int32 [R] the pairs of the first R slots, in every epoch
    draws: tuple[DrawnPairs, ...]  # of the other slots
    tokens: tuple[float, float]  # source and target tokens of an epoch, on average

    def members(self, seed: int, epoch: int) -> np.ndarray:
        """Return the pair in each slot, int32 [S]: a function of (seed, epoch)."""
        drawn = [
            draw.pairs(np.random.PCG64(np.random.SeedSequence((seed, epoch, number))))
            for number, draw in enumerate(self.draws, start=1)
        ]
        return np.concatenate([self.repeated, *drawn]).astype(np.int32)


def pairs_of_an_epoch(weight: float, size: int) -> int:
    """The pairs that an epoch has of a corpus, at least one if its weight is not 0."""
    weight = Fraction(weight).limit_denominator(10**6)
    whole, rest = divmod(weight, 1)
    count = int(whole) * size + round(rest * size)
    return max(count, int(weight > 0 and size > 0))


def make_mixture(
    source: np.ndarray, target: np.ndarray, corpora: Sequence[Weighted]
) -> Mixture:
    """Make the slots of an epoch from the lengths of all pairs, int [n] each."""
    repeated, draws, tokens = [], [], np.zeros(2)
    for begin, end, weight in corpora:
        weight = Fraction(weight).limit_denominator(10**6)
        whole = int(weight)
        repeated += [np.arange(begin, end, dtype=np.int32)] * whole
        count = pairs_of_an_epoch(weight, end - begin) - whole * (end - begin)
        sizes = source[begin:end], target[begin:end]
        if count:
            draws.append(DrawnPairs(begin, rank(*sizes), count))
        share = whole + count / max(1, end - begin)
        tokens += [share * int(side.sum()) for side in sizes]
    repeated = np.concatenate([np.zeros(0, np.int32), *repeated])
    lengths = []
    for side in (source, target):
        rooms = [side[repeated]]
        for draw in draws:
            ordered = side[draw.begin + np.argsort(draw.ranks, kind="stable")]
            rooms.append(largest_between(np.tile(ordered, 2), *draw.bounds()))
        lengths.append(np.concatenate(rooms).astype(np.int32))
    return Mixture(tuple(lengths), repeated, tuple(draws), tuple(tokens.tolist()))


def rank(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rank pairs so that neighbours have similar lengths: unsigned [n].

    By source length, and by target length in turn upwards and downwards.
    """
    room = int(target.max(initial=0)) + 1
    turned = np.where(source % 2, room - 1 - target, target)
    keys = source.astype(np.int64) * room + turned
    ranks = np.unique(keys, return_inverse=True)[1]
    return ranks.astype(np.min_scalar_type(int(ranks.max(initial=0))))


def largest_between(
    values: np.ndarray, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Return max(values[first[i] : last[i] + 1]) for each i."""
    edges = np.stack([first, last + 1], axis=1).ravel()
    return np.maximum.reduceat(np.append(values, 0), edges)[::2]


def shuffle_within(classes: np.ndarray, bits: np.random.BitGenerator) -> np.ndarray:
    """Return indices 0..n-1 sorted by class, at random within each class: int64 [n].

    Sorts keys of (class, random bits, index), of which no two are equal. numpy promises
    that raw bits never change between versions, which Generator.permutation may.
    """
    index_bits = np.uint64(len(classes).bit_length())
    class_bits = np.uint64(max(1, int(classes.max()).bit_length()))
    keys = bits.random_raw(len(classes)) >> class_bits
    keys |= classes.astype(np.uint64) << (np.uint64(64) - class_bits)
    keys = (keys >> index_bits) << index_bits
    keys |= np.arange(len(classes), dtype=np.uint64)
    keys.sort()
    return (keys & ((np.uint64(1) << index_bits) - np.uint64(1))).astype(np.int64)
