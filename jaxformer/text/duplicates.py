"""Find pairs that occur again in a text of any size, in bounded memory.

Hashes lie on disk, in parts by their first bits: 24 bytes a pair. One part at a time is
sorted in memory. Two pairs are the same if their 128-bit hashes are: among 300 million
different pairs, two share a hash with probability 1e-22.
"""

import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from jaxformer.text.lines import normalise

_PARTS = 64
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("pair", "<u8")])


def pair_digests(pairs: Iterable[tuple[str, str]]) -> list[bytes]:
    """Return the hash of each pair, 16 bytes: the same for the same normalised text."""
    # No line contains a line end.
    sides = ((normalise(source), normalise(target)) for source, target in pairs)
    lines = ("\n".join(pair).encode() for pair in sides)
    return [*map(xxhash.xxh3_128_digest, lines)]


class PairHashes:
    """The hashes of a text's pairs, in files of a folder. Close it to remove them."""

    def __init__(self, folder: Path) -> None:
        self.pairs = 0  # that were added
        folder.mkdir()
        self._files = [folder / f"{part:02}" for part in range(_PARTS)]
        for file in self._files:
            file.touch()
        self.close = partial(shutil.rmtree, folder)

    def add(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Add pairs of a text, in its order."""
        digests = b"".join(pair_digests(pairs))
        entries = np.empty(len(pairs), _ENTRY)
        entries["high"], entries["low"] = np.frombuffer(digests, ">u8").reshape(-1, 2).T
        entries["pair"] = np.arange(self.pairs, self.pairs + len(pairs))
        self.pairs += len(pairs)
        part = (entries["high"] // (2**64 // _PARTS)).astype(np.uint8)
        entries = entries[np.argsort(part, kind="stable")]
        edges = np.cumsum(np.bincount(part, minlength=_PARTS))
        for file, own in zip(self._files, np.split(entries, edges[:-1]), strict=True):
            with file.open("ab") as opened:
                opened.write(own.tobytes())

    def repeated(self) -> np.ndarray:
        """Return whether each pair occurred before: bool [pairs]."""
        found = np.zeros(self.pairs, bool)
        for file in self._files:
            entries = np.fromfile(file, _ENTRY)
            # Stable, so that the first occurrence of a pair stays the first.
            entries = entries[np.lexsort((entries["low"], entries["high"]))]
            is_same = entries["high"][1:] == entries["high"][:-1]
            is_same &= entries["low"][1:] == entries["low"][:-1]
            found[entries["pair"][1:][is_same]] = True
        return found
