"""--mode=translate: lines from stdin, their translations to stdout, nothing else."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from jaxformer.errors import InputError
from jaxformer.modes.options import Options
from jaxformer.modes.runs import make_translator, open_run, read_parameters

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


def run(options: Options) -> None:
    """Translate standard input line by line; a blank line stays blank."""
    this_run = open_run(options)
    translator = make_translator(
        this_run, read_parameters(this_run, options.checkpoint)
    )
    output = sys.stdout.buffer  # UTF-8 and \n, whatever the locale
    lines = lines_of(sys.stdin.buffer)
    while block := list(islice(lines, LINES_AT_A_TIME)):
        output.writelines(
            f"{translation}\n".encode() for translation in translator(block)
        )
        output.flush()
