"""--mode=translate: lines from stdin, their translations to stdout, nothing else."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from jaxformer import processes
from jaxformer.errors import InputError
from jaxformer.modes.options import Options
from jaxformer.modes.runs import (
    local_parameters,
    make_translator,
    open_run,
    translate,
)

LINES_AT_A_TIME = 10_000  # enough to sort by length well, in bounded memory


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


def blocks_of(stream: BinaryIO) -> Iterator[list[str]]:
    """Lines of the first process's standard input, in blocks that all processes get."""
    lines = lines_of(stream)
    while True:
        block, complaint = [], None
        try:
            if processes.is_first():
                block = list(islice(lines, LINES_AT_A_TIME * processes.count()))
        except InputError as error:
            complaint = str(error)
        block, complaint = processes.from_first((block, complaint))
        if complaint:
            raise InputError(complaint)
        if not block:
            return
        yield block


def run(options: Options) -> None:
    """Translate standard input line by line; a blank line stays blank.

    Of several processes the first one reads and writes, and all translate.
    """
    this_run = open_run(options)
    translator = make_translator(
        this_run, *local_parameters(this_run, options.checkpoint)
    )
    output = sys.stdout.buffer  # UTF-8 and \n, whatever the locale
    for block in blocks_of(sys.stdin.buffer):
        translations = translate(translator, block)
        if processes.is_first():
            output.writelines(f"{line}\n".encode() for line in translations)
            output.flush()
