"""Files and folders that appear whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxformer.errors import InputError


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
