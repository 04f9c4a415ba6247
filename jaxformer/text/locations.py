"""Files of text on this machine or on an object store.

`pathlib` writes s3://BUCKET as s3:/BUCKET, which all functions here accept.
"""

import errno
import glob
import io
import os
from collections.abc import Iterator, Sequence
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
    """Return the file of that name, or the files that match the glob, sorted."""
    if not (url := url_of(pattern)):
        path = Path(os.path.expanduser(pattern))  # unlike Path.expanduser: no error
        if path.is_file():
            return [path]
        found = _matching(Path(path.anchor), path.relative_to(path.anchor).parts)
        return sorted({path for path in found if path.is_file()})
    scheme = url.partition(":")[0]
    store = file_system(scheme)
    if request(url, store.isfile, url):
        return [Path(url)]
    found = request(url, store.glob, url, detail=True)
    names = [name for name, info in found.items() if info["type"] == "file"]
    return sorted(Path(f"{scheme}://{name}") for name in names)


def _matching(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the paths below a folder that match the `parts` of a glob.

    The syntax is `glob.glob`'s. Raises OSError for a folder that cannot be listed,
    which `glob.glob` skips: text would be missing.
    """
    if not parts:
        yield folder
        return
    part, *rest = parts
    if glob.escape(part) == part:
        yield from _matching(folder / part, rest)
        return
    is_deep = part == "**"
    if is_deep:
        yield from _matching(folder, rest)
    for path in entries(folder, part) if folder.is_dir() else []:
        if path.name.startswith(".") and not part.startswith("."):
            continue
        if not is_deep or not rest:
            yield from _matching(path, rest)
        if is_deep and path.is_dir() and not path.is_symlink():
            yield from _matching(path, parts)


def size_and_time(path: Path) -> tuple[int, int | str]:
    """Return a file's size in bytes, and its time of change or, in a store, ETag."""
    if not (url := url_of(path)):
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    info = request(url, file_system(url.partition(":")[0]).info, url)
    return info["size"], str(info.get("ETag") or info.get("etag"))
