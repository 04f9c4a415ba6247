"""Folders that several machines use: on a file system, or on an object store."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxformer.remote.object_store import Store, together
from jaxformer.system.files import entries, url_of
from jaxformer.text.locations import open_bytes


class SharedFolder:
    """A flat folder whose files appear complete.

    `path` is one that all machines have, or a URL.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _store(self) -> Store | None:
        url = url_of(self.path)
        return Store(url) if url else None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """Yield a folder for files that are in this one after the block."""
        if not (store := self._store()):
            self.path.mkdir(exist_ok=True)
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="jaxformer-shard-") as name:
            yield Path(name)
            together([(store.put, file, file.name) for file in Path(name).iterdir()])

    def names(self) -> list[str]:
        """Return the names of its files, sorted; none if it does not exist."""
        if store := self._store():
            return store.names()
        return [path.name for path in entries(self.path, "[!.]*")]

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        if store := self._store():
            return store.read(name)
        return (self.path / name).read_bytes()

    def read_array(self, name: str, start: int, end: int) -> np.ndarray:
        """Return array[start:end] of a file of NumPy that holds one array [n]."""
        with open_bytes(self.path / name) as file:
            np.lib.format.read_magic(file)
            _, _, dtype = np.lib.format.read_array_header_1_0(file)
            file.seek(start * dtype.itemsize, 1)
            content = file.read((end - start) * dtype.itemsize)
        return np.frombuffer(content, dtype)

    def add(self, file: Path) -> None:
        """Upload a file of this machine, if this folder is on a store."""
        if store := self._store():
            store.put(file, file.name)

    def fetched(self, folder: Path) -> Path:
        """Return a local folder with these files: `folder` if they are on a store."""
        if not (store := self._store()):
            self.path.mkdir(exist_ok=True)
            return self.path
        folder.mkdir(exist_ok=True)
        missing = [name for name in self.names() if not (folder / name).exists()]
        together([(store.get, name, folder / name) for name in missing])
        return folder

    def remove(self, name: str) -> None:
        """Remove a file."""
        if store := self._store():
            store.remove(name)
        else:
            (self.path / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Remove the folder."""
        if store := self._store():
            together([(store.remove, name) for name in store.names()])
        else:
            shutil.rmtree(self.path, ignore_errors=True)
