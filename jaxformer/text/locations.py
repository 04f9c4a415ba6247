"""Files of text on this machine or on an object store.

`pathlib` writes s3://BUCKET as s3:/BUCKET, which all functions here accept.
"""

import errno
import glob
import io
import os
from pathlib import Path
from typing import BinaryIO

from jaxformer.remote.object_store import BLOCK, file_system, request
from jaxformer.system.files import entries, url_of


class _Reader(io.RawIOBase):
    """An open file of a store that is read on after a lost connection."""

    def __init__(self, url: str, file: BinaryIO) -> None:
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

    def readinto(self, buffer: memoryview) -> int:
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
    store = file_system(url.partition(":")[0])
    try:
        file = request(url, store.open, url, "rb", block_size=BLOCK)
    except FileNotFoundError:
        reason = os.strerror(errno.ENOENT)
        raise FileNotFoundError(errno.ENOENT, reason, url) from None
    return io.BufferedReader(_Reader(url, file), BLOCK)


def find_files(pattern: str) -> list[Path]:
    """Return the file of that name, or the files that match the glob, sorted.

    Raises OSError for a folder that cannot be listed: text would be missing.
    """
    if not (url := url_of(pattern)):
        path = Path(os.path.expanduser(pattern))  # unlike Path.expanduser: no error
        if path.is_file():
            return [path]
        _require_listable(path)
        found = map(Path, glob.glob(str(path), recursive=True))
        return sorted({path for path in found if path.is_file()})
    scheme = url.partition(":")[0]
    store = file_system(scheme)
    if request(url, store.isfile, url):
        return [Path(url)]
    found = request(url, store.glob, url, detail=True)
    names = [name for name, info in found.items() if info["type"] == "file"]
    return sorted(Path(f"{scheme}://{name}") for name in names)


def _require_listable(path: Path) -> None:
    """Raise OSError for a folder that `glob.glob` skips since it cannot be listed."""
    for depth, part in enumerate(path.parts):
        if glob.has_magic(part):
            depth += part == "**"  # which stands for folders, to be listed themselves
            listed = str(Path(*path.parts[:depth]))
            for found in map(Path, glob.glob(listed, recursive=True)):
                if found.is_dir():
                    entries(found)


def size_and_time(path: Path) -> tuple[int, int | str]:
    """Return a file's size in bytes, and its time of change or, in a store, ETag."""
    if not (url := url_of(path)):
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    info = request(url, file_system(url.partition(":")[0]).info, url)
    return info["size"], str(info.get("ETag") or info.get("etag"))
