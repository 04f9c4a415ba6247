"""Store tokenised sentence pairs on disk, in shards of numpy's own files.

    index.json                 what each shard holds; a shard is complete if it is there
    00000.source.npy           the ids of the shard's sources, one after the other
    00000.source.lengths.npy   how many of them each source has, EOS included

and the same of targets. With `data.versions` these files are of version 0, and
00000.source.1.npy is of version 1. Ids are memory-mapped when they are first read; only
the offsets of the sentences are in memory, 8 bytes each.
"""

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.system.files import Verifier, write_atomically
from jaxformer.system.mirror import LOCAL, Mirror
from jaxformer.text.ragged import Ragged, offsets
from jaxformer.tokens import SIDES

_INDEX = "index.json"
IDS = re.compile(r"train/\d+\.(?!.*\.lengths\.npy).*\.npy")  # files of a corpus


def names_of(versions: int) -> list[str]:
    """The names of the sides of so many versions of a text."""
    numbers = range(1, versions)
    return [*SIDES, *(f"{side}.{number}" for number in numbers for side in SIDES)]


class TokenizedCorpus(NamedTuple):
    """Sentence i of `target` translates sentence i of `source`."""

    source: Ragged
    target: Ragged


class ShardWriter:
    """Writes the shards of a corpus to a folder, and continues an incomplete one.

    `names` are those of the sides, `dtypes` those of their ids. `shards` is the index:
    JSON values that were given with each shard.
    """

    def __init__(self, folder: Path, names: Sequence[str], dtypes: Sequence[str]):
        folder.mkdir(exist_ok=True)
        self._folder, self._dtypes = folder, dict(zip(names, dtypes, strict=True))
        self.shards = read_index(folder)

    def write(self, chunks: Iterable[Sequence[Ragged]], entry: object) -> None:
        """Write the next shard: chunks of as many sides as there are names."""
        write_shard(self._folder, len(self.shards), self._dtypes, chunks)
        self.shards.append(entry)
        write_index(self._folder, self.shards)


def write_shard(
    folder: Path,
    number: int,
    dtypes: Mapping[str, str],
    chunks: Iterable[Sequence[Ragged]],
) -> None:
    """Write the files of a shard: chunks of as many sides as `dtypes` has names."""
    sides = zip(*chunks, strict=True)
    for (name, dtype), parts in zip(dtypes.items(), sides, strict=True):
        stem = folder / f"{number:05}.{name}"
        lengths = np.concatenate([part.lengths for part in parts])
        ids = np.concatenate([part.tokens for part in parts])
        smallest = np.min_scalar_type(lengths.max(initial=0))
        save_array(Path(f"{stem}.npy"), ids.astype(dtype))
        save_array(Path(f"{stem}.lengths.npy"), lengths.astype(smallest))


def read_index(folder: Path) -> list[Any]:
    """Return what was given with each complete shard of a folder."""
    index = folder / _INDEX
    return json.loads(index.read_text()) if index.exists() else []


def write_index(folder: Path, shards: Sequence[Any]) -> None:
    """Say that a folder has these shards."""
    write_atomically(folder / _INDEX, json.dumps(shards, indent=1))


def save_array(path: Path, array: np.ndarray) -> None:
    """Write a file of NumPy; never leaves half of it. Raises OSError.

    `numpy.save` overlooks an error of the last write.
    """
    header = io.BytesIO()
    described = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(header, described)
    write_atomically(path, header.getvalue(), np.ascontiguousarray(array).data)


def id_dtype(vocab_size: int) -> str:
    """The type of ids below `vocab_size` on disk."""
    return "<u2" if vocab_size <= 65536 else "<i4"


class _Mapped(Sequence):
    """Arrays in files, each of which is mapped when it is first needed.

    The verifier, if there is one, then verifies the file.
    """

    def __init__(
        self, files: Sequence[Path], verifier: Verifier | None, mirror: Mirror
    ) -> None:
        self._files, self._verifier, self._mirror = files, verifier, mirror
        self._arrays: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> np.ndarray:
        if self._verifier:
            self._verifier.require_whole()
        if index not in self._arrays:
            file = self._files[index]
            self._mirror.pull_file(file.parent.parent, file)
            if self._verifier:
                self._verifier.add(file)
            mapped = np.load(file, mmap_mode="r")
            self._arrays[index] = np.asarray(mapped)  # whose indexing is faster
        return self._arrays[index]


def open_corpus(
    folder: Path,
    names: Sequence[str] = SIDES,
    *,
    verifier: Verifier | None = None,
    mirror: Mirror = LOCAL,
) -> TokenizedCorpus:
    """Open two sides that a `ShardWriter` wrote, by `names`.

    Checksums are verified by the `verifier` alone. A missing file of ids is downloaded
    from the `mirror` when it is first read.
    """
    count = len(json.loads((folder / _INDEX).read_text()))
    _allow_files(count * len(names))
    sides = []
    for name in names:
        stems = [folder / f"{number:05}.{name}" for number in range(count)]
        found, edges = _offsets([Path(f"{stem}.lengths.npy") for stem in stems])
        # A shard without ids has no sequence that is looked up in it.
        sizes = np.diff(edges, prepend=0)
        files = [
            Path(f"{stem}.npy") for stem, size in zip(stems, sizes, strict=True) if size
        ]
        mapped = _Mapped(files, verifier, mirror)
        sides.append(Ragged(mapped, found, offsets(sizes[sizes > 0])))
    return TokenizedCorpus(*sides)


def _offsets(files: Sequence[Path]) -> tuple[np.ndarray, list[int]]:
    """Return the offsets of all sequences, by files of lengths; and each shard's end.

    Only one file is in memory at a time.
    """
    counts = [len(np.load(file, mmap_mode="r")) for file in files]
    found, first, ends = np.zeros(sum(counts) + 1, np.int64), 1, []
    for file, count in zip(files, counts, strict=True):
        own = found[first : first + count]
        np.cumsum(np.load(file), out=own)
        own += found[first - 1]
        first += count
        ends.append(int(found[first - 1]))
    return found, ends


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files by `count`, if the system permits."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 1024) + count
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
