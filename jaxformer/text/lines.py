"""Lines of text, and the form in which sentences are trained on.

Lines end at "\\n" only, and a "\\r" before it is dropped: sentences contain U+0085 and
U+2028, and splitting there would misalign all later pairs.
"""

import bz2
import gzip
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from backports import zstd

from jaxformer.system.errors import InputError
from jaxformer.system.files import file_name
from jaxformer.text.locations import open_bytes

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".zst": zstd.open}
COMPRESSED = tuple(_OPENERS)  # endings of files that are read as text
_BLOCK = 2**18  # bytes of a file that are decoded at a time
# SentencePiece marks spaces with U+2581: in text it would be decoded as a space.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2581]+")


def normalise(text: str) -> str:
    """Compose characters (NFC); make each run of white space or controls one space.

    A text of spaces and invisible characters alone, such as U+200B and U+FEFF, is "".
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if not text.isprintable() or "\u2581" in text:
        text = _CONTROLS.sub(" ", text)
        text = " ".join(text.split())
        is_seen = any(c != " " and unicodedata.category(c) != "Cf" for c in text)
        return text if is_seen else ""
    if "  " not in text and text == text.strip():
        return text  # its only white space are spaces
    return " ".join(text.split())


def decode_lines(blocks: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Yield lines of UTF-8 without line ends and byte order mark; split at \n alone.

    A block is one or more complete lines. Raises InputError with `name` and the number
    of the line for a line that is not UTF-8.
    """
    number = 1  # of the block's first line
    for block in blocks:
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError as error:
            start = block.rfind(b"\n", 0, error.start) + 1
            number += block.count(b"\n", 0, start)
            raise InputError(
                f"{name}, line {number}: byte {error.start - start + 1} of the line is "
                "not UTF-8; convert the text to UTF-8"
            ) from None
        if number == 1:
            text = text.removeprefix("\ufeff")
        lines = text.removesuffix("\n").split("\n")
        number += len(lines)
        yield from (line.removesuffix("\r") for line in lines)


def read_lines(path: Path) -> Iterator[str]:
    """Stream the lines of a UTF-8 file, plain or compressed.

    Raises InputError, naming the file, if it is empty or cannot be read.
    """
    is_empty = True
    try:
        with ExitStack() as opened:
            file = opened.enter_context(open_bytes(path))
            if opener := _OPENERS.get(path.suffix):
                file = opened.enter_context(opener(file, "rb"))
            blocks = iter(lambda: file.read(_BLOCK) + file.readline(), b"")
            for line in decode_lines(blocks, file_name(path)):
                is_empty = False
                yield line
    except (OSError, EOFError, zlib.error, zstd.ZstdError) as error:
        damage = f"the {path.suffix} data is damaged or cut short ({error})"
        reason = getattr(error, "strerror", None) or damage
        raise InputError(f"{file_name(path)} cannot be read: {reason}") from None
    if is_empty:
        raise InputError(f"{file_name(path)} is empty")
