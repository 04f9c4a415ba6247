"""Stream sentence pairs from parallel files, TSV, TFDS or the built-in grammar.

Lines end at "\\n" only, and a "\\r" before it is dropped: sentences contain U+0085 and
U+2028, and splitting there would misalign all later pairs.
"""

import glob
import gzip
import queue
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from jaxformer import processes
from jaxformer.config import DataConfig
from jaxformer.data import grammar
from jaxformer.data.tfds_source import read_tfds
from jaxformer.errors import InputError

Pair = tuple[str, str]  # source sentence, target sentence
SPLITS = ("train", "dev", "test")
BLOCK_LINES = 10_000  # enough to sort by length well, in bounded memory
QUIET_SECONDS = 0.05  # without a new line; then a block is complete
BLOCK_SECONDS = 1.0  # from the first line of a block to its end, at most


class Part(NamedTuple):
    """A file, two parallel files, or a split that is not stored as text files."""

    source: str  # name of the file, or of the corpus and its split
    target: str
    pairs: Iterator[Pair]  # pair i is line i + 1 of both files


def read_pairs(config: DataConfig, split: str) -> Iterator[Pair]:
    """Stream the pairs of "train", "dev" or "test" (built-in corpus: also "unseen").

    Raises InputError at once if the split is missing, and while reading if the text is
    empty, unreadable, not UTF-8 or not parallel.
    """
    return chain.from_iterable(part.pairs for part in read_parts(config, split))


def read_parts(config: DataConfig, split: str) -> list[Part]:
    """List the parts whose pairs `read_pairs` streams. Raises as it does."""
    kind, _, name = config.corpus.partition(":")
    if split not in SPLITS and (kind, split) != ("builtin", "unseen"):
        raise InputError(f"a {config.corpus} corpus has no split {split!r}")

    def setting(key: str) -> str:
        if value := getattr(config, key):
            return value
        raise InputError(f"the {split} split is missing: set data.{key}")

    match kind, name:
        case "builtin", "grammar":
            label = f"{config.corpus} {split}"
            return [Part(label, label, _read_grammar(config, split))]
        case "tfds", _ if name:
            label = f"{config.corpus} {setting(split)}"
            return [Part(label, label, read_tfds(config, name, setting(split)))]
        case "tsv", "":
            return [
                Part(str(path), str(path), _read_tsv(path))
                for path in _find(setting(split))
            ]
        case "files", "":
            keys = f"{split}_source", f"{split}_target"
            sources, targets = (_find(setting(key)) for key in keys)
            if len(sources) != len(targets):
                raise InputError(
                    f"data.{keys[0]} matches {len(sources)} files but data.{keys[1]} "
                    f"matches {len(targets)}: each source file needs its target file"
                )
        case "directory", "":
            stem = Path(setting("directory"), setting(split)).expanduser()
            sources = [_find_either(f"{stem}.{config.source_language}")]
            targets = [_find_either(f"{stem}.{config.target_language}")]
        case _:
            raise InputError(
                f"unknown data.corpus {config.corpus!r}: use files, directory, tsv, "
                "tfds:NAME or builtin:grammar"
            )
    return [
        Part(str(source), str(target), _read_parallel(source, target))
        for source, target in zip(sources, targets, strict=True)
    ]


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Yield lines of UTF-8 without line ends and byte order mark; split at \n alone.

    Raises InputError, naming the text by `name` and the line, if one is not UTF-8.
    """
    for number, raw in enumerate(lines, start=1):
        try:
            line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}, line {number}: byte {error.start + 1} of the line is not "
                "UTF-8; convert the text to UTF-8"
            ) from None
        yield line.removeprefix("\ufeff") if number == 1 else line


def read_lines(path: Path) -> Iterator[str]:
    """Stream the lines of a UTF-8 file, plain or .gz.

    Raises InputError, naming file and line, if it is empty or cannot be read.
    """
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for line in decode_lines(file, str(path)):
                number += 1
                yield line
    except (OSError, EOFError, zlib.error) as error:
        damage = f"the gzip data is damaged or cut short after line {number} ({error})"
        reason = getattr(error, "strerror", None) or damage
        raise InputError(f"{path} cannot be read: {reason}") from None
    if number == 0:
        raise InputError(f"{path} is empty")


def _read_blocks(stream: BinaryIO, most: int) -> Iterator[list[str]]:
    """Yield at most `most` lines at a time, read ahead by a thread.

    A file gives large blocks, and a person's typing single lines. An exception of
    reading is raised after the block of the lines before it.
    """
    arrived: queue.Queue[str | Exception | None] = queue.Queue(most)

    def read() -> None:
        end = None
        try:
            for line in decode_lines(stream, "standard input"):
                arrived.put(line)
        except Exception as error:
            end = error
        arrived.put(end)

    threading.Thread(target=read, name="lines", daemon=True).start()
    item = arrived.get()
    while isinstance(item, str):
        block, end = [], time.monotonic() + BLOCK_SECONDS
        try:
            while (
                isinstance(item, str) and len(block) < most and time.monotonic() < end
            ):
                block.append(item)
                item = arrived.get(timeout=QUIET_SECONDS)
        except queue.Empty:
            yield block
            item = arrived.get()
        else:
            yield block
    if item is not None:
        raise item


def read_blocks(stream: BinaryIO) -> Iterator[list[str]]:
    """Yield the lines of process 0's standard input in blocks, to all processes."""
    most = BLOCK_LINES * processes.count()
    blocks = _read_blocks(stream, most) if processes.is_first() else iter(())
    while True:
        try:
            found = next(blocks, [])
        except InputError as error:
            found = str(error)
        found = processes.from_first(found)
        if isinstance(found, str):
            raise InputError(found)
        if not found:
            return
        yield found


def _read_parallel(source: Path, target: Path) -> Iterator[Pair]:
    try:
        yield from zip(read_lines(source), read_lines(target), strict=True)
    except ValueError:
        counts = [sum(1 for _ in read_lines(path)) for path in (source, target)]
        raise InputError(
            f"{source} has {counts[0]} lines but {target} has {counts[1]}: "
            "line N of one must translate line N of the other"
        ) from None


def _read_tsv(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        source, tab, rest = line.partition("\t")
        if not tab:
            raise InputError(
                f"{path}, line {number}: one column where two are needed, "
                "source<TAB>target"
            )
        yield source, rest.partition("\t")[0]


def _find(pattern: str) -> list[Path]:
    """Find the file of that name, or the files that match the glob, sorted."""
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    paths = sorted(Path(p) for p in glob.glob(str(path), recursive=True))
    if not paths:
        found = "no file matches" if glob.has_magic(pattern) else "there is no file"
        raise InputError(f"{found} {pattern}")
    return paths


def _find_either(name: str) -> Path:
    """Find the plain or else the compressed file."""
    for path in (Path(name), Path(f"{name}.gz")):
        if path.is_file():
            return path
    raise InputError(f"there is neither {name} nor {name}.gz")


def _read_grammar(config: DataConfig, split: str) -> Iterator[Pair]:
    if config.direction not in ("en-de", "de-en"):
        raise InputError(
            "the built-in corpus is English-German: set data.source_language and "
            f"data.target_language to en and de, not {config.direction}"
        )
    count = config.builtin_pairs if split == "train" else config.builtin_eval_pairs
    step = 1 if config.direction == "en-de" else -1
    pairs = grammar.generate(split, count, config.seed)
    return ((pair.source, pair.target)[::step] for pair in pairs)
