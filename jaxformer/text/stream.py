"""Read lines in blocks, which all processes get."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from jaxformer.system import processes
from jaxformer.system.first import once
from jaxformer.text.lines import decode_lines

BLOCK_LINES = 10_000  # enough to sort by length well, in bounded memory
QUIET_SECONDS = 0.05  # without a new line; then a block is complete
BLOCK_SECONDS = 1.0  # from the first line of a block to its end, at most
_QUIET = object()


def _read_blocks(stream: BinaryIO, most: int) -> Iterator[list[str]]:
    """Yield at most `most` lines at a time, read ahead by a thread.

    A file gives large blocks, and a person's typing single lines. An exception of
    reading is raised after the block of the lines before it.
    """
    arrived: queue.Queue[str | Exception | None] = queue.Queue(most)

    def read() -> None:
        last = None
        try:
            for line in decode_lines(stream, "standard input"):
                arrived.put(line)
        except Exception as error:
            last = error
        arrived.put(last)

    threading.Thread(target=read, name="lines", daemon=True).start()
    item = arrived.get()
    while isinstance(item, str):
        block, end = [], time.monotonic() + BLOCK_SECONDS
        while isinstance(item, str) and len(block) < most and time.monotonic() < end:
            block.append(item)
            try:
                item = arrived.get(timeout=QUIET_SECONDS)
            except queue.Empty:
                item = _QUIET
        yield block
        if item is _QUIET:
            item = arrived.get()
    if item is not None:
        raise item


def read_blocks(stream: BinaryIO) -> Iterator[list[str]]:
    """Yield the lines of process 0's standard input in blocks, to all processes."""
    most = BLOCK_LINES * processes.count()
    return shared(_read_blocks(stream, most) if processes.is_first() else iter(()))


def blocks_of(lines: Iterator[str]) -> Iterator[list[str]]:
    """Yield the lines of process 0 in full blocks, to all processes."""
    most = BLOCK_LINES * processes.count()
    return shared(iter(lambda: list(islice(lines, most)), []))


def in_shares(function: Callable[[list], list], items: Sequence) -> list:
    """Apply a function to each process's share of the items; return all its results.

    It gets a list and returns one of the same length, which JSON must be able to hold.
    """
    results, count = [None] * len(items), processes.count()
    own = function(list(items[processes.index() :: count]))
    for number, found in enumerate(processes.gather(own)):
        results[number::count] = found
    return results


def shared(blocks: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the blocks of process 0 to all processes, with its mistakes."""
    while found := once(lambda: next(blocks, [])):
        yield found
