"""From a source of parallel text to the tokenised corpus in a workdir.

Section 5.1 of the paper: sentence pairs and their shared vocabulary. `prepare` writes
once what training and evaluation then only read, so a workdir needs its source no more:

    workdir/tokenizer.model     the vocabulary, unless something was learnt with one
    workdir/corpus/train/       cleaned training pairs (`jaxformer.data.store`)
    workdir/corpus/dev/         every dev pair, in order
    workdir/corpus/dev.source.txt, dev.target.txt   the same as text, for BLEU
    workdir/corpus/report.json  what was kept, and what was dropped and why
    workdir/corpus/settings.json   the settings and tokenizer it was made with

Only training pairs are cleaned: a score must not depend on what the cleaning thinks of
a test sentence. `corpus/` appears complete or not at all. Used by the modes.
"""

import json
import logging
import os
import time
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.config import DataConfig
from jaxformer.data.cleaning import CorpusReport, clean
from jaxformer.data.sources import read_lines, read_pairs
from jaxformer.data.store import (
    TokenizedCorpus,
    new_directory,
    open_corpus,
    write_corpus,
)
from jaxformer.data.tokenizer import Tokenizer, train_tokenizer
from jaxformer.errors import InputError

log = logging.getLogger(__name__)

# Where the text was found, and splits that are read when they are evaluated, do not
# change what is prepared.
_NOT_PREPARED = (
    "directory", "data_dir", "download", "test", "test_source", "test_target",
)  # fmt: skip


class PreparedCorpus(NamedTuple):
    """All that training needs of the text."""

    tokenizer: Tokenizer
    train: TokenizedCorpus
    dev: TokenizedCorpus
    dev_source: list[str]
    dev_target: list[str]
    report: dict[str, Any]  # CorpusReport of "train" and "dev" as a dict, and more


def read_split(config: DataConfig, split: str) -> tuple[list[str], list[str]]:
    """All source and all target sentences of a small split, untouched and in order."""
    pairs = list(read_pairs(config, split))
    return [source for source, _ in pairs], [target for _, target in pairs]


def prepare(
    config: DataConfig, workdir: Path, *, learnt_with: Tokenizer | None = None
) -> PreparedCorpus:
    """Train the tokenizer, clean and tokenise; or open what is there already.

    `learnt_with` is the workdir's tokenizer if its checkpoints know its pieces: it is
    used and none trained. Raises InputError if the text cannot be used, leaving the
    workdir as it was, or if the workdir was prepared with other settings, naming them.
    """
    corpus = workdir / "corpus"
    if corpus.exists():
        _check_settings(config, workdir)
        log.info("corpus: using %s as it was prepared", corpus)
        return open_prepared(workdir)
    start = time.monotonic()
    dev = read_split(config, "dev")  # before the long work: it may be missing
    with new_directory(corpus) as partial:
        trained = partial / "tokenizer.model"
        tokenizer = learnt_with or _train_tokenizer(config, trained)
        train_report = _write_train(config, tokenizer, partial / "train")
        dev_report = _write_dev(dev, tokenizer, partial)
        report = {
            "train": asdict(train_report),
            "dev": asdict(dev_report),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.hash,
        }
        settings = {"data": _settings(config), "tokenizer": tokenizer.hash}
        _write_json(partial / "report.json", report)
        _write_json(partial / "settings.json", settings)
        if learnt_with is None:
            os.replace(trained, workdir / "tokenizer.model")
    log.info("corpus: prepared in %.0f s", time.monotonic() - start)
    return open_prepared(workdir)


def open_prepared(workdir: Path) -> PreparedCorpus:
    """Open what `prepare` wrote; InputError if it is missing, damaged or foreign."""
    corpus = workdir / "corpus"
    settings = _read_settings(workdir)
    tokenizer = Tokenizer.load(workdir / "tokenizer.model")
    if tokenizer.hash != settings["tokenizer"]:
        raise InputError(
            f"{workdir / 'tokenizer.model'} is not the tokenizer that {corpus} was "
            "prepared with: put that one back, or delete both and prepare again."
        )
    return PreparedCorpus(
        tokenizer,
        open_corpus(corpus / "train"),
        open_corpus(corpus / "dev"),
        list(read_lines(corpus / "dev.source.txt")),
        list(read_lines(corpus / "dev.target.txt")),
        json.loads((corpus / "report.json").read_text()),
    )


def _train_tokenizer(config: DataConfig, path: Path) -> Tokenizer:
    log.info(
        "corpus: training a vocabulary of %d on %s", config.vocab_size, config.corpus
    )
    return train_tokenizer(
        chain.from_iterable(read_pairs(config, "train")),
        path,
        vocab_size=config.vocab_size,
        character_coverage=config.character_coverage,
        max_sentences=config.vocab_sentences,
        seed=config.seed,
    )


def _write_train(
    config: DataConfig, tokenizer: Tokenizer, directory: Path
) -> CorpusReport:
    report = CorpusReport()
    chunks = clean(
        read_pairs(config, "train"),
        tokenizer,
        report,
        max_length=config.max_length,
        max_ratio=config.max_ratio,
        deduplicate=config.deduplicate,
    )
    write_corpus(directory, chunks, vocab_size=tokenizer.vocab_size)
    log.info("corpus: train: %s", report)
    if report.kept == 0:
        raise InputError(
            f"No training pair is left of {report.pairs}: dropped {report.dropped}."
        )
    return report


def _write_dev(
    dev: tuple[list[str], list[str]], tokenizer: Tokenizer, directory: Path
) -> CorpusReport:
    sequences = [tokenizer.encode(dev[0]), tokenizer.encode_target(dev[1])]
    write_corpus(directory / "dev", [tuple(sequences)], vocab_size=tokenizer.vocab_size)
    for name, sentences in zip(("source", "target"), dev, strict=True):
        text = "".join(f"{sentence}\n" for sentence in sentences)
        (directory / f"dev.{name}.txt").write_bytes(text.encode("utf-8"))
    report = CorpusReport(pairs=len(dev[0]), kept=len(dev[0]))
    report.source.add(sequences[0])
    report.target.add(sequences[1])
    log.info("corpus: dev: %s", report)
    return report


# What a workdir was prepared with -------------------------------------------------


def _settings(config: DataConfig) -> dict[str, Any]:
    """The keys that decide what is prepared."""
    return {k: v for k, v in asdict(config).items() if k not in _NOT_PREPARED}


def _read_settings(workdir: Path) -> dict[str, Any]:
    path = workdir / "corpus" / "settings.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        raise InputError(
            f"{workdir} holds no prepared corpus ({path} cannot be read): run "
            "--mode=prepare with a config in a new workdir."
        ) from None


def _check_settings(config: DataConfig, workdir: Path) -> None:
    before, now = _read_settings(workdir)["data"], _settings(config)
    changed = [
        f"data.{key} was {before.get(key)!r} and is now {now[key]!r}"
        for key in now
        if before.get(key) != now[key]
    ]
    if changed:
        raise InputError(
            f"{workdir} was prepared with other settings ({'; '.join(changed)}): use "
            f"another workdir, or delete {workdir / 'corpus'} to prepare it again."
        )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
