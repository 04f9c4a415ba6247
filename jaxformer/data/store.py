"""Tokenised sentence pairs on disk, written as a stream and read memory-mapped.

Millions of pairs must not live as Python objects: a side of a corpus is one flat file
of token ids and the offsets at which its sentences begin, so 4.5M pairs of WMT14 are
about 500 MB of page cache and 72 MB of offsets. `jaxformer.data.corpus` writes them;
the plan reads `lengths` and the pipeline gathers sentences by index.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from jaxformer.errors import InputError

_SIDES = ("source", "target")
_UINT16_IDS = 65536


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths: sequence i is tokens[offsets[i]:offsets[i+1]]."""

    tokens: np.ndarray  # [total] uint16 or int32 ids; memory-mapped when read from disk
    offsets: np.ndarray  # [n + 1] int64

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """The ids of one sequence, its EOS included; IndexError outside 0..n-1."""
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, its EOS included: int32 [n]."""
        return np.diff(self.offsets).astype(np.int32)


class TokenizedCorpus(NamedTuple):
    """Sentence i of `target` translates sentence i of `source`."""

    source: Ragged
    target: Ragged


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A directory that appears complete or not at all.

    Yields a directory beside it to write into, which takes the name `directory` when
    the block ends and is removed when the block raises. What a killed process left of
    an earlier attempt is removed first. OSError if `directory` exists already.
    """
    if directory.exists():
        raise FileExistsError(f"{directory} exists already")
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_corpus(
    directory: Path,
    chunks: Iterable[tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]],
    *,
    vocab_size: int,
) -> None:
    """Write chunks of (source sequences, target sequences) as they come.

    Each sequence is a list of ids below `vocab_size`, EOS included. Memory: one chunk
    and 8 bytes a sequence.
    """
    dtype = "<u2" if vocab_size <= _UINT16_IDS else "<i4"
    lengths: dict[str, list[np.ndarray]] = {side: [] for side in _SIDES}
    with new_directory(directory) as partial:
        with (
            open(partial / "source.tokens", "wb") as source,
            open(partial / "target.tokens", "wb") as target,
        ):
            for sources, targets in chunks:
                if len(sources) != len(targets):
                    raise ValueError(f"{len(sources)} sources, {len(targets)} targets")
                lengths["source"].append(_append(source, sources, dtype))
                lengths["target"].append(_append(target, targets, dtype))
        for side in _SIDES:
            ends = np.concatenate([np.zeros(1, np.int64), *lengths[side]]).cumsum()
            np.save(partial / f"{side}.offsets.npy", ends)
        (partial / "format.json").write_text(json.dumps({"dtype": dtype}))


def _append(file: BinaryIO, sequences: Sequence[Sequence[int]], dtype: str):
    """Append the ids to the file; returns the sequences' lengths, int64 [n]."""
    np.fromiter(chain.from_iterable(sequences), dtype).tofile(file)
    return np.fromiter(map(len, sequences), np.int64, len(sequences))


def open_corpus(directory: Path) -> TokenizedCorpus:
    """Memory-map what `write_corpus` wrote; InputError if it is missing or damaged."""
    try:
        dtype = np.dtype(json.loads((directory / "format.json").read_text())["dtype"])
        return TokenizedCorpus(*(_open_side(directory, side, dtype) for side in _SIDES))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"The tokenised corpus {directory} is missing or damaged ({error}): delete "
            "the corpus directory of its workdir and run --mode=prepare."
        ) from None


def _open_side(directory: Path, side: str, dtype: np.dtype) -> Ragged:
    path = directory / f"{side}.tokens"
    offsets = np.load(directory / f"{side}.offsets.npy")
    expected, found = int(offsets[-1]) * dtype.itemsize, path.stat().st_size
    if expected != found:
        raise ValueError(f"{path.name} has {found} bytes instead of {expected}")
    if expected == 0:  # an empty file cannot be mapped
        return Ragged(np.zeros(0, dtype), offsets)
    return Ragged(np.memmap(path, dtype, mode="r"), offsets)
