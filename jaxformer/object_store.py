"""Run folders and text on object stores: s3://BUCKET/PATH and gs://BUCKET/PATH.

A run folder there has a copy on this machine, in the user's cache folder, with which
all code works. `local_copy` makes it; what it lacks is fetched when it is needed, and
what is written is published:

- A folder with checksums, such as a checkpoint, is published file by file, and the
  checksums last. Without them it does not exist for readers. To remove it, they are
  removed first.
- Other files are small; each is replaced by one request.

`pathlib` writes s3://BUCKET as s3:/BUCKET, which all functions here accept.
"""

import contextlib
import glob
import json
import logging
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import xxhash
from filelock import FileLock, Timeout

from jaxformer.errors import InputError
from jaxformer.files import CHECKSUMS, url_of, write_atomically

log = logging.getLogger(__name__)

_PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
LOCK = ".lock"
_PULL = ".refresh.lock"
_BEAT = 10.0  # seconds between two signs of life of an owner
_DELAYS = (1, 2, 4, 8, 16, 32)  # seconds before a request is repeated
_BLOCK = 2**22  # bytes that are read at a time


def shown(path: Path | str) -> str:
    """Return a path as it is written."""
    return url_of(path) or str(path)


@cache
def _file_system(scheme: str) -> Any:
    try:
        import fsspec

        # Listings change while a run is written.
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError:
        package = _PACKAGES[scheme]
        raise InputError(
            f"{scheme}:// needs the package {package}; run pip install {package}"
        ) from None


def _request(url: str, action: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a function of fsspec; repeat it while the connection is lost.

    Raises FileNotFoundError and FileExistsError, and InputError for other failures.
    """
    for delay in (*_DELAYS, None):
        try:
            return action(*given, **named)
        except (FileNotFoundError, FileExistsError, InputError):
            raise
        except Exception as error:  # the packages have many for a lost connection
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            if isinstance(error, PermissionError) or delay is None:
                raise InputError(
                    f"{url}: {reason}; check the connection, the bucket and the "
                    "credentials, then repeat the command"
                ) from None
            log.warning("%s: %s; trying again in %s s", url, reason, delay)
            time.sleep(delay)
    raise AssertionError


class _Store:
    """The requests for the files below a URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files = _file_system(url.partition(":")[0])

    def _at(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files below a folder, relative to the URL."""
        where = self._at(folder)
        try:
            found = _request(where, self.files.find, where)
        except FileNotFoundError:
            raise InputError(f"{where}: there is no such bucket; make it") from None
        start = len(self.files._strip_protocol(self.url)) + 1
        return sorted(name[start:] for name in found if name[start:])

    def read(self, name: str) -> bytes:
        return _request(self._at(name), self.files.cat_file, self._at(name))

    def write(self, name: str, content: bytes) -> None:
        _request(self._at(name), self.files.pipe_file, self._at(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists; whether it was written."""
        pipe = self.files.pipe_file
        # Some stores that call themselves compatible overlook mode="create".
        if _request(self._at(name), self.files.exists, self._at(name)):
            return False
        try:
            _request(self._at(name), pipe, self._at(name), content, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                _request(self._at(name), self.files.rm_file, self._at(name))

    def put(self, file: Path, name: str) -> None:
        _request(self._at(name), self.files.put_file, str(file), self._at(name))

    def get(self, name: str, file: Path, digest: str = "") -> None:
        """Download a file. Raises InputError if it does not have the XXH3-128."""

        def download() -> None:
            found = xxhash.xxh3_128()
            with (
                self.files.open(self._at(name), "rb") as given,
                partial.open("wb") as taken,
            ):
                while block := given.read(_BLOCK):
                    found.update(block)
                    taken.write(block)
            if digest and found.hexdigest() != digest:
                raise InputError(
                    f"{self._at(name)} is damaged: it does not have its checksum in "
                    f"{CHECKSUMS}; put a copy back"
                )

        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
        try:
            _request(self._at(name), download)
            os.replace(partial, file)
        finally:
            partial.unlink(missing_ok=True)


def open_bytes(path: Path) -> Any:
    """Open a file of this machine or of an object store to read its bytes."""
    if not (url := url_of(path)):
        return path.open("rb")
    store = _Store(url)
    return _request(url, store.files.open, url, "rb", block_size=_BLOCK)


def find_files(pattern: str) -> list[Path]:
    """Return the file of that name, or the files that match the glob, sorted."""
    if not (url := url_of(pattern)):
        path = Path(pattern).expanduser()
        found = [path] if path.is_file() else glob.glob(str(path), recursive=True)
        return sorted(map(Path, found))
    store = _Store(url)
    if _request(url, store.files.isfile, url):
        return [Path(url)]
    scheme = url.partition(":")[0]
    found = _request(url, store.files.glob, url, detail=True)
    names = [name for name, info in found.items() if info["type"] == "file"]
    return sorted(Path(f"{scheme}://{name}") for name in names)


def size_and_time(path: Path) -> tuple[int, int | str]:
    """Return a file's bytes, and when it was written or what it is."""
    if not (url := url_of(path)):
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    info = _request(url, _Store(url).files.info, url)
    return info["size"], str(info.get("ETag") or info.get("etag"))


class _Copy:
    """The copy of a run folder on this machine."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.store = path, _Store(url)
        self._published: dict[str, tuple[int, int]] = {}  # size and time by name
        self._token: str | None = None  # the content of this process's lock
        self._is_lost = False

    @property
    def is_owned(self) -> bool:
        """Whether this process owns the run."""
        return self._token is not None

    def require_owned(self) -> None:
        """Raise InputError if another process has taken the run over."""
        if self._is_lost:
            raise InputError(
                f"{self.store.url} was taken over by {self._owner()}, because this "
                "process could not renew its lock; what it wrote since is not published"
            )

    def _lock(self) -> dict[str, Any]:
        """Return the content of the lock, {} without one."""
        try:
            return dict(json.loads(self.store.read(LOCK)))
        except (FileNotFoundError, ValueError, TypeError):
            return {}

    def _owner(self) -> str:
        return self._lock().get("owner", "another process")

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the lock in the store in the block. Raises InputError."""
        since = f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}"
        owner = f"process {os.getpid()} on {socket.gethostname()} since {since}"
        name = uuid.uuid4().hex

        def sign(beat: int) -> bytes:
            return json.dumps({"owner": owner, "name": name, "beat": beat}).encode()

        if not self.store.create(LOCK, sign(0)):
            self._take_over(sign(0))
        self._is_lost, end = False, threading.Event()

        def renew() -> None:
            for beat in range(1, 2**63):
                if end.wait(_BEAT):
                    return
                with contextlib.suppress(InputError):  # it is offline
                    self._is_lost = self._lock().get("name") != name
                    if self._is_lost:
                        return
                    self.store.write(LOCK, sign(beat))

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        self._token = name
        try:
            yield
        finally:
            self._token = None
            end.set()
            thread.join()
            if not self._is_lost:
                self.store.remove(LOCK)

    def _take_over(self, sign: bytes) -> None:
        """Replace the lock of a process that was killed. Raises InputError."""
        before = self._lock()
        log.info("%s: finding out whether its owner is alive", self.store.url)
        time.sleep(3 * _BEAT)
        if self._lock() == before:
            self.store.remove(LOCK)
        if not self.store.create(LOCK, sign):
            raise InputError(
                f"{self.store.url} is in use by {self._owner()}; wait until it ends, "
                "or use another folder"
            )

    def name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def refresh(self) -> None:
        """Make small files those of the store, and note which large ones it has."""
        names = self.store.names()
        small = {name for name in names if "/" not in name and name != LOCK}
        sealed = {
            name.removesuffix(f"/{CHECKSUMS}")
            for name in names
            if name.endswith(f"/{CHECKSUMS}")
        }
        for file in self.path.iterdir():
            if file.is_file() and file.name not in {*small, LOCK, _PULL}:
                file.unlink()
        for name in small:
            self.store.get(name, self.path / name)
        for sums in [*self.path.rglob(CHECKSUMS)]:
            if self.name(sums.parent) not in sealed:
                shutil.rmtree(sums.parent)
        for name in sealed:
            sums, text = self.path / name / CHECKSUMS, b""
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                text = self.store.read(f"{name}/{CHECKSUMS}")
            if text and not (sums.exists() and sums.read_bytes() == text):
                shutil.rmtree(sums.parent, ignore_errors=True)
                sums.parent.mkdir(parents=True)
                write_atomically(sums, text)

    def fetch(self, folder: Path, wanted: Callable[[str], bool]) -> None:
        """Download the files of a folder that are `wanted` and not here.

        If the store has it no longer, it is removed here too.
        """
        if not (folder / CHECKSUMS).exists():
            return
        lines = (folder / CHECKSUMS).read_text().splitlines()
        missing = [
            (self.store.get, f"{self.name(folder)}/{line[34:]}", file, line[:32])
            for line in lines
            if wanted(line[34:]) and not (file := folder / line[34:]).exists()
        ]
        try:
            _together(missing)
        except FileNotFoundError as error:
            self.refresh()
            if (folder / CHECKSUMS).exists():
                raise InputError(
                    f"{self.store.url}/{self.name(folder)} lacks a file ({error}); put "
                    "a copy back"
                ) from None

    def publish(self, folder: Path) -> None:
        """Upload a folder with checksums, and before it the small files."""
        self.publish_small()
        name, sums = self.name(folder), (folder / CHECKSUMS).read_bytes()
        with contextlib.suppress(FileNotFoundError):
            if self.store.read(f"{name}/{CHECKSUMS}") == sums:
                return
        self.withdraw(folder)
        own = [line[34:] for line in sums.decode().splitlines()]
        _together([(self.store.put, folder / each, f"{name}/{each}") for each in own])
        self.store.write(f"{name}/{CHECKSUMS}", sums)

    def publish_small(self) -> None:
        """Upload the other files, if they changed."""
        folders = (self.path / name for name in ("", "tensorboard"))
        for file in [file for folder in folders for file in folder.glob("[!.]*")]:
            stat, name = file.stat(), self.name(file)
            found = stat.st_size, stat.st_mtime_ns
            if file.is_file() and self._published.get(name) != found:
                self.store.write(name, file.read_bytes())
                self._published[name] = found

    def withdraw(self, folder: Path) -> None:
        """Remove a folder from the store, its checksums first."""
        name = self.name(folder)
        self.store.remove(f"{name}/{CHECKSUMS}")
        _together([(self.store.remove, each) for each in self.store.names(name)])


def _together(calls: list[tuple]) -> None:
    """Make calls (function, *arguments) in a few threads. Raises as they do."""
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(*call) for call in calls]:
            future.result()


_copies: dict[Path, _Copy] = {}


def _copy_of(path: Path) -> _Copy | None:
    """Return the copy that a path is in, None for any other path."""
    return next((_copies[each] for each in path.parents if each in _copies), None)


def local_copy(path: Path) -> Path:
    """Return the copy of a run folder on an object store; any other path as it is.

    The copy has the newest small files, unless a process of this machine writes the
    run. Raises InputError if the store cannot be used.
    """
    if not (url := url_of(path)):
        return path
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(caches, "jaxformer", "runs", *url.split("://"))
    folder.mkdir(parents=True, exist_ok=True)
    copy = _copies.setdefault(folder, _Copy(folder, url))
    if not copy.is_owned:
        # The owner, if there is one, is ahead of the store.
        is_free = contextlib.suppress(Timeout)
        with FileLock(folder / _PULL), is_free, FileLock(folder / LOCK, timeout=0):
            copy.refresh()
    return folder


def fetch(folder: Path, *, leave_out: re.Pattern | None = None) -> None:
    """Download what a folder with checksums lacks, if it is in a copy.

    Raises InputError for a file without its checksum. The names that `leave_out`
    matches are left to `fetch_file`.
    """
    copy = _copy_of(folder)
    if copy:
        copy.fetch(folder, lambda name: not (leave_out and leave_out.fullmatch(name)))


def fetch_file(folder: Path, file: Path) -> None:
    """Download one file of such a folder if it is missing."""
    copy = _copy_of(folder)
    if copy and not file.exists():
        copy.fetch(folder, lambda name: folder / name == file)


def publish(folder: Path) -> None:
    """Upload a folder with checksums, if it is in a copy and new."""
    if copy := _copy_of(folder):
        copy.require_owned()
        copy.publish(folder)


def withdraw(folder: Path) -> None:
    """Remove a folder with checksums from the store, if it is in a copy."""
    if copy := _copy_of(folder):
        copy.require_owned()
        copy.withdraw(folder)


@contextlib.contextmanager
def owned_remotely(folder: Path) -> Iterator[None]:
    """Own a run folder on its object store in the block, if it is a copy.

    The owner renews its lock all the time. A lock that is not renewed for a while
    belongs to a process that was killed, and is taken over. Small files are published
    when the block ends. Raises InputError that names the owner, if there is one.
    """
    copy = _copies.get(folder)
    if copy is None or copy.is_owned:
        yield
        return
    with copy.owned():
        try:
            copy.refresh()
            yield
        finally:
            copy.require_owned()
            copy.publish_small()
