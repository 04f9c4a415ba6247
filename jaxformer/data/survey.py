"""Read the text of a config before it is tokenised.

This first reading counts the pairs, finds those that occur again, hashes the text and
draws the sentences of which the vocabulary is made. It leaves in a folder:

    survey.json         what was found, and what it depends on
    repeated.0.npy      which pairs of the first corpus occurred before
    tokenizer.model     the new vocabulary
"""

import json
import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.data.duplicates import PairHashes
from jaxformer.data.sources import Pair, in_chunks, read_pairs, read_parts
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.data.vocabulary import VocabularySamples
from jaxformer.data_config import DataConfig
from jaxformer.errors import InputError
from jaxformer.files import write_atomically
from jaxformer.progress import progress

log = logging.getLogger(__name__)

_FILE, _TOKENIZER = "survey.json", "tokenizer.model"
Sides = tuple[list[str], list[str]]


class Survey(NamedTuple):
    """What the first reading of the text found."""

    made_with: dict[str, Any]  # JSON values: what prepared files depend on
    pairs: dict[str, int]  # of each training corpus
    text: str  # sha256 of all that was read

    def require_unchanged(self, config: DataConfig) -> None:
        """Raise InputError if the text's files have changed."""
        if files_of(config) != self.made_with["files"]:
            raise text_has_changed()


def text_has_changed() -> InputError:
    """Return the error of text that another reading finds different."""
    return InputError("the text changed while it was prepared; start again")


def survey_text(
    folder: Path, config: DataConfig, dev: dict[str, Sides], tokenizer: Tokenizer | None
) -> Survey:
    """Read the text, and train its vocabulary unless there is a tokeniser.

    `dev` are the validation texts by corpus. A folder that another call left with the
    same config and text is used as it is; any other is emptied.
    """
    made_with = {
        "settings": asdict(config),
        "files": files_of(config),
        "tokenizer": tokenizer and tokenizer.hash,
    }
    made_with = json.loads(json.dumps(made_with))
    try:
        survey = Survey(**json.loads((folder / _FILE).read_bytes()))
        if survey.made_with == made_with:
            log.info("corpus: continuing with what an earlier command has prepared")
            return survey
    except (OSError, ValueError, TypeError):
        pass
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    samples = VocabularySamples(config) if tokenizer is None else None
    pairs, text = _read(folder, config, dev, samples)
    if samples:
        size = config.vocab_size
        log.info("corpus: training a vocabulary of %d on %s", size, config.corpus)
        write_atomically(folder / _TOKENIZER, samples.train().content)
    survey = Survey(made_with, pairs, text)
    write_atomically(folder / _FILE, json.dumps(survey._asdict()))
    return survey


def trained_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokeniser that `survey_text` trained."""
    return Tokenizer.load(folder / _TOKENIZER)


def repeated_pairs(folder: Path, number: int) -> np.ndarray:
    """Memory-map which pairs of training corpus `number` occurred before: bool [n]."""
    return np.load(folder / f"repeated.{number}.npy", mmap_mode="r")


def remove_survey(folder: Path) -> None:
    """Remove what `survey_text` left in a folder."""
    for name in (_FILE, _TOKENIZER, "repeated.*.npy"):
        for path in folder.glob(name):
            path.unlink()


def _read(
    folder: Path,
    config: DataConfig,
    dev: dict[str, Sides],
    samples: VocabularySamples | None,
) -> tuple[dict[str, int], str]:
    """Return the pairs of each training corpus, and the hash of all text."""
    digest, counts = sha256(), {}
    with progress("reading", unit="pairs") as read:
        for number, (name, data) in enumerate(config.training_texts.items()):
            with closing(PairHashes(folder / "hashes")) as hashes:
                for chunk in in_chunks(_untagged(data)):
                    _update(digest, data.tag, chunk)
                    hashes.add(chunk)
                    if samples:
                        samples.add(chunk)
                    read.update(len(chunk))
                digest.update(b"\n")  # ends the split: no pair is an empty line
                counts[name] = hashes.pairs
                if data.deduplicate:
                    np.save(folder / f"repeated.{number}.npy", hashes.repeated())
    for sides in dev.values():
        _update(digest, "", list(zip(*sides, strict=True)))
        digest.update(b"\n")
    return counts, digest.hexdigest()


def _untagged(data: DataConfig) -> Iterator[Pair]:
    return chain.from_iterable(part.pairs for part in read_parts(data, "train"))


def _update(digest: Any, tag: str, pairs: Iterable[Pair]) -> None:
    """Update the hash of the text by some pairs."""
    tag = tag and f"{tag} "
    lines = "".join(f"{tag}{source}\t{target}\n" for source, target in pairs)
    digest.update(lines.encode())


def _splits(config: DataConfig) -> list[tuple[DataConfig, str]]:
    """All texts that are prepared, in their order."""
    train, dev = config.training_texts.values(), config.dev_texts.values()
    return [*((data, "train") for data in train), *((data, "dev") for data in dev)]


def _hash_text(config: DataConfig) -> str:
    digest = sha256()
    for data, split in _splits(config):
        for chunk in in_chunks(read_pairs(data, split)):
            _update(digest, "", chunk)
        digest.update(b"\n")
    return digest.hexdigest()


def folder_of(config: DataConfig) -> str:
    """The folder that holds the text, or that its files are relative to."""
    is_tfds = config.corpus.startswith("tfds:")
    return config.data_dir if is_tfds else str(Path(config.directory).absolute())


def files_of(config: DataConfig) -> list[list]:
    """The text's files with sizes and times, which change when the text does."""
    found: list[list] = []
    for data, split in _splits(config):
        if data.corpus.startswith("tfds:"):
            found.append([data.data_dir])
        elif not data.corpus.startswith("builtin:"):
            parts = read_parts(data, split)
            paths = [Path(name).absolute() for part in parts for name in part[:2]]
            stats = [path.stat() for path in paths]
            found += [
                [str(path), stat.st_size, stat.st_mtime_ns]
                for path, stat in zip(paths, stats, strict=True)
            ]
    return found


def require_same_text(
    config: DataConfig, workdir: Path, report: dict[str, Any]
) -> None:
    """Raise InputError for other settings or text; text that is gone is no other."""
    before, fault = DataConfig.of(report["settings"]), "differs"
    changed = [
        f"data.{key} was {old!r} and is now {new!r}"
        for key, new in config.prepared_by().items()
        if (old := before.prepared_by()[key]) != new
    ]
    if changed:
        raise InputError(
            f"{workdir} was prepared with other settings ({'; '.join(changed)}): use "
            f"another workdir, or delete corpus and tokenizer.model in {workdir} to "
            "prepare it again"
        )
    try:
        if files_of(config) == report["files"] or _hash_text(config) == report["text"]:
            return
    except InputError as error:
        folders = config.directory, config.data_dir
        if folders == (before.directory, before.data_dir):
            return
        fault = f"cannot be compared ({error})"
    raise InputError(
        f"{workdir} was prepared with the text in {report['folder']}, and the text in "
        f"{folder_of(config)} {fault}; use another workdir"
    )
