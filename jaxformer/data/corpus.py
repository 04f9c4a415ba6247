"""Prepare a workdir: train the vocabulary, clean and tokenise the text (section 5.1).

Training and evaluation read only what `prepare` writes:

    workdir/tokenizer.model     the vocabulary
    workdir/corpus/train/       cleaned training pairs (`jaxformer.data.store`), one
                                corpus after the other
    workdir/corpus/versions/    with data.subword_sampling: `jaxformer.data.subwords`
    workdir/corpus/dev/         every dev pair, in order
    workdir/corpus/dev.source.txt, dev.target.txt   the same as text, for BLEU
    workdir/corpus/dev.NAME/, ...                   those of all corpora but the first
    workdir/corpus/report.json  counts of kept and dropped pairs, the settings they were
                                prepared with, and hashes of the text and the tokenizer
    workdir/corpus/XXH128SUMS   checksums of all these files, verified at each opening

Only training pairs are cleaned, since scores must not depend on cleaning.
"""

import functools
import json
import logging
import operator
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.data.cleaning import Chunk, CorpusReport, clean
from jaxformer.data.sources import Pair, read_pairs, read_parts
from jaxformer.data.store import SIDES, TokenizedCorpus, open_corpus, write_corpus
from jaxformer.data.subwords import Subwords, write_training_text
from jaxformer.data.text import read_lines
from jaxformer.data.tokenizer import Tokenizer, pair_of, train_tokenizer
from jaxformer.data_config import DataConfig
from jaxformer.errors import InputError
from jaxformer.files import (
    new_folder,
    verify_checksums,
    write_atomically,
    write_checksums,
)
from jaxformer.progress import Progress, progress, track

log = logging.getLogger(__name__)


class DevSet(NamedTuple):
    """A validation text: its pairs in tokens, and its sentences."""

    pairs: TokenizedCorpus
    source: list[str]
    target: list[str]


class PreparedCorpus(NamedTuple):
    """The tokenizer, the training pairs and the validation texts of a workdir."""

    tokenizer: Tokenizer
    train: TokenizedCorpus
    dev: dict[str, DevSet]  # by the name of the corpus
    report: dict[str, Any]  # CorpusReport of "train" and of dev sets as dicts, and more
    subwords: Subwords | None = None  # of `train`, with data.subword_sampling

    def counts(self, corpus: str, split: str) -> dict[str, Any]:
        """The CorpusReport of the split "train" or "dev" of a corpus."""
        if split == "train":
            return self.report["corpora"][corpus]
        return self.report[self.report["dev_sets"][corpus]]

    def lengths(self, corpus: str, split: str) -> list[np.ndarray]:
        """Tokens of each source and of each target, EOS included, int32 [n] each."""
        if split == "dev":
            return [side.lengths for side in self.dev[corpus].pairs]
        part = slice(*self.bounds()[corpus])
        return [side.lengths[part] for side in self.train]

    def sizes(self) -> dict[str, int]:
        """The training pairs of each corpus."""
        return {name: each["kept"] for name, each in self.report["corpora"].items()}

    def bounds(self) -> dict[str, tuple[int, int]]:
        """The first pair of each corpus in `train`, and the end of its pairs."""
        edges = pairwise([0, *np.cumsum([*self.sizes().values()]).tolist()])
        return dict(zip(self.report["corpora"], edges, strict=True))


def read_split(config: DataConfig, split: str) -> tuple[list[str], list[str]]:
    """Read all source and all target sentences of a small split, unchanged."""
    pairs = list(read_pairs(config, split))
    return [source for source, _ in pairs], [target for _, target in pairs]


def prepare(
    config: DataConfig, workdir: Path, *, tokenizer: Tokenizer | None = None
) -> PreparedCorpus:
    """Prepare a workdir, or open it if it is prepared already.

    A tokenizer is trained unless `tokenizer` is given. Raises
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
    # Before the long work: it may be missing.
    dev = {name: read_split(data, "dev") for name, data in config.dev_texts.items()}
    for name, (sentences, _) in dev.items():
        if not sentences:
            raise InputError(
                f"the dev split {name and f'of {name} '}is empty; raise "
                "data.builtin_eval_pairs or change data.dev"
            )
    with new_folder(corpus) as partial:
        file, is_new = workdir / "tokenizer.model", tokenizer is None
        if is_new:
            size = config.vocab_size
            log.info("corpus: training a vocabulary of %d on %s", size, config.corpus)
            with progress("reading", unit="pairs") as read:
                tokenizer = _train(config, read)
            total = read.n
        else:
            log.info("corpus: using a tokeniser of %d ids", tokenizer.vocab_size)
        _write(partial, config, tokenizer, dev, total)
        write_checksums(partial)
        if not file.exists():
            write_atomically(file, tokenizer.content)
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
    report.setdefault("corpora", {"": report["train"]})  # of older runs
    report.setdefault("dev_sets", {"": "dev"})
    tokenizer = Tokenizer.load(workdir / "tokenizer.model", report["tokenizer"])
    dev = {}
    for name, folder in report["dev_sets"].items():
        texts = [list(read_lines(corpus / f"{folder}.{side}.txt")) for side in SIDES]
        dev[name] = DevSet(open_corpus(corpus / folder), *texts)
    train = open_corpus(corpus / "train")
    subwords = Subwords.open(corpus, report["settings"])
    return PreparedCorpus(tokenizer, train, dev, report, subwords)


def _train(config: DataConfig, read: Progress) -> Tokenizer:
    def sentences(*sides: int) -> Iterator[str]:
        for data in config.training_texts.values():
            for part in read_parts(data, "train"):
                for pair in part.pairs:
                    read.update(0 in sides)  # each pair once
                    yield from (pair[side] for side in sides)

    if config.shared_vocabulary:
        return train_tokenizer(sentences(0, 1), config)
    source = train_tokenizer(sentences(0), config)
    target = train_tokenizer(sentences(1), config, has_tags=False)
    return pair_of(source.content, target.content)


def _write(
    folder: Path,
    config: DataConfig,
    tokenizer: Tokenizer,
    dev: dict[str, tuple[list[str], list[str]]],
    total: int | None,
) -> None:
    """Write all texts in tokens, those of dev also as text, and the report."""
    digest = sha256()
    size = {"vocab_size": tokenizer.largest_vocab_size}
    reports = {name: CorpusReport() for name in config.training_texts}
    progress_of = functools.partial(track, unit="pairs")
    if len(reports) > 1:
        total = None  # it is that of all

    def training_chunks() -> Iterator[Chunk]:
        for name, data in config.training_texts.items():
            label = f"tokenising train {name}".rstrip()
            pairs = progress_of(read_pairs(data, "train"), label, total)
            yield from clean(_hashed(pairs, digest), tokenizer, reports[name], data)
            log.info("corpus: train%s: %s", f" {name}" if name else "", reports[name])

    write_training_text(folder, training_chunks(), tokenizer, config)
    train = functools.reduce(operator.add, reports.values())
    if not train.kept:
        raise InputError(
            f"no training pair is left of {train.pairs}: dropped {train.dropped}"
        )
    report = {"train": asdict(train), "dev_sets": {}}
    report["corpora"] = {name: asdict(counts) for name, counts in reports.items()}
    for name, sides in dev.items():
        part = f"dev.{name}" if report["dev_sets"] else "dev"
        pairs = progress_of(
            zip(*sides, strict=True), f"tokenising {part}", len(sides[0])
        )
        counts = CorpusReport()
        chunks = clean(_hashed(pairs, digest), tokenizer, counts, None)
        write_corpus(folder / part, (chunk.ids for chunk in chunks), **size)
        log.info("corpus: %s: %s", part, counts)
        report["dev_sets"][name], report[part] = part, asdict(counts)
        for side, sentences in zip(SIDES, sides, strict=True):
            text = "".join(f"{sentence}\n" for sentence in sentences)
            (folder / f"{part}.{side}.txt").write_text(text, "utf-8", newline="\n")
    report |= size | {
        "tokenizer": tokenizer.hash,
        "text": digest.hexdigest(),
        "settings": asdict(config),
        "folder": _folder(config),
        "files": _files(config),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def _splits(config: DataConfig) -> list[tuple[DataConfig, str]]:
    """All texts that are prepared, in their order."""
    train, dev = config.training_texts.values(), config.dev_texts.values()
    return [*((data, "train") for data in train), *((data, "dev") for data in dev)]


def _hash_text(config: DataConfig) -> str:
    digest = sha256()
    for data, split in _splits(config):
        deque(_hashed(read_pairs(data, split), digest), maxlen=0)
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


def _require_same_text(
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
        if _files(config) == report["files"] or _hash_text(config) == report["text"]:
            return
    except InputError as error:
        folders = config.directory, config.data_dir
        if folders == (before.directory, before.data_dir):
            return
        fault = f"cannot be compared ({error})"
    raise InputError(
        f"{workdir} was prepared with the text in {report['folder']}, and the text in "
        f"{_folder(config)} {fault}; use another workdir"
    )
