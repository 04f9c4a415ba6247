"""Damage of a file, for tests that it is found."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def flip_bit(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


DAMAGES = {
    "deleted": lambda file: file.unlink(),
    "emptied": lambda file: file.write_bytes(b""),
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "flipped": lambda file: flip_bit(file, 77),
    "replaced": lambda file: file.write_bytes(b"other"),
    "replaced by a folder": lambda file: (file.unlink(), file.mkdir()),
}


@contextlib.contextmanager
def damaged(file: Path, kind: str) -> Iterator[None]:
    """Damage a file within the block."""
    content = file.read_bytes()
    DAMAGES[kind](file)
    yield
    if file.is_dir():
        file.rmdir()
    file.write_bytes(content)


def files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]
