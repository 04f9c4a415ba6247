"""Requests to object stores: s3://BUCKET/PATH and gs://BUCKET/PATH, by fsspec.

`pathlib` writes s3://BUCKET as s3:/BUCKET, which all functions here accept.
"""

import contextlib
import errno
import glob
import io
import logging
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from jaxformer.system.errors import InputError, LostConnectionError
from jaxformer.system.files import CHECKSUMS, cache_folder, url_of

log = logging.getLogger(__name__)

_PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
_DELAYS = (1, 2, 4, 8, 16, 32)  # seconds before a request is repeated
_BLOCK = 2**22  # bytes that are read at a time
_DAY = 24 * 3600  # seconds
# Names of classes of botocore, aiohttp and google.auth. Those of a lost connection:
_LOST = {
    "HTTPClientError", "ClientConnectionError", "ClientPayloadError", "TransportError",
    "IncompleteReadError", "ResponseParserError", "ConnectionError", "TimeoutError",
}  # fmt: skip
_BUSY = (errno.EBUSY, errno.EIO)  # of s3fs: the store asks to try again


class DamagedError(InputError):
    """A file of a store is missing or does not have its checksum."""


def file_name(path: Path | str) -> str:
    """Return a path as users write it, with both slashes of a URL."""
    return url_of(path) or str(path)


@cache
def _file_system(scheme: str) -> Any:
    # The other class of gcsfs is new, and no emulator has its service.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    try:
        import fsspec

        # Listings change while a run is written. s3fs compares uploads without asking.
        checked = {"consistency": "md5"} if scheme == "gs" else {}
        return fsspec.filesystem(scheme, use_listings_cache=False, **checked)
    except ImportError:
        package = _PACKAGES[scheme]
        raise InputError(
            f"{scheme}:// needs the package {package}; run pip install {package}"
        ) from None


def _is_temporary(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    status = getattr(error, "code", None)  # gcsfs's HttpError
    has_status = isinstance(status, int) and (status >= 500 or status in (408, 429))
    names = {kind.__name__ for kind in type(error).__mro__}
    is_busy = isinstance(error, OSError) and error.errno in _BUSY
    return bool(_LOST & names) or has_status or is_busy


def request(url: str, action: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a function of fsspec; repeat it while the connection is lost.

    Raises FileNotFoundError and FileExistsError, LostConnectionError, and InputError
    for other failures.
    """
    for delay in (*_DELAYS, None):
        try:
            return action(*given, **named)
        except (FileNotFoundError, FileExistsError, InputError):
            raise
        except Exception as error:  # the packages have many
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            if delay is None or not _is_temporary(error):
                kind = LostConnectionError if _is_temporary(error) else InputError
                raise kind(
                    f"{url}: {reason}; check the connection, the bucket and the "
                    "credentials, then repeat the command"
                ) from None
            log.warning("%s: %s; trying again in %s s", url, reason, delay)
            time.sleep(delay)
    raise AssertionError


class Store:
    """The requests for the files below a URL. Names are relative to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files = _file_system(url.partition(":")[0])

    def at(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files below a folder."""
        where = self.at(folder).rstrip("/")
        try:
            found = request(where, self.files.find, where)
        except FileNotFoundError:
            raise InputError(f"{where}: there is no such bucket; make it") from None
        start = self.files._strip_protocol(self.url) + "/"
        names = [name.removeprefix(start) for name in found if name.startswith(start)]
        own = f"{folder}/" if folder else ""
        return sorted(name for name in names if name.startswith(own) and is_safe(name))

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return request(self.at(name), self.files.cat_file, self.at(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a file, by one request."""
        request(self.at(name), self.files.pipe_file, self.at(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists; return whether it was written."""
        url, pipe = self.at(name), self.files.pipe_file
        # Some stores that call themselves compatible ignore mode="create".
        if request(url, self.files.exists, url):
            return False
        try:
            request(url, pipe, url, content, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            request(self.at(name), self.files.rm_file, self.at(name))

    def put(self, file: Path, name: str) -> None:
        """Upload a file."""
        request(self.at(name), self.files.put_file, str(file), self.at(name))

    def get(self, name: str, file: Path, digest: str = "") -> None:
        """Download a file. Raises InputError if it does not have the XXH3-128."""

        def download() -> None:
            found = xxhash.xxh3_128()
            given = self.files.open(self.at(name), "rb")
            with given, partial.open("wb") as taken:
                while block := given.read(_BLOCK):
                    found.update(block)
                    taken.write(block)
            if digest and found.hexdigest() != digest:
                raise DamagedError(
                    f"{self.at(name)} is damaged: it does not have its checksum in "
                    f"{CHECKSUMS}; put a copy back"
                )

        # Outside of the folder, which a kill would leave with a file too many.
        partial = _downloads() / uuid.uuid4().hex
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            request(self.at(name), download)
            os.replace(partial, file)
        finally:
            partial.unlink(missing_ok=True)


@cache
def _downloads() -> Path:
    """Return the folder of unfinished downloads, without those of killed processes."""
    folder = cache_folder("downloads")
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > _DAY:
                file.unlink()
    return folder


def together(calls: list[tuple]) -> None:
    """Make calls (function, *arguments) in a few threads. Raises as the first does."""
    pool = ThreadPoolExecutor(8)
    try:
        for future in [pool.submit(*call) for call in calls]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def is_safe(name: str) -> bool:
    """Whether a name stays within its folder."""
    return not {"", ".", ".."} & {*name.split("/")} and "\\" not in name


class _Reader(io.RawIOBase):
    """An open file of a store that is read on after a lost connection."""

    def __init__(self, url: str, file: Any) -> None:
        # The finaliser of RawIOBase calls `close`, so that this must not fail.
        self._url, self._file = url, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        found = request(self._url, self._file.read, len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_bytes(path: Path) -> BinaryIO:
    """Open a file of this machine or of an object store to read its bytes."""
    if not (url := url_of(path)):
        return path.open("rb")
    store = _file_system(url.partition(":")[0])
    try:
        file = request(url, store.open, url, "rb", block_size=_BLOCK)
    except FileNotFoundError:
        reason = os.strerror(errno.ENOENT)
        raise FileNotFoundError(errno.ENOENT, reason, url) from None
    return io.BufferedReader(_Reader(url, file), _BLOCK)


def find_files(pattern: str) -> list[Path]:
    """Return the file of that name, or the files that match the glob, sorted."""
    if not (url := url_of(pattern)):
        path = Path(os.path.expanduser(pattern))  # unlike Path.expanduser: no error
        found = [path] if path.is_file() else glob.glob(str(path), recursive=True)
        return sorted(map(Path, found))
    scheme = url.partition(":")[0]
    store = _file_system(scheme)
    if request(url, store.isfile, url):
        return [Path(url)]
    found = request(url, store.glob, url, detail=True)
    names = [name for name, info in found.items() if info["type"] == "file"]
    return sorted(Path(f"{scheme}://{name}") for name in names)


def size_and_time(path: Path) -> tuple[int, int | str]:
    """Return a file's size in bytes, and its time of change or, in a store, ETag."""
    if not (url := url_of(path)):
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    info = request(url, _file_system(url.partition(":")[0]).info, url)
    return info["size"], str(info.get("ETag") or info.get("etag"))
