"""Run folders on object stores, by a copy on this machine.

The copy is in the user's cache folder, and all code works with it. Two kinds of files:

- The corpus and each checkpoint are a folder with checksums. It is published file by
  file, and the checksums last. Without them it does not exist for readers. To remove
  it, they are removed first. A copy may have the checksums of a folder and lack files,
  which `fetch` downloads.
- Other files are small. Each is replaced by one request, before the checkpoint to
  which it belongs is published.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import xxhash
from filelock import FileLock, Timeout

from jaxformer.remote.lock import LOCK, RemoteLock
from jaxformer.remote.object_store import DamagedError, Store, is_safe, together
from jaxformer.system.files import CHECKSUMS, cache_folder, url_of, write_atomically

_REFRESHING = ".refresh.lock"
_PUBLISHED = ".published"  # names of folders and files that the store has had


class _Copy:
    """The copy of a run folder on this machine."""

    def __init__(self, path: Path, url: str, *, is_first: bool) -> None:
        self.path, self.store, self._is_first = path, Store(url), is_first
        self.lock = RemoteLock(self.store)
        self._sent: dict[str, tuple[int, int]] = {}  # sizes and times of small files

    def name(self, path: Path) -> str:
        """Return the name of a file of the copy."""
        return path.relative_to(self.path).as_posix()

    # From the store ------------------------------------------------------------

    def refresh(self, *, is_owner: bool = False) -> None:
        """Make the copy what the store has, unless it is ahead of the store.

        It is ahead if a stop came before its newest checkpoint, or its corpus, was
        published. Nothing happens while a process of this machine owns the run, unless
        that is this one.
        """
        with FileLock(self.path / _REFRESHING):
            if not is_owner:
                try:
                    with FileLock(self.path / LOCK, timeout=0):
                        pass
                except Timeout:
                    return
            self._refresh()

    def _refresh(self) -> None:
        names, published = self.store.names(), self._published()
        end = f"/{CHECKSUMS}"
        there = {name.removesuffix(end) for name in names if _is_sums(name)}
        here = {self.name(sums.parent) for sums in self._sums()}
        new = here - there - published
        is_ahead = max(map(_age, new), default=-2) > max(map(_age, there), default=-2)
        is_overtaken = bool(there - published - here)  # by another machine
        is_deleted = "config.json" in published and "config.json" not in names
        is_ahead = is_ahead and not (is_overtaken or is_deleted)
        if is_ahead and self._is_first:  # others publish nothing
            return
        for name in here - there:
            _remove(self.path / name)
        small = {name for name in names if "/" not in name and name != LOCK}
        for name in published - there - small:
            if "/" not in name and (self.path / name).is_file():
                (self.path / name).unlink()
        for name in small:
            self.store.get(name, self.path / name)
        for name in there:
            sums, text = self.path / name / CHECKSUMS, b""
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                text = self.store.read(name + end)
            if text and not (sums.exists() and sums.read_bytes() == text):
                _remove(sums.parent)
                sums.parent.mkdir(parents=True)
                write_atomically(sums, text)
        write_atomically(self.path / _PUBLISHED, json.dumps([*there, *small]))

    def _sums(self) -> list[Path]:
        """Return the checksums of the complete folders."""
        folders = [self.path / "corpus", *(self.path / "checkpoints").glob("[0-9]*")]
        return [sums for each in folders if (sums := each / CHECKSUMS).exists()]

    def _published(self) -> set[str]:
        try:
            return {*json.loads((self.path / _PUBLISHED).read_bytes())}
        except (OSError, ValueError, TypeError):
            return set()

    def fetch(self, folder: Path, wanted: Callable[[str], bool]) -> None:
        """Download the files of a folder that are `wanted` and not here.

        If the store has it no longer, it is removed here too.
        """
        try:
            lines = (folder / CHECKSUMS).read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            if not is_safe(line[34:]):
                raise DamagedError(
                    f"{self.store.at(self.name(folder))} is damaged: its {CHECKSUMS} "
                    f"names {line[34:]!r}"
                )
        missing = [
            (self.store.get, f"{self.name(folder)}/{line[34:]}", file, line[:32])
            for line in lines
            if wanted(line[34:]) and not (file := folder / line[34:]).exists()
        ]
        try:
            together(missing)
        except FileNotFoundError as error:
            self.refresh()
            if not (folder / CHECKSUMS).exists():
                _remove(folder)  # a thread made it again
                return
            raise DamagedError(
                f"{self.store.at(self.name(folder))} lacks a file ({error}); put a "
                "copy back"
            ) from None

    def repair(self, folder: Path) -> None:
        """Download the missing and damaged files of a folder."""
        with contextlib.suppress(FileNotFoundError):
            for line in (folder / CHECKSUMS).read_text().splitlines():
                content = (folder / line[34:]).read_bytes()
                if xxhash.xxh3_128_hexdigest(content) != line[:32]:
                    (folder / line[34:]).unlink()
        self.fetch(folder, lambda name: True)

    # To the store --------------------------------------------------------------

    def publish(self, folder: Path) -> None:
        """Upload a folder with checksums, and before it the small files."""
        self.lock.require_held()
        self.publish_small()
        name, sums = self.name(folder), (folder / CHECKSUMS).read_bytes()
        with contextlib.suppress(FileNotFoundError):
            if self.store.read(f"{name}/{CHECKSUMS}") == sums:
                return
        self.withdraw(folder)
        own = [line[34:] for line in sums.decode().splitlines()]
        together([(self.store.put, folder / each, f"{name}/{each}") for each in own])
        self.lock.require_held()
        self.store.write(f"{name}/{CHECKSUMS}", sums)
        self._note(name)

    def publish_all(self) -> None:
        """Upload complete folders that a stop left unpublished."""
        published = self._published()
        for sums in self._sums():
            if self.name(sums.parent) not in published:
                self.publish(sums.parent)

    def publish_small(self) -> None:
        """Upload the other files, if they changed."""
        folders = (self.path / name for name in ("", "tensorboard"))
        for file in [file for folder in folders for file in folder.glob("[!.]*")]:
            stat, name = file.stat(), self.name(file)
            found = stat.st_size, stat.st_mtime_ns
            if file.is_file() and self._sent.get(name) != found:
                self.store.write(name, file.read_bytes())
                self._sent[name] = found
                self._note(name)

    def withdraw(self, folder: Path) -> None:
        """Remove a folder from the store, its checksums first."""
        self.lock.require_held()
        name = self.name(folder)
        self.store.remove(f"{name}/{CHECKSUMS}")
        together([(self.store.remove, each) for each in self.store.names(name)])

    def _note(self, name: str) -> None:
        """Note that the store has a folder or file."""
        if name not in (published := self._published()):
            names = json.dumps(sorted({*published, name}))
            write_atomically(self.path / _PUBLISHED, names)


def _is_sums(name: str) -> bool:
    return bool(re.fullmatch(rf"(corpus|checkpoints/\d+)/{CHECKSUMS}", name))


def _remove(folder: Path) -> None:
    """Remove a folder by a rename, so that a kill leaves no part of it."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _age(name: str) -> int:
    """Return the step of a checkpoint, and -1 for the corpus."""
    step = name.rpartition("/")[2]
    return int(step) if step.isdecimal() else -1


_copies: dict[Path, _Copy] = {}


def _copy_of(path: Path) -> _Copy | None:
    """Return the copy that a path is or is in, None for any other path."""
    paths = (path, *path.parents)
    return next((_copies[each] for each in paths if each in _copies), None)


def local_copy(path: Path, process: int = 0) -> Path:
    """Return the copy of a run folder on an object store; any other path as it is.

    Each of several processes has a copy of its own. Raises InputError if the store
    cannot be used.
    """
    if not (url := url_of(path)):
        return path
    # One folder for each URL: runs/first may be a run, and so may runs.
    name = quote(url, safe="") + (f"@{process}" if process else "")
    folder = cache_folder("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    copy = _copies.setdefault(folder, _Copy(folder, url, is_first=not process))
    if not copy.lock.is_held:
        copy.refresh()
    return folder


def place_of(path: Path) -> str:
    """Return where a file of a run is for its user: a URL, if it is in a copy."""
    if path in _copies:
        return _copies[path].store.url
    copy = _copy_of(path)
    return copy.store.at(copy.name(path)) if copy else str(path)


def is_copied(path: Path) -> bool:
    """Whether a path is in a copy."""
    return _copy_of(path) is not None


def refresh(path: Path) -> None:
    """Update the copy that a path is in, if there is one, unless it is newer."""
    if copy := _copy_of(path):
        copy.refresh()


def fetch(folder: Path, *, leave_out: re.Pattern | None = None) -> None:
    """Download what a folder with checksums lacks, if it is in a copy.

    Raises InputError for a file without its checksum. The names that `leave_out`
    matches are left to `fetch_file`.
    """
    if copy := _copy_of(folder):
        copy.fetch(folder, lambda name: not (leave_out and leave_out.fullmatch(name)))


def fetch_file(folder: Path, file: Path) -> None:
    """Download one file of such a folder if it is missing."""
    copy = _copy_of(folder)
    if copy and not file.exists():
        copy.fetch(folder, lambda name: folder / name == file)


def repair(folder: Path) -> bool:
    """Download damaged files of a folder again; return False if it is in no copy."""
    copy = _copy_of(folder)
    if copy:
        copy.repair(folder)
    return copy is not None


def publish(folder: Path) -> None:
    """Upload a folder with checksums, if it is in a copy and new."""
    if copy := _copy_of(folder):
        copy.publish(folder)


def withdraw(folder: Path) -> None:
    """Remove a folder with checksums from the store, if it is in a copy."""
    if copy := _copy_of(folder):
        copy.withdraw(folder)


@contextlib.contextmanager
def owned_remotely(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder on its object store in the block, if it is a copy.

    What is not published yet is published first, and small files when the block ends.
    Raises InputError that names the owner, if there is another one.
    """
    copy = _copies.get(folder)
    if copy is None or copy.lock.is_held:
        yield
        return
    with copy.lock.held():
        copy.refresh(is_owner=True)
        copy.publish_all()
        try:
            yield
        finally:
            copy.lock.require_held()
            copy.publish_small()
