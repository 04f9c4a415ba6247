"""Read the text of a config before it is tokenised.

This first reading counts the pairs, finds those that occur again, hashes the text and
draws the sentences of which the vocabulary is made. It leaves in a folder:

    survey.json         what was found, and what it depends on
    repeated.0.npy      which pairs of the first corpus occurred before
    tokenizer.model     the new vocabulary
"""

import json
import logging
from collections.abc import Iterator
from contextlib import closing, nullcontext
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.config.replaced import translated
from jaxformer.corpus.store import save_array
from jaxformer.system.errors import InputError, counted
from jaxformer.system.files import GONE, entries, remove, url_of, write_atomically
from jaxformer.system.progress import progress
from jaxformer.text import sources
from jaxformer.text.duplicates import PairHashes
from jaxformer.text.flaws import SAMPLE, require_languages
from jaxformer.text.locations import size_and_time
from jaxformer.text.sources import Pair, in_chunks, read_pairs, read_parts
from jaxformer.text.text_hash import TextChangedError, TextHash, hash_of_texts
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.text.vocabulary import VocabularySamples

if TYPE_CHECKING:
    from jaxformer.corpus.beam import Beam

log = logging.getLogger(__name__)

SURVEY = "survey.json"
_TOKENIZER = "tokenizer.model"
_FORMAT = 4  # of unfinished folders; those of another one are not continued
Sides = tuple[list[str], list[str]]


class Survey(NamedTuple):
    """What the first reading of the text found."""

    made_with: dict[str, Any]  # JSON values: what prepared files depend on
    pairs: dict[str, int]  # of each training corpus
    shards: dict[str, list[str]]  # hashes of the text of their shards
    text: str  # hash of all that was read


def survey_text(
    folder: Path,
    config: DataConfig,
    dev: dict[str, Sides],
    tokenizer: Tokenizer | None,
    pipeline: "Beam | None" = None,
) -> Survey:
    """Read the text, and train its vocabulary unless there is a tokeniser.

    `dev` are the validation texts by corpus; a `pipeline` reads the training texts. A
    folder that another call left for the same config and text is used as it is; any
    other is emptied.
    """
    values = {
        "settings": config.prepared_by(),
        "files": files_of(config),
        "tokenizer": tokenizer.hash if tokenizer else "",
        "sentencepiece": version("sentencepiece"),
        "format": [_FORMAT, sources.SHARD],
    }
    made_with = json.loads(json.dumps(values))
    if survey := _open(folder, made_with):
        log.info("corpus: continuing with what an earlier command has prepared")
        return survey
    if any(folder.iterdir()):
        log.info("corpus: removing what a command with other settings or text left")
        # First the survey: a rest without it is not continued.
        (folder / SURVEY).unlink(missing_ok=True)
        for path in folder.iterdir():
            remove(path)
    samples = VocabularySamples(config) if tokenizer is None else None
    if pipeline:
        for data in config.training_texts.values():
            sample = [*islice(read_pairs(data, "train"), SAMPLE)]
            require_languages(sample, "train", data)
        pairs, shards = pipeline.survey(folder, config, samples)
    else:
        pairs, shards = _read(folder, config, samples)
    others = (TextHash.of(zip(*sides, strict=True)).shards for sides in dev.values())
    text = hash_of_texts([*shards.values(), *others])
    survey = Survey(made_with, pairs, shards, text)
    if samples:
        log.info(
            "corpus: training a vocabulary of %s", counted(config.vocab_size, "id")
        )
        write_atomically(folder / _TOKENIZER, samples.train().content)
    write_atomically(folder / SURVEY, json.dumps(survey._asdict()))
    return survey


def trained_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokeniser that `survey_text` trained."""
    return Tokenizer.load(folder / _TOKENIZER)


def repeated_pairs(folder: Path, number: int) -> np.ndarray:
    """Memory-map which pairs of training corpus `number` occurred before: bool [n]."""
    return np.load(folder / f"repeated.{number}.npy", mmap_mode="r")


def chunks_of(survey: Survey, config: DataConfig, name: str) -> Iterator[list[Pair]]:
    """Read a training corpus again, in chunks that do not cross shards.

    Raises TextChangedError if the text is not as the survey found it.
    """
    text, pairs, expected = TextHash(), survey.pairs[name], survey.shards[name]
    for chunk in in_chunks(read_pairs(config.training_texts[name], "train")):
        text.add(chunk)
        if not text.pairs % sources.SHARD or text.pairs >= pairs:
            found = text.shards
            if text.pairs > pairs or found != expected[: len(found)]:
                raise TextChangedError
        yield chunk
    if text.pairs < pairs:
        raise TextChangedError


def abandon(folder: Path) -> None:
    """Mark what is in a folder as worthless for later commands."""
    (folder / SURVEY).unlink()


def survey_files(folder: Path) -> list[Path]:
    """Return the files that a complete corpus does not need, the survey first."""
    patterns = (SURVEY, _TOKENIZER, "repeated.*.npy")
    return [path for pattern in patterns for path in entries(folder, pattern)]


def _open(folder: Path, made_with: dict[str, Any]) -> Survey | None:
    """Return the survey in a folder, if it is complete and of the same text.

    Raises OSError if it cannot be read at present: it may be complete.
    """
    try:
        survey = Survey(**json.loads((folder / SURVEY).read_bytes()))
        before = survey.made_with
        if not before["tokenizer"] and made_with["tokenizer"]:
            # The command was stopped after it had published the tokeniser.
            trained = trained_tokenizer(folder).hash
            before = before | {"tokenizer": trained}
        return survey if before == made_with else None
    except (*GONE, ValueError, TypeError, LookupError, InputError):
        return None


def _read(
    folder: Path, config: DataConfig, samples: VocabularySamples | None
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Fill the samples, write which pairs are repeated, and return numbers and hashes.

    They are the pairs of each corpus and the hashes of its shards.
    """
    texts, total = {}, 0
    with progress("reading", unit="pairs") as read:
        for number, (name, data) in enumerate(config.training_texts.items()):
            hashing = nullcontext()
            if data.deduplicate:
                hashing = closing(PairHashes(folder / "hashes"))
            texts[name], sample, step = (text := TextHash()), [], 1
            with hashing as hashes:
                for chunk in in_chunks(read_pairs(data, "train")):
                    text.add(chunk)
                    sample += chunk[::step]
                    while len(sample) > 2 * SAMPLE:  # from all of the text
                        sample, step = sample[::2], 2 * step
                    if hashes:
                        hashes.add(chunk)
                    if samples:
                        samples.add(total, chunk, data.tag)
                    total += len(chunk)
                    read.update(len(chunk))
                if hashes:
                    save_array(folder / f"repeated.{number}.npy", hashes.repeated())
            require_languages(sample, "train", data)
    pairs = {name: text.pairs for name, text in texts.items()}
    return pairs, {name: text.shards for name, text in texts.items()}


def _splits(config: DataConfig) -> list[tuple[DataConfig, str]]:
    """All texts that are prepared, in their order."""
    train, dev = config.training_texts.values(), config.dev_texts.values()
    return [*((data, "train") for data in train), *((data, "dev") for data in dev)]


def _hash_text(config: DataConfig) -> str:
    texts = (read_pairs(*split) for split in _splits(config))
    return hash_of_texts(TextHash.of(pairs).shards for pairs in texts)


def folder_of(config: DataConfig) -> str:
    """The folder that holds the text, or that its files are relative to."""
    if config.corpus.startswith("tfds:"):
        return config.directory
    return url_of(config.directory) or str(Path(config.directory).absolute())


def _places(config: DataConfig) -> list[tuple[str, str]]:
    return [(data.directory, getattr(data, split)) for data, split in _splits(config)]


def files_of(config: DataConfig) -> list[list]:
    """The text's files with sizes and times, which change when the text does."""
    found: list[list] = []
    for data, split in _splits(config):
        if data.corpus.startswith("tfds:"):
            found.append([data.directory])
        elif not data.corpus.startswith("builtin:"):
            names = [name for part in read_parts(data, split) for name in part[:2]]
            paths = [name if url_of(name) else Path(name).absolute() for name in names]
            found += [[str(path), *size_and_time(Path(path))] for path in paths]
    return found


def require_same_text(
    config: DataConfig, workdir: Path, report: dict[str, Any]
) -> None:
    """Raise InputError for other settings or text; text that is gone is no other."""
    settings = translated({"data": report["settings"]})["data"]
    before, files = DataConfig.of(DataConfig.recorded(settings)), []
    changed = [
        f"data.{key} was {getattr(before, key, old)!r} and is now "
        f"{getattr(config, key, new)!r}"
        for key, new in config.prepared_by().items()
        if (old := before.prepared_by()[key]) != new
    ]
    if changed:
        raise InputError(
            f"{workdir} was prepared with other settings "
            f"({'; '.join(changed)}): use another run folder, or delete corpus and "
            "tokenizer.model in it to prepare it again"
        )
    try:
        files = files_of(config)
        if files == report["files"] or _hash_text(config) == report["text"]:
            return
        known = [file[1:] for file in report["files"]]  # files may move
        names = [file[0] for file in files if file[1:] not in known]
        text = ", ".join(names[:2]) or config.train
        fault = f"another text than that in {text}"
    except InputError as error:
        if not files and _places(config) == _places(before):
            return
        text = report["files"][0][0]
        fault = f"{text}, and the text of the config cannot be compared ({error})"
    cure = "use another run folder"
    if not entries(workdir / "checkpoints"):
        cure += ", or delete corpus and tokenizer.model in it to prepare it again"
    raise InputError(f"{workdir} was prepared with {fault}; {cure}")
