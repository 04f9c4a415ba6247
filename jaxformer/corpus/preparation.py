"""Prepare a workdir: train the vocabulary, clean and tokenise the text (section 5.1).

The text is read twice. The first reading counts the pairs, finds duplicates and draws
the sentences of which the vocabulary is made. In the second, processes tokenise chunks
of pairs, which become the shards of the corpus. The files are the same for any number
of processes.

Until the end all files are in a hidden folder. After a kill or a full disk, `prepare`
goes on with the missing shards there if the first reading was complete.
"""

import functools
import json
import logging
import operator
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.config.languages import language_code
from jaxformer.corpus.prepared import PreparedCorpus, open_prepared
from jaxformer.corpus.shard_job import FOUND, SHARDS
from jaxformer.corpus.store import ShardWriter, id_dtype, names_of, read_index
from jaxformer.corpus.survey import (
    SURVEY,
    Sides,
    Survey,
    abandon,
    chunks_of,
    folder_of,
    repeated_pairs,
    require_same_text,
    survey_files,
    survey_text,
    trained_tokenizer,
)
from jaxformer.system.cores import usable_cores
from jaxformer.system.errors import InputError
from jaxformer.system.files import (
    entries,
    files_below,
    new_folder,
    remove,
    write_atomically,
    write_checksums,
)
from jaxformer.system.mirror import LOCAL, Mirror
from jaxformer.system.progress import Progress, progress
from jaxformer.system.worker import ordered_map
from jaxformer.text import sources
from jaxformer.text.cleaning import Chunk, CleanChunk, CorpusReport, clean_chunk
from jaxformer.text.flaws import SAMPLE, flaws, require_languages
from jaxformer.text.sources import Pair, read_split
from jaxformer.text.text_hash import TextChangedError
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import SIDES

if TYPE_CHECKING:
    from jaxformer.corpus.beam import Beam

log = logging.getLogger(__name__)

_MOST = 32  # processes: one reads for all of them
_CLEAN = "jaxformer.text.cleaning:clean_chunk"


def prepare(
    config: DataConfig,
    workdir: Path,
    *,
    tokenizer: Tokenizer | None = None,
    trained_text: str | None = None,
    processes: int | None = None,
    pipeline: "Beam | None" = None,
    mirror: Mirror = LOCAL,
) -> PreparedCorpus:
    """Prepare a workdir, or open it if it is prepared already, as `open_prepared`.

    A tokenizer is trained unless `tokenizer` is given. `trained_text` is the hash of
    the text that checkpoints of the workdir were trained on. `processes` clean long
    text; None: one for each core. With a `pipeline` its workers do. Raises InputError
    if the text cannot be used, leaving the workdir unchanged, or if the workdir is
    damaged or was prepared or trained with other settings or other text.
    """
    corpus = workdir / "corpus"
    if corpus.exists():
        prepared = open_prepared(workdir, mirror, trained_text=trained_text)
        require_same_text(config, workdir, prepared.report)
        log.info("corpus: using %s as it was prepared", corpus)
        return prepared
    start = time.monotonic()
    untagged = [name for name, part in config.parts.items() if not part.data.target_tag]
    if untagged and config.target_tags:
        raise InputError(
            f"of data.corpora some have the target_tag {config.target_tags[0]} and "
            f"{', '.join(untagged)} none; give one to each, or to none"
        )
    for part in config.parts.values():
        for key in ("source_language", "target_language"):
            name = getattr(part.data, key)
            if len(name) > 3 and (code := language_code(name)):
                raise InputError(f"data.{key} is {name!r}; write its code, {code}")
        flaws([("", "")], part.data, part.data.drop or ())  # languages are known
    if pipeline:
        pipeline.begin(config)
    # Before the long work: it may be missing.
    dev = {name: read_split(data, "dev") for name, data in config.dev_texts.items()}
    for name, sides in dev.items():
        pairs = [*zip(*sides, strict=True)]
        require_languages(pairs[:SAMPLE], "dev", config.parts[name].data)
    with new_folder(corpus, state=SURVEY) as partial:
        survey = survey_text(partial, config, dev, tokenizer, pipeline)
        if trained_text not in (None, survey.text):
            abandon(partial)
            raise InputError(
                f"{workdir} has checkpoints and no corpus, and the text in "
                f"{folder_of(config)} is not what they were trained on; put the text "
                "or the corpus back, or use another run folder"
            )
        if tokenizer is None:
            tokenizer = trained_tokenizer(partial)
        else:
            log.info("corpus: using a tokeniser of %s ids", f"{tokenizer.vocab_size:,}")
        pieces = [*tokenizer.source_pieces(), *tokenizer.pieces()]
        crossing = [piece for piece in pieces if "▁" in piece[1:]]
        if config.subword_sampling is not None and crossing:
            abandon(partial)
            raise InputError(
                "data.subword_sampling needs pieces within words; the tokeniser has "
                f"{crossing[0]!r}: set it to None or use another tokeniser"
            )
        report = _write_train(partial, config, tokenizer, survey, processes, pipeline)
        tags = {name: data.target_tag for name, data in config.dev_texts.items()}
        _write_dev(partial, dev, tokenizer, tags, report)
        report |= {
            "vocab_size": tokenizer.largest_vocab_size,
            "tokenizer": tokenizer.hash,
            "text": survey.text,
            "settings": asdict(config),
            "versions": config.version_count,
            "folder": folder_of(config),
            "files": survey.made_with["files"],
        }
        (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        for name in (FOUND, SHARDS):  # what stopped pipelines left
            for path in entries(partial, f"{name}.*"):
                remove(path)
        for path in files_below(partial):  # what killed processes left
            if path.name.startswith(".") and path.suffix == ".partial":
                path.unlink()
        with progress("writing checksums"):
            write_checksums(partial, leave_out=survey_files(partial))
        file = workdir / "tokenizer.model"
        if not file.exists():
            write_atomically(file, tokenizer.content)
        for path in survey_files(partial):
            path.unlink()
    log.info("corpus: prepared in %.0f s", time.monotonic() - start)
    return open_prepared(workdir)


def _write_train(
    folder: Path,
    config: DataConfig,
    tokenizer: Tokenizer,
    survey: Survey,
    processes: int | None,
    pipeline: "Beam | None",
) -> dict[str, Any]:
    """Write the missing shards of the training text; return its part of the report."""
    try:
        if pipeline:
            pipeline.write_shards(folder, config, tokenizer, survey.shards)
        else:
            workers = processes or min(_MOST, usable_cores())
            _write_shards(folder, config, tokenizer, survey, workers)
    except TextChangedError:
        abandon(folder)
        raise
    shards, reports = read_index(folder / "train"), {}
    for name in config.training_texts:
        own = [each["report"] for each in shards if each["corpus"] == name]
        reports[name] = sum(map(CorpusReport.of, own), CorpusReport())
        log.info("corpus: %s: %s", f"train {name}".rstrip(), reports[name])
    train = functools.reduce(operator.add, reports.values())
    if not train.kept:
        abandon(folder)
        raise InputError(
            f"no training pair is left of {train.pairs:,}, dropped: {train.reasons}; "
            "give one sentence a line, with \\n at its end, or change data.max_length "
            "or data.max_ratio"
        )
    corpora = {name: asdict(counts) for name, counts in reports.items()}
    return {"train": asdict(train), "dev_sets": {}, "corpora": corpora}


def _write_shards(
    folder: Path,
    config: DataConfig,
    tokenizer: Tokenizer,
    survey: Survey,
    processes: int,
) -> None:
    """Write the missing shards."""
    names = names_of(config.version_count)
    size = id_dtype(tokenizer.largest_vocab_size)
    writer = ShardWriter(folder / "train", names, [size] * len(names))
    for number, (name, data) in enumerate(config.training_texts.items()):
        pairs, label = survey.pairs[name], f"train {name}".rstrip()
        done = sum(shard["corpus"] == name for shard in writer.shards)
        start = min(done * sources.SHARD, pairs)
        # Starting a process takes as long as a few thousand pairs.
        count = min(processes, max(1, (pairs - start) // (4 * sources.CHUNK)))
        state = tokenizer.content, -1 if count == 1 else 1, data
        texts = chunks_of(survey, config, name)
        deque(islice(texts, -(-start // sources.CHUNK)), maxlen=0)
        repeated = repeated_pairs(folder, number) if data.deduplicate else None
        chunks = _marked(texts, repeated, start, data.target_tag)
        with (
            progress(f"tokenising {label}", pairs, unit="pairs", initial=start) as work,
            closing(ordered_map(_CLEAN, state, chunks, processes=count)) as cleaned,
        ):
            for _ in range(done, -(-pairs // sources.SHARD)):
                part = islice(cleaned, sources.SHARD // sources.CHUNK)
                _write_shard(writer, name, part, work)
            deque(cleaned, maxlen=0)  # there is more text only if it changed


def _marked(
    texts: Iterable[list[Pair]], repeated: np.ndarray | None, start: int, tag: str
) -> Iterator[Chunk]:
    """Yield chunks of a text from pair `start` on with their part of `repeated`."""
    for pairs in texts:
        end = start + len(pairs)
        own = None if repeated is None else np.array(repeated[start:end])
        yield Chunk(pairs, own, tag)
        start = end


def _write_shard(
    writer: ShardWriter, name: str, chunks: Iterable[CleanChunk], work: Progress
) -> None:
    sides, report = [], CorpusReport()
    for chunk in chunks:
        sides.append(chunk.ids)
        report += chunk.report
        work.update(chunk.report.pairs)
    writer.write(sides, {"corpus": name, "report": asdict(report)})


def _write_dev(
    folder: Path,
    dev: dict[str, Sides],
    tokenizer: Tokenizer,
    tags: dict[str, str],
    report: dict[str, Any],
) -> None:
    """Write the validation texts, in tokens and as text; add them to the report.

    `tags` are those of the targets.
    """
    size = id_dtype(tokenizer.largest_vocab_size)
    for name, sides in dev.items():
        part = f"dev.{name}" if report["dev_sets"] else "dev"
        pairs = list(zip(*sides, strict=True))
        chunk = clean_chunk(tokenizer.content, -1, None, Chunk(pairs, None, tags[name]))
        remove(folder / part, ignore_errors=True)  # of an earlier command
        counts = asdict(chunk.report)
        ShardWriter(folder / part, SIDES, [size] * 2).write(
            [chunk.ids], {"corpus": name, "report": counts}
        )
        log.info("corpus: %s: %s", part, chunk.report)
        report["dev_sets"][name], report[part] = part, counts
        for side, sentences in zip(SIDES, sides, strict=True):
            text = "".join(f"{sentence}\n" for sentence in sentences)
            (folder / f"{part}.{side}.txt").write_text(text, "utf-8", newline="\n")
