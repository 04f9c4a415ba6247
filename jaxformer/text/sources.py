"""Stream sentence pairs from files, TFDS or the built-in grammar."""

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from jaxformer.config.data import DataConfig
from jaxformer.system.errors import InputError, counted, did_you_mean
from jaxformer.system.files import file_name, near_path
from jaxformer.text.lines import COMPRESSED, read_lines
from jaxformer.text.locations import find_files
from jaxformer.text.records import read_json_lines, read_parquet
from jaxformer.text.tfds import read_tfds

Pair = tuple[str, str]  # source sentence, target sentence
SPLITS = ("train", "dev", "test")
CHUNK = 2**13  # pairs that a process has in memory at a time
SHARD = 2**17  # pairs of a shard, those that are dropped included


class Text(NamedTuple):
    """Sentences and a reference translation of each."""

    sources: list[str]
    references: list[str]


class TextPart(NamedTuple):
    """A file, two parallel files, or a split that is not stored as text files."""

    source: str  # name of the file, or of the corpus and its split
    target: str
    pairs: Iterator[Pair]  # pair i is line i + 1 of both files
    files: tuple[Path, ...] = ()  # that hold them


def read_pairs(
    config: DataConfig, split: str, part: int | None = None
) -> Iterator[Pair]:
    """Stream the pairs of "train", "dev" or "test" (built-in corpus: also "unseen").

    Sources that are not blank begin with `data.tag`, if there is one. Raises InputError
    at once if the split is missing, and while reading if the text is empty, unreadable,
    not UTF-8 or not parallel. `part` is the number of one of `read_parts`; None: all.
    """
    parts = read_parts(config, split)
    own = parts if part is None else parts[part : part + 1]
    pairs = chain.from_iterable(each.pairs for each in own)
    if not config.tag:
        return pairs
    return (
        (f"{config.tag} {source}" if source.strip() else source, target)
        for source, target in pairs
    )


def in_chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Yield CHUNK pairs at a time; the last chunk may have fewer."""
    pairs = iter(pairs)
    return iter(lambda: list(islice(pairs, CHUNK)), [])


def read_split(config: DataConfig, split: str) -> tuple[list[str], list[str]]:
    """Read all source and all target sentences of a small split, unchanged."""
    pairs = list(read_pairs(config, split))
    return [source for source, _ in pairs], [target for _, target in pairs]


def read_parts(config: DataConfig, split: str) -> list[TextPart]:
    """List the parts whose pairs `read_pairs` streams, without tags. Raises alike."""
    kind, _, name = config.corpus.partition(":")
    splits = (*SPLITS, "unseen") if kind == "builtin" else SPLITS
    if split not in splits:
        hint = did_you_mean(split, splits, f"it has {', '.join(splits)}")
        raise InputError(f"a {config.corpus} corpus has no split {split!r}{hint}")

    def setting(key: str) -> str:
        if value := getattr(config, key):
            return value
        other = "; evaluate can use --split=dev" * (key == "test")
        name = f"{split} split{config.of_corpus}"
        raise InputError(f"the {name} is missing: set data.{key}{other}")

    where = f"data.{split}{config.of_corpus}"
    match kind, name:
        case "builtin", "grammar":
            label = f"{config.corpus} {split}"
            return [TextPart(label, label, _read_grammar(config, split))]
        case "tfds", _ if name:
            label = f"{config.corpus} {setting(split)}"
            return [TextPart(label, label, read_tfds(config, name, setting(split)))]
        case (("tsv" | "jsonl" | "parquet"), ""):
            readers = {"jsonl": read_json_lines, "parquet": read_parquet}
            read, columns = readers.get(kind, _read_tsv), config.columns
            languages = config.source_language, config.target_language
            names = ((path, file_name(path)) for path in _find(setting(split), where))
            return [
                TextPart(name, name, read(path, columns, languages), (path,))
                for path, name in names
            ]
        case "files", "":
            patterns = [each.strip() for each in setting(split).split(",")]
            if len(patterns) != 2:
                none = ", or leave it empty" * (split == "test")
                raise InputError(
                    f"data.{split} is {setting(split)!r}; a corpus of files has two "
                    f"paths or globs with a comma between: SOURCE,TARGET{none}"
                )
            sources, targets = (_find(each, where) for each in patterns)
            if len(sources) != len(targets):
                raise InputError(
                    f"{patterns[0]} of data.{split} matches {len(sources)} files but "
                    f"{patterns[1]} matches {len(targets)}: each source file needs its "
                    "target file"
                )
            if len(sources) > 1:
                targets = _partners(sources, targets, *patterns)
        case "directory", "":
            stem = os.path.expanduser(Path(setting("directory"), setting(split)))
            sources = [_find_either(f"{stem}.{config.source_language}", where)]
            targets = [_find_either(f"{stem}.{config.target_language}", where)]
        case _:
            raise InputError(
                f"unknown data.corpus {config.corpus!r}: use files, directory, tsv, "
                "jsonl, parquet, tfds:NAME or builtin:grammar"
            )
    return [
        TextPart(*map(file_name, pair), read_parallel(*pair), pair)
        for pair in zip(sources, targets, strict=True)
    ]


def read_parallel(source: Path, target: Path) -> Iterator[Pair]:
    """Stream the pairs of two files; InputError unless they have as many lines."""
    try:
        yield from zip(read_lines(source), read_lines(target), strict=True)
    except ValueError:
        counts = [sum(1 for _ in read_lines(path)) for path in (source, target)]
        raise InputError(
            f"{file_name(source)} has {counted(counts[0], 'line')} but "
            f"{file_name(target)} has {counts[1]:,}: line N of one must translate line "
            "N of the other"
        ) from None


def _read_tsv(path: Path, *_: Sequence[str]) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        source, tab, rest = line.partition("\t")
        if not tab and line.strip():  # a blank line is a blank pair
            how = (
                "import csv, sys; [print(*r, sep='\\t') for r in csv.reader(sys.stdin)]"
            )
            raise InputError(
                f"{file_name(path)}, line {number}: one column where two are needed, "
                f'source<TAB>target; convert CSV with python -c "{how}"'
            )
        yield source, rest.partition("\t")[0]


def _find(pattern: str, where: str) -> list[Path]:
    """Find the file of that name, or the files that match the glob, sorted."""
    if not (paths := find_files(pattern)):
        found = "no file matches" if glob.has_magic(pattern) else "there is no file"
        raise InputError(f"{found} {pattern} ({where}){near_path(Path(pattern))}")
    return paths


def _partners(
    sources: Sequence[Path], targets: Sequence[Path], source: str, target: str
) -> list[Path]:
    """Return the target of each source: the file whose wildcards match the same text.

    Sorted names would pair news.en and news.x.en with news.x.fr and news.fr.
    """
    of = {_wildcards(target, path): path for path in targets}
    found = [of.get(_wildcards(source, path)) for path in sources]
    if None in found:
        alone = sources[found.index(None)]
        raise InputError(
            f"{file_name(alone)} has no target file: none of {target} has the same "
            f"text for the wildcards of {source}; write the language outside of the "
            "wildcards, as in en/*.en and de/*.de"
        )
    return found


def _wildcards(pattern: str, path: Path) -> tuple[str | None, ...]:
    """Return what the wildcards of a glob match in a path."""
    forms = {"**/": "((?:.*/)?)", "**": "(.*)", "*": "([^/]*)"}
    parts = re.split(
        r"(\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\])", os.path.expanduser(Path(pattern))
    )
    regex = "".join(
        forms.get(part, "(.)") if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    )
    match = re.fullmatch(regex, str(path), re.DOTALL)
    return match.groups() if match else (str(path),)


def _find_either(name: str, where: str) -> Path:
    """Find the plain or else the compressed file of the stem that `where` has."""
    for ending in ("", *COMPRESSED):
        if paths := find_files(glob.escape(name + ending)):
            return paths[0]
    others = ", ".join(COMPRESSED)
    hint = near_path(Path(name))
    if "," in name or Path(name).with_suffix("").is_file():
        hint = f"; if {where} has files, set data.corpus=files"
    raise InputError(f"there is no {file_name(name)}, also not with {others}{hint}")


def _read_grammar(config: DataConfig, split: str) -> Iterator[Pair]:
    if config.direction not in ("en-de", "de-en"):
        raise InputError(
            "the built-in corpus is English-German: set data.source_language and "
            f"data.target_language to en and de, not {config.direction}"
        )
    from jaxformer import grammar  # which other text does not need

    count = config.pairs_of("test" if split == "unseen" else split)
    step = 1 if config.direction == "en-de" else -1
    pairs = grammar.generate(split, count, config.seed)
    return ((pair.source, pair.target)[::step] for pair in pairs)
