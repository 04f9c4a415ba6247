"""What occurs more than once, in a split or in two of them; 16 bytes a pair.

A text is known by a 64-bit hash of its normalised form: among 9 million texts two
different ones share one with a chance of 1 in 450,000. Blank sides are left out. Used
by `jaxformer.inspection.corpus`.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from jaxformer.inspection.tallies import KEPT

_BLANK = np.uint64(0)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd: multiplying by it loses nothing
_MOST_GROUPS = 10
_MOST_OF_GROUP = 5


class Hashes(NamedTuple):
    """The pairs of a split: uint64 [n] each, 0 where a side is blank."""

    source: np.ndarray
    target: np.ndarray

    @property
    def pair(self) -> np.ndarray:
        """Of both sides together, 0 where one is blank."""
        is_whole = (self.source != _BLANK) & (self.target != _BLANK)
        mixed = (self.source * _MIX) ^ (self.target + (self.source >> np.uint64(7)))
        return np.where(is_whole, np.maximum(mixed, np.uint64(1)), _BLANK)


class Groups(NamedTuple):
    """Texts that occur in several pairs."""

    texts: int  # how many different ones
    pairs: int  # the pairs that have them
    extra: int  # those that are not the first with its text
    most: list[tuple[int, list[int]]]  # the largest groups: pairs, indices of the first


class Overlap(NamedTuple):
    """Pairs of one split, of which something occurs in another."""

    pairs: int
    indices: list[tuple[int, int]]  # of such a pair, and of the first in the other


def hash_texts(texts: Sequence[str]) -> np.ndarray:
    """A hash of each normalised text, uint64 [n]; 0 for a blank one."""
    digests = b"".join(
        blake2b(text.encode(), digest_size=8).digest() if text else bytes(8)
        for text in texts
    )
    return np.frombuffer(digests, np.uint64)


def find_repeats(hashes: np.ndarray) -> Groups:
    """Group the pairs whose hash occurs more than once."""
    order = np.argsort(hashes, kind="stable")  # within a group in the text's order
    ordered = hashes[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    sizes = np.diff(np.append(starts, len(ordered)))
    is_repeated = (sizes > 1) & (ordered[starts] != _BLANK)
    starts, sizes = starts[is_repeated], sizes[is_repeated]
    firsts = order[starts]
    largest = np.lexsort((firsts, -sizes))[:_MOST_GROUPS]
    return Groups(
        len(sizes),
        int(sizes.sum()),
        int(sizes.sum() - len(sizes)),
        [
            (
                int(sizes[i]),
                order[starts[i] : starts[i] + min(sizes[i], _MOST_OF_GROUP)].tolist(),
            )
            for i in largest
        ],
    )


def find_ambiguous(hashes: Hashes, side: str) -> Groups:
    """Group the pairs whose text on that side has several different other sides."""
    _, firsts = np.unique(hashes.pair, return_index=True)
    firsts.sort()
    firsts = firsts[hashes.pair[firsts] != _BLANK]
    groups = find_repeats(getattr(hashes, side)[firsts])
    return groups._replace(
        most=[(size, firsts[indices].tolist()) for size, indices in groups.most]
    )


def find_overlap(hashes: np.ndarray, others: np.ndarray) -> Overlap:
    """Find what of one split occurs in another, and where there first."""
    values, firsts = np.unique(others, return_index=True)
    places = np.minimum(np.searchsorted(values, hashes), len(values) - 1)
    found = np.flatnonzero((values[places] == hashes) & (hashes != _BLANK))
    return Overlap(
        len(found),
        [(int(i), int(firsts[places[i]])) for i in found[:KEPT]],
    )
