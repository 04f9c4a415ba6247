"""Prepare a workdir: train the vocabulary, clean and tokenise the text (section 5.1).

Training and evaluation read only what `prepare` writes:

    workdir/tokenizer.model     the vocabulary
    workdir/corpus/train/       cleaned training pairs (`jaxformer.data.store`)
    workdir/corpus/dev/         every dev pair, in order
    workdir/corpus/dev.source.txt, dev.target.txt   the same as text, for BLEU
    workdir/corpus/report.json  counts of kept and dropped pairs, the settings they were
                                prepared with, and hashes of the text and the tokenizer
    workdir/corpus/XXH128SUMS   checksums of all these files, verified at each opening

Only training pairs are cleaned, since scores must not depend on cleaning.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.config import DataConfig
from jaxformer.data.cleaning import CorpusReport, clean
from jaxformer.data.sources import Pair, read_pairs, read_parts
from jaxformer.data.store import SIDES, TokenizedCorpus, open_corpus, write_corpus
from jaxformer.data.text import read_lines
from jaxformer.data.tokenizer import Tokenizer, train_tokenizer
from jaxformer.errors import InputError
from jaxformer.files import (
    new_folder,
    verify_checksums,
    write_atomically,
    write_checksums,
)
from jaxformer.progress import Progress, progress, track

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

    A tokenizer is trained unless `tokenizer` is given: that of the workdir. Raises
    InputError if the text cannot be used, leaving the workdir unchanged, or if the
    workdir is damaged or was prepared with other settings or other text.
    """
    corpus = workdir / "corpus"
    if corpus.exists():
        prepared = open_prepared(workdir)
        _require_same_text(config, workdir, prepared.report)
        log.info("corpus: using %s as it was prepared", corpus)
        return prepared
    start, total = time.monotonic(), None
    dev = read_split(config, "dev")  # before the long work: it may be missing
    if not dev[0]:
        raise InputError(
            "the dev split is empty; raise data.builtin_eval_pairs or change data.dev"
        )
    with new_folder(corpus) as partial:
        file, is_new = workdir / "tokenizer.model", tokenizer is None
        if is_new:
            size = config.vocab_size
            log.info("corpus: training a vocabulary of %d on %s", size, config.corpus)
            with progress("reading", unit="pairs") as read:
                tokenizer = train_tokenizer(_sentences(config, read), config)
            total = read.n
        else:
            log.info("corpus: using %s, %d ids", file, tokenizer.vocab_size)
        _write(partial, config, tokenizer, dev, total)
        write_checksums(partial)
        if is_new:
            write_atomically(file, tokenizer.source_model)
    log.info("corpus: prepared in %.0f s", time.monotonic() - start)
    return open_prepared(workdir)


def open_prepared(workdir: Path) -> PreparedCorpus:
    """Open a prepared workdir; InputError if it is damaged or of another tokenizer."""
    corpus = workdir / "corpus"
    if not corpus.exists():
        raise InputError(f"{workdir} holds no prepared corpus; run --mode=prepare")
    damage = verify_checksums(corpus)
    if damage:
        raise InputError(
            f"{corpus} is damaged: {damage}; put a copy back, or delete {corpus} and "
            "prepare the text again"
        )
    report = json.loads((corpus / "report.json").read_text())
    tokenizer = Tokenizer.load(workdir / "tokenizer.model", report["tokenizer"])
    splits = [open_corpus(corpus / split) for split in ("train", "dev")]
    texts = [list(read_lines(corpus / f"dev.{side}.txt")) for side in SIDES]
    return PreparedCorpus(tokenizer, *splits, *texts, report)


def _sentences(config: DataConfig, read: Progress) -> Iterator[str]:
    for pair in read_pairs(config, "train"):
        read.update()
        yield from pair


def _write(
    folder: Path,
    config: DataConfig,
    tokenizer: Tokenizer,
    dev: tuple[list[str], list[str]],
    total: int | None,
) -> None:
    """Write both splits in tokens, the text of dev, and the report."""
    report, digest = {}, sha256()
    for split, pairs, rules in (
        ("train", read_pairs(config, "train"), config),
        ("dev", zip(*dev, strict=True), None),
    ):
        size = total if rules else len(dev[0])
        pairs = track(pairs, f"tokenising {split}", size, unit="pairs")
        counts = CorpusReport()
        chunks = clean(_hashed(pairs, digest), tokenizer, counts, rules)
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
        "text": digest.hexdigest(),
        "settings": vars(config),
        "folder": _folder(config),
        "files": _files(config),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def _hash_text(config: DataConfig) -> str:
    digest = sha256()
    for split in ("train", "dev"):
        deque(_hashed(read_pairs(config, split), digest), maxlen=0)
    return digest.hexdigest()


def _hashed(pairs: Iterable[Pair], digest: Any) -> Iterator[Pair]:
    """Yield the pairs of a split unchanged; update the hash of the text by them."""
    for source, target in pairs:
        digest.update(f"{source}\t{target}\n".encode())
        yield source, target
    digest.update(b"\n")  # ends the split: no pair is an empty line


def _folder(config: DataConfig) -> str:
    """The folder that holds the text, or that its files are relative to."""
    is_tfds = config.corpus.startswith("tfds:")
    return config.data_dir if is_tfds else str(Path(config.directory).absolute())


def _files(config: DataConfig) -> list[list]:
    """The text's files with sizes and times, which change when the text does."""
    if config.corpus.startswith("builtin:"):
        return []
    if config.corpus.startswith("tfds:"):
        return [[config.data_dir]]
    parts = [part for split in ("train", "dev") for part in read_parts(config, split)]
    paths = [Path(name).absolute() for part in parts for name in part[:2]]
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def _require_same_text(
    config: DataConfig, workdir: Path, report: dict[str, Any]
) -> None:
    """Raise InputError for other settings or text; text that is gone is no other."""
    before, fault = report["settings"], "differs"
    changed = [
        f"data.{key} was {before.get(key)!r} and is now {value!r}"
        for key, value in config.fixed().items()
        if before.get(key) != value
    ]
    if changed:
        raise InputError(
            f"{workdir} was prepared with other settings ({'; '.join(changed)}): use "
            f"another workdir, or delete corpus and tokenizer.model in {workdir} to "
            "prepare it again"
        )
    try:
        if _files(config) == report["files"] or _hash_text(config) == report["text"]:
            return
    except InputError as error:
        folders = config.directory, config.data_dir
        if folders == (before["directory"], before["data_dir"]):
            return
        fault = f"cannot be compared ({error})"
    raise InputError(
        f"{workdir} was prepared with the text in {report['folder']}, and the text in "
        f"{_folder(config)} {fault}; use another workdir"
    )
