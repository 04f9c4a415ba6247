"""Files and folders that appear whole or not at all, and checksums of a folder."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from jaxformer.errors import InputError

CHECKSUMS = "SHA256SUMS"  # a file that `sha256sum -c` reads


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the file at `path` by `content`, text as UTF-8; never leaves half of it.

    Raises OSError as `Path.write_bytes` does.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes `path` when the block ends.

    An exception in the block leaves nothing behind. Raises InputError if `path` exists
    and is not an empty folder, or if it cannot be made.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} exists already; choose a new folder, or remove it")
    partial = path.with_name(f".{path.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); choose another folder"
        ) from error
    try:
        yield partial
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # already gone if all went well


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files in and under a folder to its SHA256SUMS."""
    write_atomically(folder / CHECKSUMS, _checksum_text(_digests(folder)))


def verify_checksums(folder: Path) -> str:
    """Return "" if a folder is as `write_checksums` found it, else what differs.

    That is the first file that is missing, added or changed, by its name in `folder`.
    """
    try:
        text = (folder / CHECKSUMS).read_bytes().decode()
        found = _digests(folder)
    except (OSError, ValueError) as error:
        return f"a file cannot be read ({error})"
    if text == _checksum_text(found):
        return ""
    written = {line[66:]: line[:66] for line in text.splitlines()}
    for name in sorted({*written, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in written:
            return f"{name} is not in {CHECKSUMS}"
        if written[name] != f"{found[name]}  ":
            return f"{name} does not have its checksum"
    return f"{CHECKSUMS} is damaged"


def _checksum_text(digests: dict[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file by its name in the folder, sorted; reads 1 GB a second."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]

    def digest(path: Path) -> str:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        digests = dict(zip(names, pool.map(digest, files), strict=True))
    digests.pop(CHECKSUMS, None)
    return digests
