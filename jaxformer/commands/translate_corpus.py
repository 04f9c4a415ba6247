"""jaxformer translate_corpus: translate a text of any length into a parallel corpus.

The folder --output gets two files named by language, which `data.corpus=directory`
reads in both directions, and report.json. The same command continues after any stop.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from jaxformer.config.data import DataConfig
from jaxformer.decoding.all_processes import translate_all
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.translator import Translator
from jaxformer.models.sequence_model import parameter_hash
from jaxformer.runs.config_files import MODEL, ConfigRequest
from jaxformer.runs.open import open_translator
from jaxformer.runs.run import open_run, read_parameters
from jaxformer.runs.texts import (
    of_split,
    of_tags,
    require_one_direction,
    require_own_tags,
)
from jaxformer.system.errors import InputError
from jaxformer.system.files import digest
from jaxformer.system.first import once
from jaxformer.system.progress import progress, track
from jaxformer.text.append_only import GrowingCorpus, grow_corpus
from jaxformer.text.languages import Languages
from jaxformer.text.lines import read_lines
from jaxformer.text.pairs import REASONS, PairFilter
from jaxformer.text.stream import blocks_of, in_shares

logger = logging.getLogger(__name__)

STEM = "train"  # of both files


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    source: Path | None,
    output: Path | None,
    split: str,
    languages: bool,
    least_log_probability: float | None,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Translate the lines of `source` into the folder `output`; return counts.

    The languages and the tag are those of corpus NAME, if `split` is NAME/SPLIT.

    Of several processes the first one reads and writes, and all translate.
    """
    for name, path in {"source": source, "output": output}.items():
        if path is None:
            raise InputError(f"--{name} is missing; give the text and a new folder")
    this = open_run(workdir, config, models.dtype)
    has_name = "/" in split
    this = of_split(this, split) if has_name else of_tags(this, options)
    data = this.config.data
    corpora = [part.data for part in data.parts.values()]
    require_one_direction(corpora, source, "test")
    require_own_tags(data, options, f"--split={split}" if has_name else "the run")
    if data.source_language == data.target_language:
        raise InputError(
            f"the run translates {data.direction}, and the files are named by language"
        )
    found = open_languages(data) if languages else None
    translator = open_translator(this, models, options.resolve(this.config))
    rerankers = models.choose.rerankers if models.choose else ()
    hashes = [
        parameter_hash(read_parameters(open_run(run), None)) for run, _ in rerankers
    ]
    chosen_by = " ".join([str(models.choose), *hashes])
    limit = min(data.max_length, translator.longest or data.max_length)
    tags = {"tag": translator.options.tag, "target_tag": ""}
    data = replace(data, **tags, max_length=limit, corpora=(), columns=())
    rules = PairFilter(
        this.tokenizer.for_target(""),
        data,
        languages=found,
        least_log_probability=least_log_probability,
    )
    with ExitStack() as held:
        written, lines = None, iter(())

        def begin() -> tuple[int, int]:
            nonlocal written, lines
            text, own = measure(source), this.export and digest(this.export / MODEL)
            made_with = {
                **text, "parameters": own or parameter_hash(translator.params),
                "tokenizer": this.tokenizer.hash, "direction": data.direction,
                "max_length": limit, "max_ratio": data.max_ratio,
                "dtypes": [model.dtype for model in translator.models],
                "languages": languages, "least_log_probability": least_log_probability,
                "choose": chosen_by, **vars(translator.options),
            }  # fmt: skip
            del made_with["batch_tokens"]  # may be lowered if memory is short
            names = data.source_language, data.target_language
            opened = grow_corpus(
                output, [f"{STEM}.{name}" for name in names],
                lines=text["source_lines"], reasons=REASONS, made_with=made_with,
            )  # fmt: skip
            written = held.enter_context(opened)
            lines = islice(read_lines(source), written.report.lines, None)
            return written.report.lines, written.report.of

        done = once(begin)
        translate_lines(lines, *done, translator, rules, written)
    if written is None:
        return {}
    report = written.report
    reasons = [f"{count:,} {why}" for why, count in report.dropped.items() if count]
    logger.info(
        "%s: %s of %s pairs kept, dropped: %s", output, f"{report.kept:,}",
        f"{report.lines:,}", ", ".join(reasons) or "none",
    )  # fmt: skip
    return {
        "lines": report.lines, "kept": report.kept, "dropped": report.dropped,
        "direction": data.direction, "output": str(output),
    }  # fmt: skip


def open_languages(data: DataConfig) -> Languages:
    """Open the model of languages. Raises InputError for one that it lacks."""
    try:
        return Languages((data.source_language, data.target_language))
    except InputError as error:
        remedy = "leave out that rule with --no-languages"
        raise InputError(f"{error}; {remedy}") from None


def measure(source: Path) -> dict[str, Any]:
    """Count and hash the lines of a text. Raises InputError if it cannot be read.

    It is read again when it is translated, so it cannot be a pipe.
    """
    if source.exists() and not source.is_file():
        raise InputError(f"--source {source} is no file, and it is read twice")
    digest, count = hashlib.sha256(), 0
    for line in track(read_lines(source), f"reading {source}", unit="lines"):
        digest.update(f"{line}\n".encode())
        count += 1
    return {"source": digest.hexdigest(), "source_lines": count}


def translate_lines(
    lines: Iterator[str],
    done: int,
    total: int,
    translator: Translator,
    rules: PairFilter,
    written: GrowingCorpus | None,
) -> None:
    """Translate the lines after the first `done` of `total`; process 0 writes them."""
    if done == total:
        return
    with progress("translating", total, unit="lines", initial=done) as bar:
        for block in blocks_of(lines):
            faults = in_shares(rules.of_lines, block)
            # A line that needs no translation becomes blank, and keeps its number.
            texts = [
                "" if fault else line for line, fault in zip(block, faults, strict=True)
            ]
            found = translate_all(
                translator, texts, first=done, report=lambda: bar.update()
            )
            pairs = [
                (block[i], hypotheses[0])
                for i, hypotheses in enumerate(found)
                if not faults[i]
            ]
            dropped = in_shares(lambda share: faults_of(rules, share), pairs)
            done += len(block)
            bar.update(done - bar.n)
            kept = [
                (line, best.text)
                for (line, best), fault in zip(pairs, dropped, strict=True)
                if not fault
            ]
            sides = list(zip(*kept, strict=True)) or [(), ()]
            counts = Counter([*faults, *dropped])
            block_size = len(block)
            once(lambda: written.append(block_size, sides, counts))  # noqa: B023
    if done != total:
        raise InputError(
            f"the source had {total} lines and has another number now: it changed "
            "while it was translated; repeat the command with a new folder"
        )


def faults_of(rules: PairFilter, pairs: list[tuple[str, Hypothesis]]) -> list[str]:
    """Return why each line with its translation is dropped, or ""."""
    # A line that is a tag and nothing else has no tokens.
    means = [best.log_probability / max(1, best.tokens) for _, best in pairs]
    lines, found = [line for line, _ in pairs], [best.text for _, best in pairs]
    return rules.of_pairs(lines, found, means)
