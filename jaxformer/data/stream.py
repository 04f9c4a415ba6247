"""Lines of standard input, in blocks of what has arrived."""

import queue
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

from jaxformer import processes
from jaxformer.errors import InputError

BLOCK_LINES = 10_000  # enough to sort by length well, in bounded memory
QUIET_SECONDS = 0.05  # without a new line; then a block is complete
BLOCK_SECONDS = 1.0  # from the first line of a block to its end, at most


def read_stream(stream: BinaryIO) -> Iterator[str]:
    r"""Yield lines, split at \n alone. Raises InputError for one that is not UTF-8."""
    for number, line in enumerate(stream, start=1):
        encoding = "utf-8-sig" if number == 1 else "utf-8"  # drops a byte order mark
        try:
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise InputError(
                f"standard input, line {number} is not UTF-8; convert the text to UTF-8"
            ) from None


class Lines:
    """Lines of a stream, read ahead by a thread, in blocks of what has arrived."""

    def __init__(self, stream: BinaryIO, most: int) -> None:
        self._most = most
        self._queue: queue.Queue[str | Exception | None] = queue.Queue(most)
        self._ended = False
        threading.Thread(
            target=self._read, args=(stream,), name="lines", daemon=True
        ).start()

    def _read(self, stream: BinaryIO) -> None:
        try:
            for line in read_stream(stream):
                self._queue.put(line)
            self._queue.put(None)
        except Exception as error:  # raised again by next_block
            self._queue.put(error)

    def next_block(self) -> list[str]:
        """Wait for a line, then take those that follow at once; [] at the end.

        A file gives large blocks, and a person's typing single lines. An exception of
        reading is raised after the block of the lines before it.
        """
        block: list[str] = []
        begun = 0.0
        while not self._ended and len(block) < self._most:
            timeout = None
            if block:
                left = begun + BLOCK_SECONDS - time.monotonic()
                timeout = max(min(QUIET_SECONDS, left), 0.001)
            try:
                line = self._queue.get(timeout=timeout)
            except queue.Empty:
                break
            if line is None:
                self._ended = True
            elif isinstance(line, Exception):
                if block:
                    self._queue.put(line)
                    break
                raise line
            else:
                begun = begun or time.monotonic()
                block.append(line)
                if time.monotonic() > begun + BLOCK_SECONDS:
                    break
        return block


def read_blocks(stream: BinaryIO) -> Iterator[list[str]]:
    """Yield the lines of process 0's standard input in blocks, to all processes."""
    lines = None
    if processes.is_first():
        lines = Lines(stream, BLOCK_LINES * processes.count())
    while True:
        block: list[str] = []
        complaint = None
        try:
            block = lines.next_block() if lines else []
        except InputError as error:
            complaint = str(error)
        block, complaint = processes.from_first((block, complaint))
        if complaint:
            raise InputError(complaint)
        if not block:
            return
        yield block
