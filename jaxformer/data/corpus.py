"""Prepare a workdir: train the vocabulary, clean and tokenise the text (section 5.1).

Training and evaluation read only what `prepare` writes:

    workdir/tokenizer.model     the vocabulary
    workdir/corpus/train/       cleaned training pairs (`jaxformer.data.store`)
    workdir/corpus/dev/         every dev pair, in order
    workdir/corpus/dev.source.txt, dev.target.txt   the same as text, for BLEU
    workdir/corpus/report.json  counts of kept and dropped pairs, the settings they were
                                prepared with, and the hash of the tokenizer

Only training pairs are cleaned, since scores must not depend on cleaning.
"""

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.config import DataConfig
from jaxformer.data.cleaning import CorpusReport, clean
from jaxformer.data.sources import read_pairs
from jaxformer.data.store import SIDES, TokenizedCorpus, open_corpus, write_corpus
from jaxformer.data.text import read_lines
from jaxformer.data.tokenizer import Tokenizer, train_tokenizer
from jaxformer.errors import InputError
from jaxformer.files import new_folder
from jaxformer.progress import track

log = logging.getLogger(__name__)


class PreparedCorpus(NamedTuple):
    """The tokenizer, the tokenised pairs and the dev text of a workdir."""

    tokenizer: Tokenizer
    train: TokenizedCorpus
    dev: TokenizedCorpus
    dev_source: list[str]
    dev_target: list[str]
    report: dict[str, Any]  # CorpusReport of "train" and "dev" as dicts, and more


def read_split(config: DataConfig, split: str) -> tuple[list[str], list[str]]:
    """Read all source and all target sentences of a small split, unchanged."""
    pairs = list(read_pairs(config, split))
    return [source for source, _ in pairs], [target for _, target in pairs]


def prepare(
    config: DataConfig, workdir: Path, *, tokenizer: Tokenizer | None = None
) -> PreparedCorpus:
    """Prepare a workdir, or open it if it is prepared already.

    A tokenizer is trained unless `tokenizer` is given: that of the workdir, when its
    checkpoints depend on it. Raises InputError if the text cannot be used, leaving the
    workdir unchanged, or if the workdir was prepared with other settings.
    """
    corpus = workdir / "corpus"
    if corpus.exists():
        _check_settings(config, corpus)
        log.info("corpus: using %s as it was prepared", corpus)
        return open_prepared(workdir)
    start, total = time.monotonic(), None  # pairs, once they are read
    dev = read_split(config, "dev")  # before the long work: it may be missing
    with new_folder(corpus) as partial:
        trained = partial / "tokenizer.model"
        if tokenizer is None:
            size = config.vocab_size
            log.info("corpus: training a vocabulary of %d on %s", size, config.corpus)
            pairs = track(read_pairs(config, "train"), "reading", unit="pairs")

            def sentences() -> Iterator[str]:
                nonlocal total
                total = 0
                for pair in pairs:
                    total += 1
                    yield from pair

            tokenizer = train_tokenizer(sentences(), trained, config)
        _write(partial, config, tokenizer, dev, total)
        if trained.exists():
            os.replace(trained, workdir / "tokenizer.model")
    log.info("corpus: prepared in %.0f s", time.monotonic() - start)
    return open_prepared(workdir)


def open_prepared(workdir: Path) -> PreparedCorpus:
    """Open a prepared workdir; InputError if it is damaged or of another tokenizer."""
    corpus = workdir / "corpus"
    report = _read_report(corpus)
    tokenizer = Tokenizer.load(workdir / "tokenizer.model")
    if tokenizer.hash != report["tokenizer"]:
        raise InputError(
            f"{workdir / 'tokenizer.model'} is not the tokenizer that {corpus} was "
            "prepared with: put that one back, or delete both and prepare again"
        )
    splits = [open_corpus(corpus / split) for split in ("train", "dev")]
    texts = [list(read_lines(corpus / f"dev.{side}.txt")) for side in SIDES]
    return PreparedCorpus(tokenizer, *splits, *texts, report)


def _write(
    folder: Path,
    config: DataConfig,
    tokenizer: Tokenizer,
    dev: tuple[list[str], list[str]],
    total: int | None,
) -> None:
    """Write both splits in tokens, the text of dev, and the report."""
    report = {}
    for split, pairs, rules in (
        ("train", read_pairs(config, "train"), config),
        ("dev", zip(*dev, strict=True), None),
    ):
        size = total if rules else len(dev[0])
        pairs = track(pairs, f"tokenising {split}", size, unit="pairs")
        counts = CorpusReport()
        chunks = clean(pairs, tokenizer, counts, rules)
        write_corpus(folder / split, chunks, vocab_size=tokenizer.vocab_size)
        log.info("corpus: %s: %s", split, counts)
        if rules and not counts.kept:
            raise InputError(
                f"no training pair is left of {counts.pairs}: dropped {counts.dropped}"
            )
        report[split] = asdict(counts)
    for side, sentences in zip(SIDES, dev, strict=True):
        text = "".join(f"{sentence}\n" for sentence in sentences)
        (folder / f"dev.{side}.txt").write_text(text, "utf-8", newline="\n")
    report |= {
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.hash,
        "settings": config.fixed(),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def _read_report(corpus: Path) -> dict[str, Any]:
    path = corpus / "report.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        raise InputError(
            f"{corpus.parent} holds no prepared corpus ({path} cannot be read): "
            "prepare the text in a new workdir"
        ) from None


def _check_settings(config: DataConfig, corpus: Path) -> None:
    before = _read_report(corpus)["settings"]
    changed = [
        f"data.{key} was {before.get(key)!r} and is now {value!r}"
        for key, value in config.fixed().items()
        if before.get(key) != value
    ]
    if changed:
        raise InputError(
            f"{corpus.parent} was prepared with other settings ({'; '.join(changed)}): "
            f"use another workdir, or delete {corpus} to prepare it again"
        )
