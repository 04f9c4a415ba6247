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
from jaxformer.remote.object_store import Store, is_safe, together
from jaxformer.system.errors import DamagedError, printable
from jaxformer.system.files import CHECKSUMS, cache_folder, entries, write_atomically
from jaxformer.system.mirror import Mirror

_REFRESHING = ".refresh.lock"
_PUBLISHED = ".published"  # names of folders and files that the store has had


class RunCopy(Mirror):
    """The copy of a run folder on this machine."""

    is_remote = True

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
        checkpoints = entries(self.path / "checkpoints", "[0-9]*")
        folders = [self.path / "corpus", *checkpoints]
        return [sums for each in folders if (sums := each / CHECKSUMS).exists()]

    def _published(self) -> set[str]:
        try:
            return {*json.loads((self.path / _PUBLISHED).read_bytes())}
        except (FileNotFoundError, ValueError, TypeError):
            return set()

    def pull(self, folder: Path, *, leave_out: re.Pattern | None = None) -> None:
        """Download the missing files of a folder, except names that match.

        A folder that the store lacks is removed here too. Raises InputError for a file
        without its checksum.
        """
        self._pull(folder, lambda name: not (leave_out and leave_out.fullmatch(name)))

    def pull_file(self, folder: Path, file: Path) -> None:
        """Download one file of a folder if it is missing."""
        if not file.exists():
            self._pull(folder, lambda name: folder / name == file)

    def _pull(self, folder: Path, wanted: Callable[[str], bool]) -> None:
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
        self.pull(folder)

    # To the store --------------------------------------------------------------

    def push(self, folder: Path) -> None:
        """Upload a folder with checksums, and before it the small files.

        What workers of Beam have written beside a corpus is removed.
        """
        self.lock.require_held()
        self.push_small()
        name, sums = self.name(folder), (folder / CHECKSUMS).read_bytes()
        if name == "corpus":
            self._remove_all(".corpus.partial")
        with contextlib.suppress(FileNotFoundError):
            if self.store.read(f"{name}/{CHECKSUMS}") == sums:
                return
        self.remove(folder)
        own = [line[34:] for line in sums.decode().splitlines()]
        together([(self.store.put, folder / each, f"{name}/{each}") for each in own])
        self.lock.require_held()
        self.store.write(f"{name}/{CHECKSUMS}", sums)
        self._note(name)

    def push_all(self) -> None:
        """Upload complete folders that a stop left unpublished."""
        published = self._published()
        for sums in self._sums():
            if self.name(sums.parent) not in published:
                self.push(sums.parent)

    def push_small(self) -> None:
        """Upload the other files, if they changed."""
        folders = (self.path / name for name in ("", "tensorboard"))
        for file in [each for folder in folders for each in entries(folder, "[!.]*")]:
            stat, name = file.stat(), self.name(file)
            found = stat.st_size, stat.st_mtime_ns
            if file.is_file() and self._sent.get(name) != found:
                self.store.write(name, file.read_bytes())
                self._sent[name] = found
                self._note(name)

    def remove(self, folder: Path) -> None:
        """Remove a folder from the store, its checksums first."""
        self.lock.require_held()
        name = self.name(folder)
        self.store.remove(f"{name}/{CHECKSUMS}")
        self._remove_all(name)

    def _remove_all(self, name: str) -> None:
        together([(self.store.remove, each) for each in self.store.names(name)])

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the lock of the run folder on its store in the block.

        What is not published yet is published first, and small files when the block
        ends. Raises InputError that names the owner, if there is another one.
        """
        if self.lock.is_held:
            yield
            return
        with self.lock.held():
            self.refresh(is_owner=True)
            self.push_all()
            try:
                yield
            finally:
                self.lock.require_held()
                self.push_small()

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


_copies: dict[Path, RunCopy] = {}


def copy_of(url: str, process: int = 0) -> RunCopy:
    """Open the copy of a run folder on an object store, as new as the store.

    Each of several processes has a copy of its own. Raises InputError if the store
    cannot be used.
    """
    # One folder for each URL: runs/first may be a run, and so may runs.
    name = quote(url, safe="") + (f"@{process}" if process else "")
    folder = cache_folder("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    copy = _copies.setdefault(folder, RunCopy(folder, url, is_first=not process))
    if not copy.lock.is_held:
        copy.refresh()
    return copy


def copy_at(folder: Path) -> RunCopy | None:
    """Return the copy that is in a folder of this machine."""
    return _copies.get(folder)


def with_urls(text: str, escape: Callable[[str], str] = printable) -> str:
    """Replace the folders of copies in an escaped text by the URLs that users know."""
    for folder in sorted(_copies, reverse=True):  # before a name that it begins with
        text = text.replace(escape(str(folder)), escape(_copies[folder].store.url))
    return text
