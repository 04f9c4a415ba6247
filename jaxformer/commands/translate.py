"""--mode=translate: lines from stdin, their translations to stdout, nothing else.

With --n_best above 1, --json or --alignment each line becomes a line of JSON: "line"
counts from 1, and each of "hypotheses", best first, has "text", "score" (log P over the
length penalty), "log_probability" and "tokens".
"""

import json
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.commands.runs import open_translator, texts, translate
from jaxformer.data.sources import read_lines
from jaxformer.decoding.translate import Hypothesis, Translator
from jaxformer.errors import InputError

LINES_AT_A_TIME = 10_000  # enough to sort by length well, in bounded memory
PATIENCE = 0.05  # seconds without a new line until those that came are translated
MOST_PATIENCE = 1.0  # seconds from the first of them


def lines_of(stream: BinaryIO) -> Iterator[str]:
    r"""Lines ended by \n alone, without it. Raises InputError naming one not UTF-8."""
    for number, line in enumerate(stream, start=1):
        encoding = "utf-8-sig" if number == 1 else "utf-8"  # drops a byte order mark
        try:
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise InputError(
                f"standard input, line {number} is not UTF-8; convert the text to UTF-8"
            ) from None


class Lines:
    """Lines of a stream, read ahead by a thread: as many at a time as are there."""

    def __init__(self, stream: BinaryIO, most: int) -> None:
        self._most = most
        self._queue: queue.Queue[str | Exception | None] = queue.Queue(most)
        self._ended = False
        threading.Thread(
            target=self._read, args=(stream,), name="lines", daemon=True
        ).start()

    def _read(self, stream: BinaryIO) -> None:
        try:
            for line in lines_of(stream):
                self._queue.put(line)
            self._queue.put(None)
        except Exception as error:  # raised again where the lines are wanted
            self._queue.put(error)

    def next_block(self) -> list[str]:
        """Wait for a line, then take those that follow at once; [] at the end.

        A file comes in large blocks, and what a person types line by line. Raises what
        reading raised, after the lines before it were taken.
        """
        block: list[str] = []
        begun = 0.0
        while not self._ended and len(block) < self._most:
            patience = None
            if block:
                patience = min(PATIENCE, begun + MOST_PATIENCE - time.monotonic())
            try:
                line = self._queue.get(timeout=patience and max(patience, 0.001))
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
                if time.monotonic() > begun + MOST_PATIENCE:
                    break
        return block


def blocks_of(stream: BinaryIO) -> Iterator[list[str]]:
    """Lines of the first process's standard input, in blocks that all processes get."""
    lines = None
    if processes.is_first():
        lines = Lines(stream, LINES_AT_A_TIME * processes.count())
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


def as_json(
    line: int,
    source: str,
    hypotheses: Sequence[Hypothesis],
    translator: Translator,
    alignment: bool,
) -> str:
    """One line of JSON for one line of input, which counts from 1."""
    found = [hypothesis._asdict() for hypothesis in hypotheses]
    if alignment:
        for each in found:
            maps = translator.attention(source, each["text"])
            each["source_pieces"], each["pieces"] = maps.source, maps.target
            each["alignment"] = maps.pharaoh()
    return json.dumps({"line": line, "hypotheses": found}, ensure_ascii=False)


def run(options: Options) -> None:
    """Translate standard input line by line; a blank line stays blank.

    Of several processes the first one reads and writes, and all translate.
    """
    _, translator = open_translator(options)
    in_json = options.json or options.alignment or translator.options.n_best > 1
    prefixes = iter(read_lines(Path(options.prefix)) if options.prefix else ())
    output = sys.stdout.buffer  # UTF-8 and \n, whatever the locale
    numbers = count(1)
    for block in blocks_of(sys.stdin.buffer):
        begins = None
        if options.prefix:
            begins = list(islice(prefixes, len(block)))
            begins += [""] * (len(block) - len(begins))
        first = next(numbers)
        found = translate(translator, block, prefixes=begins, first=first - 1)
        numbers = count(first + len(block))
        if not processes.is_first():
            continue
        written = texts(found)
        if in_json:
            written = [
                as_json(line, source, each, translator, options.alignment)
                for line, (source, each) in enumerate(
                    zip(block, found, strict=True), start=first
                )
            ]
        output.writelines(f"{line}\n".encode() for line in written)
        output.flush()
