"""Lines of text, and the form in which sentences are trained on.

Lines end at "\\n" only, and a "\\r" before it is dropped: sentences contain U+0085 and
U+2028, and splitting there would misalign all later pairs.
"""

import bz2
import gzip
import io
import re
import sys
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from jaxformer.system.errors import InputError
from jaxformer.system.files import file_name, near_path
from jaxformer.text.locations import open_bytes

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".zst": zstd.open}
COMPRESSED = tuple(_OPENERS)  # endings of files that are read as text
_BLOCK = 2**18  # bytes of a file that are decoded at a time
LONGEST = 2**24  # bytes of a line; one of JSON has the pieces of many hypotheses
# How data that is no text begins, what it is and what to do.
_KINDS = {
    rb"\x1f\x8b": "gzip data; end its name in .gz, or use gzip -dc",
    rb"BZh[1-9]1AY&SY": "bzip2 data; end its name in .bz2, or use bzip2 -dc",
    rb"\x28\xb5\x2f\xfd": "Zstandard data; end its name in .zst, or use zstd -dc",
    rb"\xfd7zXZ": "xz data; decompress it with xz -dc",
    rb"PK\x03\x04": "a zip file; use unzip",
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "UTF-32; convert it with iconv -f UTF-32 -t UTF-8",
    rb"\xff\xfe|\xfe\xff|(?:[^\0]\0){2}|(?:\0[^\0]){2}": (
        "UTF-16; convert it with iconv -f UTF-16 -t UTF-8"
    ),
}
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


def decode_lines(file: BinaryIO, name: str, block: int = 0) -> Iterator[str]:
    r"""Yield lines of UTF-8 without line ends and byte order mark; split at \n alone.

    At least `block` bytes are read at a time. Raises InputError with `name` for data of
    another kind, and with the number of the line for one that is not UTF-8 or has more
    than LONGEST bytes.
    """
    number = 1  # of the block's first line
    while data := file.read(block) + file.readline(LONGEST + 1):
        for start, kind in _KINDS.items() if number == 1 else ():
            if re.match(start, data, re.DOTALL):
                raise InputError(f"{name} is {kind}")
        for at, line in enumerate(data.split(b"\n") if len(data) > LONGEST else ()):
            if len(line) > LONGEST:
                raise InputError(
                    f"{name}, line {number + at} has more than {LONGEST:,} bytes; "
                    "split it, with one sentence a line"
                )
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            start = data.rfind(b"\n", 0, error.start) + 1
            number += data.count(b"\n", 0, start)
            raise InputError(
                f"{name}, line {number}: byte {error.start - start + 1} of the line is "
                "not UTF-8; convert the text to UTF-8"
            ) from None
        if number == 1:
            text = text.removeprefix("\ufeff")
        lines = text.removesuffix("\n").split("\n")
        number += len(lines)
        yield from (line.removesuffix("\r") for line in lines)


@contextmanager
def _opened(path: Path | None) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file, decompressed, or standard input; also returns its name.

    Raises InputError with this name if the data cannot be read.
    """
    name = "standard input" if path is None else file_name(path)
    try:
        with ExitStack() as opened:
            file = opened.enter_context(open_bytes(path)) if path else sys.stdin.buffer
            if opener := path and _OPENERS.get(path.suffix):
                file = opened.enter_context(opener(file, "rb"))
            yield file, name
    except (OSError, EOFError, zlib.error, zstd.ZstdError) as error:
        kind, near = (path.suffix, near_path(path)) if path else ("input", "")
        damage = f"the {kind} data is damaged or cut short ({error})"
        reason = (getattr(error, "strerror", None) or damage) + near
        raise InputError(f"{name} cannot be read: {reason}") from None


def read_document(path: Path | None) -> str:
    """Read a UTF-8 file, or standard input if it is None, with all its characters.

    A file may be compressed. Raises InputError, naming the file, if it is no text or
    cannot be read.
    """
    with _opened(path) as (file, name):
        data = file.read()
    for _ in decode_lines(io.BytesIO(data), name):
        pass  # it refuses what is no text
    return data.decode()


def read_lines(path: Path) -> Iterator[str]:
    """Stream the lines of a UTF-8 file, plain or compressed.

    Raises InputError, naming the file, if it is empty or cannot be read.
    """
    is_empty = True
    with _opened(path) as (file, name):
        for line in decode_lines(file, name, _BLOCK):
            is_empty = False
            yield line
    if is_empty:
        raise InputError(f"{file_name(path)} is empty")
