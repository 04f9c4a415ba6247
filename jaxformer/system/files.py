"""Files and folders: complete or absent, with one owner, and with checksums."""

import errno
import hashlib
import logging
import os
import queue
import re
import secrets
import shutil
import socket
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

import xxhash
from filelock import FileLock, Timeout

from jaxformer.system.errors import InputError, did_you_mean

logger = logging.getLogger(__name__)

CHECKSUMS = "XXH128SUMS"  # a file that `xxhsum -c` reads
GONE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)  # of a lost file
_URL = re.compile(r"([A-Za-z][A-Za-z0-9]+):/+")  # pathlib drops a slash of s3://
_LEFT_AGE = 60  # seconds; what is older, and nobody holds, is of a killed process
_LOCK_SECONDS = 0.5  # to wait for the lock, and for its owner's name
# Errors of a disk, and of a file system without locks.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


def cache_folder(name: str) -> Path:
    """Return a folder of that name in jaxformer's folder of the user's cache.

    Raises FileNotFoundError without a home folder, which users of containers may lack.
    """
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        said = "there is no home folder: set HOME or XDG_CACHE_HOME"
        raise FileNotFoundError(errno.ENOENT, said, "~/.cache") from None
    return Path(caches, "jaxformer", name).absolute()


def url_of(path: Path | str) -> str:
    """Return the URL that a path is, such as s3://BUCKET/x, "" for a local path.

    Raises InputError for a URL of another kind.
    """
    if not (found := _URL.match(str(path))):
        return ""
    if found[1] not in ("s3", "gs"):
        raise InputError(f"{path} is no path that is known: use s3:// or gs://")
    return f"{found[1]}://{str(path)[found.end() :].rstrip('/')}"


def file_name(path: Path | str) -> str:
    """Return a path as users write it, with both slashes of a URL."""
    return url_of(path) or str(path)


def near_path(path: Path, otherwise: str = "") -> str:
    """Return the hint of `did_you_mean` for a path with one wrong part."""
    known: list[str] = []
    with suppress(OSError, StopIteration):
        missing = next(p for p in (*reversed(path.parents), path) if not p.exists())
        rest = path.relative_to(missing)
        known = [str(p / rest) for p in entries(missing.parent) if (p / rest).exists()]
    return did_you_mean(str(path), known, otherwise)


def require_local(path: Path) -> None:
    """Raise InputError for a path on an object store."""
    if url := url_of(path):
        raise InputError(
            f"{url} is on an object store; write to a folder of this machine, and copy "
            "that to the store"
        )


def entries(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the paths in a folder that match a pattern, sorted; [] without a folder.

    Raises OSError if the folder cannot be listed, which `Path.glob` hides.
    """
    try:
        return sorted(p for p in folder.iterdir() if fnmatchcase(p.name, pattern))
    except FileNotFoundError:
        return []


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, sorted; OSError as `entries`."""
    found = []
    for path in entries(folder):
        if path.is_file():
            found.append(path)
        elif path.is_dir() and not path.is_symlink():
            found += files_below(path)
    return found


def links_among(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield links, pipes and devices among paths and in the folders among these.

    Raises OSError as `entries`.
    """
    for path in paths:
        with suppress(FileNotFoundError):  # removed meanwhile
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                yield from links_among(entries(path))
            elif not stat.S_ISREG(mode):
                yield path


def remove(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder with all in it, a file, or a link but nothing of its target.

    With `ignore_errors` a rest of a folder may stay.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a path in errors of the system, which names no file that it has open."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_atomically(path: Path, *content: str | bytes | memoryview) -> None:
    """Replace the file at `path` by `content`, text as UTF-8; never leaves half of it.

    Several parts of the content follow one another. All are on disk before the old file
    is gone. A symbolic link stays, and the file that it names is replaced. Raises
    OSError as `Path.write_bytes` does.
    """
    path = Path(os.path.realpath(path))
    # A name that no other process and no link has.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with naming(path), partial.open("xb") as file:
            for part in content:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def owned(folder: Path, lock_file: Path) -> Iterator[None]:
    """Own a folder in the block: of all processes that call this, one at a time does.

    The kernel releases the lock when the process ends, also after `kill -9`. Nested
    blocks of one process share the lock. A file system without locks is a warning in
    the log. What killed calls of `write_atomically` have left in the folder is removed.
    Raises InputError that names the owner, if another process is.
    """
    lock = FileLock(lock_file, fallback_to_soft=False, is_singleton=True)
    try:
        lock.acquire(timeout=_LOCK_SECONDS)
    except (Timeout, FileNotFoundError):  # or its owner has removed the folder
        is_known = lock_file.exists()
        owner = lock_file.read_text(errors="replace") if is_known else "another process"
        raise InputError(
            f"{folder} is in use by {owner}; wait until it ends, or use another folder"
        ) from None
    except OSError as error:
        # In a read-only folder a command that writes nothing can run.
        if error.errno not in _NO_LOCKS and os.access(lock_file.parent, os.W_OK):
            if isinstance(error, PermissionError):
                raise InputError(
                    f"{lock_file} belongs to another user, whose run this is; copy the "
                    "folder, or use another one"
                ) from None
            raise
        warning = "%s cannot be locked (%s): start no other command that writes into it"
        logger.warning(warning, folder, error.strerror)
    try:
        if lock.lock_counter == 1:  # of nested blocks the outermost one
            since = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %Z}"
            owner = f"process {os.getpid()} on {socket.gethostname()} since {since}"
            with naming(lock_file):
                lock_file.write_text(owner)
            for left in entries(folder, f".*.{'[0-9a-f]' * 8}.partial"):
                with suppress(OSError):  # a writer without this lock may be alive
                    if time.time() - left.stat().st_mtime > _LEFT_AGE:
                        left.unlink()
        yield
    finally:
        lock.release()


@contextmanager
def new_folder(path: Path, *, state: str = "") -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes `path` when the block ends.

    An exception in the block leaves nothing behind. But if the folder then has a file
    called `state`, it stays, and the next call yields it as it is; so does a folder
    that a killed process left. Raises InputError if `path` exists and is not an empty
    folder, for ".", a link and a mount point, which cannot be replaced, and if another
    process makes it; OSError if it cannot be made.
    """
    require_local(path)
    if path.name in ("", ".."):
        raise InputError(f"{path} cannot be replaced; choose a new folder in it")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} exists already; choose a new folder, or remove it")
    if path.is_symlink() or os.path.ismount(path):
        kind = "a symbolic link" if path.is_symlink() else "a mount point"
        raise InputError(f"{path} is {kind}; choose a new folder, such as one in it")
    partial = path.with_name(f".{path.name}.partial")
    lock = path.with_name(f".{path.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with owned(path, lock):
        try:
            if not (state and (partial / state).exists()):
                remove(partial, ignore_errors=True)  # left by a killed process
            partial.mkdir(exist_ok=bool(state))
            yield partial
            os.replace(partial, path)  # OSError if a run has begun in it
        except OSError as error:
            if error.errno in _DISK:  # names no file
                error.filename = error.filename or str(path)
            raise
        finally:
            if not (state and (partial / state).exists()):
                remove(partial, ignore_errors=True)  # gone if all went well
            lock.unlink(missing_ok=True)


def require_output(path: Path | None, endings: Sequence[str] = ()) -> None:
    """Raise InputError unless a file can be written to `path`, with one of `endings`.

    Creates nothing. Without `endings` any name will do; None is no output.
    """
    if path is None:
        return
    require_local(path)
    if endings and path.suffix not in endings:
        names = " or ".join(endings)
        raise InputError(f"{path} does not end in {names}; choose such a name")
    folder = Path(os.path.realpath(path)).parent
    reason = ""
    if path.exists() and not path.is_file():
        reason = "a folder" if path.is_dir() else "no plain file"
    elif not (folder.is_dir() and os.access(folder, os.W_OK)):
        reason = f"{folder} is not a writable folder"
    if reason:
        hint = near_path(path.parent, "choose another file")
        raise InputError(f"{path} cannot be written: {reason}{hint}")


def require_readable(path: Path | None) -> None:
    """Raise InputError if a file of this machine is not there."""
    if path is not None and not (url_of(path) or path.exists()):
        missing = os.strerror(errno.ENOENT) + near_path(path)
        raise InputError(f"{path} cannot be read: {missing}")


def write_checksums(folder: Path, *, leave_out: Collection[Path] = ()) -> None:
    """Write the checksums of the files in a folder and its subfolders."""
    lines = _checksums(folder, leave_out).values()
    write_atomically(folder / CHECKSUMS, "".join(lines))


def checksummed(folder: Path) -> list[str]:
    """Return the names of the files that have checksums; [] if that is not known."""
    try:
        lines = (folder / CHECKSUMS).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [line[34:] for line in lines]


def verify_checksums(folder: Path, *, leave_out: Collection[Path] = ()) -> str:
    """Return "" if a folder is as `write_checksums` found it, else what differs.

    Names the first file that is missing, added or changed. The files `leave_out` exist
    and are not read. Raises OSError if a file cannot be read at present.
    """
    left_out = {path.relative_to(folder).as_posix() for path in leave_out}
    try:
        text = (folder / CHECKSUMS).read_bytes().decode()
        lines = text.splitlines(keepends=True)
        text = "".join(line for line in lines if line[34:-1] not in left_out)
        found = _checksums(folder, leave_out)
        if not re.fullmatch(r"([0-9a-f]{32}  .+\n)*", text):
            raise ValueError
    except ValueError:  # or bytes that are not UTF-8
        return f"{CHECKSUMS} is damaged"
    except GONE as error:
        return f"{Path(error.filename).name} is missing"
    if text == "".join(found.values()):
        return ""
    written = {line[34:-1]: line for line in text.splitlines(keepends=True)}
    differ = {name for name, _ in written.items() ^ found.items()}
    name = min(differ, default=CHECKSUMS)
    if name in written and name not in found:
        return f"{name} is missing"
    return f"{name} does not have its checksum in {CHECKSUMS}"


class Verifier:
    """Compares files with the checksums of a folder, in a thread.

    The thread does not delay the end of the process.
    """

    def __init__(self, folder: Path) -> None:
        lines = (folder / CHECKSUMS).read_text().splitlines()
        self._folder, self._known = folder, {line[34:]: line[:32] for line in lines}
        self._files: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._damage = ""
        threading.Thread(target=self._verify, daemon=True).start()

    def add(self, path: Path) -> None:
        """Verify a file of the folder soon."""
        self._files.put(path)

    def require_whole(self) -> None:
        """Raise InputError if a file was found that does not have its checksum."""
        if self._damage:
            raise InputError(f"{self._folder} is damaged: {self._damage}")

    def _verify(self) -> None:
        while not self._damage:
            path = self._files.get()
            name = path.relative_to(self._folder).as_posix()
            try:
                if digest(path) != self._known.get(name):
                    self._damage = f"{name} does not have its checksum in {CHECKSUMS}"
            except OSError as error:
                self._damage = f"{name} cannot be read ({error})"


def digest(path: Path) -> str:
    """Return the XXH3-128 of a file in hexadecimal digits."""
    with naming(path), open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _checksums(folder: Path, leave_out: Collection[Path] = ()) -> dict[str, str]:
    """By the name of each file in the folder, sorted, its line with XXH3-128."""
    left_out = {*leave_out}
    files = [path for path in files_below(folder) if path not in left_out]
    names = [path.relative_to(folder).as_posix() for path in files]

    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        digests = pool.map(digest, files)
        lines = {n: f"{d}  {n}\n" for n, d in zip(names, digests, strict=True)}
    lines.pop(CHECKSUMS, None)
    return lines
