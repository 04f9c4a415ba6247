"""What the first of several processes does for all: decide, and write.

With one process each function just does it.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from jaxformer.system import processes
from jaxformer.system.files import write_atomically

Value = TypeVar("Value")  # JSON must be able to hold it


def is_here() -> bool:
    """Whether this is the first process."""
    return processes.is_first()


def once(action: Callable[[], Value]) -> Value:
    """Call `action` in the first process; return its value in all.

    All processes call this. An InputError or OSError of the action is raised in all, of
    several processes as an InputError.
    """
    found = None
    with processes.sharing_mistakes():
        if processes.is_first():
            found = action()
    return processes.from_first(found)


def in_others(action: Callable[[], object]) -> None:
    """Call `action` in the other processes; a mistake of one is raised in all."""
    with processes.sharing_mistakes():
        if not processes.is_first():
            action()


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file, as `write_atomically`, for all processes."""
    once(lambda: write_atomically(path, content))


def print_lines(lines: Iterable[str]) -> None:
    r"""Write lines to standard output, as UTF-8 and with \n, whatever the locale."""
    print_text(f"{line}\n" for line in lines)


def print_text(parts: Iterable[str]) -> None:
    """Write parts of a text to standard output, as UTF-8, whatever the locale."""
    if processes.is_first():
        sys.stdout.buffer.writelines(part.encode() for part in parts)
        sys.stdout.buffer.flush()
