"""Where parallel text comes from: every source becomes a stream of sentence pairs.

A pair is (source sentence, target sentence). `read_pairs` streams the pairs of a split
from parallel files, a directory of them, TSV, TensorFlow Datasets or the built-in
grammar, and ends in one clear InputError where the text cannot be what the user meant.
Used by `jaxformer.data.corpus`.

Lines end at "\\n" only (a "\\r" before it is dropped): real sentences contain U+0085
and U+2028, and splitting there would shift every pair after one.
"""

import glob
import gzip
import zlib
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from jaxformer.config import DataConfig
from jaxformer.data import grammar
from jaxformer.data.tfds_source import read_tfds
from jaxformer.errors import InputError

Pair = tuple[str, str]

SPLITS = ("train", "dev", "test")


class Part(NamedTuple):
    """Part of a split: pairs of one file or two, or all of them where no file is."""

    source: str  # the file's name, or another name where there is no file
    target: str
    pairs: Iterator[Pair]  # pair i is line i + 1 of both


def read_pairs(config: DataConfig, split: str) -> Iterator[Pair]:
    """Stream the pairs of "train", "dev" or "test" (built-in corpus: also "unseen").

    Raises InputError at once if the split is missing, and while reading, naming file
    and line, if the text is empty, unreadable, not UTF-8 or not parallel.
    """
    return chain.from_iterable(part.pairs for part in read_parts(config, split))


def read_parts(config: DataConfig, split: str) -> list[Part]:
    """The parts whose pairs `read_pairs` streams, in order. Raises as it does."""
    kind, _, name = config.corpus.partition(":")
    if kind == "builtin" and name == "grammar":
        pairs = _read_grammar(config, split)
        return [Part(*[f"{config.corpus} {split}"] * 2, pairs)]
    if split not in SPLITS:
        raise InputError(f"A {config.corpus} corpus has no split {split!r}.")
    if kind == "tfds" and name:
        stored = _setting(config, split, split)
        pairs = read_tfds(
            name,
            stored,
            source_language=config.source_language,
            target_language=config.target_language,
            data_dir=config.data_dir,
            download=config.download,
        )
        return [Part(*[f"{config.corpus} {stored}"] * 2, pairs)]
    if kind == "tsv":
        paths = _matches(_setting(config, split, split))
        return [Part(str(path), str(path), _read_tsv(path)) for path in paths]
    if kind == "directory":
        return [_read_parallel(*_in_directory(config, split))]
    if kind == "files":
        source = _setting(config, f"{split}_source", split)
        target = _setting(config, f"{split}_target", split)
        return list(map(_read_parallel, *_matching_files(source, target)))
    raise InputError(
        f"Unknown data.corpus {config.corpus!r}: use files, directory, tsv, "
        "tfds:NAME or builtin:grammar."
    )


def _setting(config: DataConfig, key: str, split: str) -> str:
    value = getattr(config, key)
    if not value:
        raise InputError(
            f"The {split} split is missing: set data.{key}, by --config.data.{key}=..."
        )
    return value


# Text files -----------------------------------------------------------------------


def read_lines(path: Path) -> Iterator[str]:
    """Stream the lines of a UTF-8 file, plain or .gz; InputError names file and line.

    A byte order mark is dropped. A file without a line is an error.
    """
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
                yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {number}: byte {error.start + 1} of the line is not UTF-8; "
            "convert the file to UTF-8."
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path}: the gzip data is damaged or cut short after line {number} "
            f"({error})."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    if number == 0:
        raise InputError(f"{path} is empty.")


def _read_parallel(source: Path, target: Path) -> Part:
    return Part(str(source), str(target), _zip_lines(source, target))


def _zip_lines(source: Path, target: Path) -> Iterator[Pair]:
    left, right = read_lines(source), read_lines(target)
    for number, (a, b) in enumerate(zip_longest(left, right), start=1):
        if a is None or b is None:
            longest = number + sum(1 for _ in (right if a is None else left))
            counts = (number - 1, longest) if a is None else (longest, number - 1)
            raise InputError(
                f"{source} has {counts[0]} lines but {target} has {counts[1]}: "
                "line N of one must translate line N of the other."
            )
        yield a, b


def _read_tsv(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        source, tab, rest = line.partition("\t")
        if not tab:
            raise InputError(
                f"{path}, line {number}: one column where two are needed, "
                "source<TAB>target."
            )
        yield source, rest.partition("\t")[0]


def _matches(pattern: str) -> list[Path]:
    """The file of that name, or the files that match the glob, sorted."""
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    paths = sorted(Path(p) for p in glob.glob(str(path), recursive=True))
    if not paths:
        found = "No file matches" if glob.has_magic(pattern) else "There is no file"
        raise InputError(f"{found} {pattern}.")
    return paths


def _matching_files(source: str, target: str) -> tuple[list[Path], list[Path]]:
    sources, targets = _matches(source), _matches(target)
    if len(sources) != len(targets):
        raise InputError(
            f"{source} matches {len(sources)} files but {target} matches "
            f"{len(targets)}: each source file needs its target file."
        )
    return sources, targets


def _in_directory(config: DataConfig, split: str) -> tuple[Path, Path]:
    directory = Path(_setting(config, "directory", split)).expanduser()
    stem = _setting(config, split, split)
    if not directory.is_dir():
        raise InputError(f"data.directory {directory} is not a directory.")
    sides = []
    for language in (config.source_language, config.target_language):
        plain = directory / f"{stem}.{language}"
        path = plain if plain.is_file() else directory / f"{plain.name}.gz"
        if not path.is_file():
            raise InputError(f"{directory} has neither {plain.name} nor {path.name}.")
        sides.append(path)
    return sides[0], sides[1]


# The built-in corpus --------------------------------------------------------------


def _read_grammar(config: DataConfig, split: str) -> Iterator[Pair]:
    direction = (config.source_language, config.target_language)
    if direction not in (("en", "de"), ("de", "en")):
        raise InputError(
            "The built-in corpus is English-German: set data.source_language and "
            f"data.target_language to en and de, not {'-'.join(direction)}."
        )
    if split not in (*SPLITS, "unseen"):
        raise InputError(f"The built-in corpus has no split {split!r}.")
    count = config.builtin_pairs if split == "train" else config.builtin_eval_pairs
    pairs = grammar.generate(split, count, config.seed)
    if direction == ("en", "de"):
        return ((pair.source, pair.target) for pair in pairs)
    return ((pair.target, pair.source) for pair in pairs)
