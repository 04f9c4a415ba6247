"""Stream sentence pairs from parallel files, TSV, TFDS or the built-in grammar."""

import glob
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from jaxformer.config import DataConfig
from jaxformer.data import grammar
from jaxformer.data.text import read_lines
from jaxformer.data.tfds_source import read_tfds
from jaxformer.errors import InputError

Pair = tuple[str, str]  # source sentence, target sentence
SIDES = ("source", "target")
SPLITS = ("train", "dev", "test")


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
    match kind, name:
        case "builtin", "grammar":
            label = f"{config.corpus} {split}"
            return [Part(label, label, _read_grammar(config, split))]
        case "files" | "directory", "":
            find = _find_by_keys if kind == "files" else _find_in_directory
            return [
                Part(str(source), str(target), _read_parallel(source, target))
                for source, target in find(config, split)
            ]
        case "tsv", "":
            paths = _find(_setting(config, split, split))
            return [Part(str(path), str(path), _read_tsv(path)) for path in paths]
        case "tfds", _ if name:
            stored = _setting(config, split, split)
            label = f"{config.corpus} {stored}"
            sides = config.source_language, config.target_language
            pairs = read_tfds(
                name, stored, sides, data_dir=config.data_dir, download=config.download
            )
            return [Part(label, label, pairs)]
    raise InputError(
        f"unknown data.corpus {config.corpus!r}: use files, directory, tsv, "
        "tfds:NAME or builtin:grammar"
    )


def _setting(config: DataConfig, key: str, split: str) -> str:
    value = getattr(config, key)
    if not value:
        raise InputError(f"the {split} split is missing: set data.{key}")
    return value


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


def _find_by_keys(config: DataConfig, split: str) -> list[tuple[Path, Path]]:
    sources = _find(_setting(config, f"{split}_source", split))
    targets = _find(_setting(config, f"{split}_target", split))
    if len(sources) != len(targets):
        raise InputError(
            f"data.{split}_source matches {len(sources)} files but data.{split}_target "
            f"matches {len(targets)}: each source file needs its target file"
        )
    return list(zip(sources, targets, strict=True))


def _find_in_directory(config: DataConfig, split: str) -> list[tuple[Path, Path]]:
    directory = Path(_setting(config, "directory", split)).expanduser()
    stem = _setting(config, split, split)
    if not directory.is_dir():
        raise InputError(f"data.directory {directory} is not a directory")
    paths = []
    for language in (config.source_language, config.target_language):
        names = f"{stem}.{language}", f"{stem}.{language}.gz"
        found = [directory / name for name in names if (directory / name).is_file()]
        if not found:
            raise InputError(f"{directory} has neither {' nor '.join(names)}")
        paths.append(found[0])
    return [tuple(paths)]


def _read_grammar(config: DataConfig, split: str) -> Iterator[Pair]:
    direction = (config.source_language, config.target_language)
    if direction not in (("en", "de"), ("de", "en")):
        raise InputError(
            "the built-in corpus is English-German: set data.source_language and "
            f"data.target_language to en and de, not {'-'.join(direction)}"
        )
    count = config.builtin_pairs if split == "train" else config.builtin_eval_pairs
    step = 1 if direction == ("en", "de") else -1
    pairs = grammar.generate(split, count, config.seed)
    return ((pair.source, pair.target)[::step] for pair in pairs)
