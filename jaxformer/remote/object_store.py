"""Requests to object stores: s3://BUCKET/PATH and gs://BUCKET/PATH, by fsspec."""

import contextlib
import errno
import logging
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import xxhash

from jaxformer.system.errors import DamagedError, InputError, LostConnectionError
from jaxformer.system.files import CHECKSUMS, cache_folder

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

log = logging.getLogger(__name__)

Found = TypeVar("Found")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
_DELAYS = (1, 2, 4, 8, 16, 32)  # seconds before a request is repeated
BLOCK = 2**22  # bytes that are read at a time
_DAY = 24 * 3600  # seconds
# Names of classes of botocore, aiohttp and google.auth. Those of a lost connection:
_LOST = {
    "HTTPClientError", "ClientConnectionError", "ClientPayloadError", "TransportError",
    "IncompleteReadError", "ResponseParserError", "ConnectionError", "TimeoutError",
}  # fmt: skip
# ChecksumError is ours and gcsfs's.
_DAMAGED = {"ChecksumError", "FlexibleChecksumError"}
_READINGS = 3  # after which data that arrives damaged counts as damaged in the store
_BUSY = (errno.EBUSY, errno.EIO)  # of s3fs: the store asks to try again


@cache
def file_system(scheme: str) -> "AbstractFileSystem":
    """Return fsspec's file system of "s3" or "gs". Raises InputError without it."""
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
    is_busy = isinstance(error, OSError) and error.errno in _BUSY
    return _has_name(error, _LOST | _DAMAGED) or has_status or is_busy


def _has_name(error: Exception, names: set[str]) -> bool:
    """Whether the class of an exception, or a base of it, has one of the names."""
    return not names.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def request(
    url: str, action: Callable[..., Found], *given: object, **named: object
) -> Found:
    """Call a function of fsspec; repeat it while the connection is lost.

    Data that arrives damaged is read _READINGS times. Raises FileNotFoundError and
    FileExistsError, LostConnectionError, DamagedError, and InputError for other
    failures.
    """
    for number, delay in enumerate((*_DELAYS, None), start=1):
        try:
            return action(*given, **named)
        except (FileNotFoundError, FileExistsError, InputError):
            raise
        except Exception as error:  # the packages have many
            if _has_name(error, _DAMAGED) and number >= _READINGS:
                raise DamagedError(
                    f"{url} is damaged: it does not have its checksum, read "
                    f"{_READINGS} times; put a copy back"
                ) from None
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


class ChecksumError(Exception):
    """Data does not have the checksum that it was published with."""


class Store:
    """The requests for the files below a URL. Names are relative to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files = file_system(url.partition(":")[0])

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
        """Download a file. Raises DamagedError if it does not have the XXH3-128."""

        def download() -> None:
            if not digest:  # a store verifies whole files, and no parts
                partial.write_bytes(self.files.cat_file(self.at(name)))
                return
            found = xxhash.xxh3_128()
            given = self.files.open(self.at(name), "rb")
            with given, partial.open("wb") as taken:
                while block := given.read(BLOCK):
                    found.update(block)
                    taken.write(block)
            if found.hexdigest() != digest:
                raise ChecksumError(f"it does not have its checksum in {CHECKSUMS}")

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
