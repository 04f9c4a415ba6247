"""jaxformer report: one page about a run, or about several side by side, and its data.

Each run translates the text once, as jaxformer evaluate does; its log, corpus and
config are read from its workdir. A run without a checkpoint is reported without scores.
"""

import logging
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jaxformer.commands.evaluate import evaluate
from jaxformer.decoding.forced import Attention
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.decoding.translator import Translator
from jaxformer.models.sequence_model import parameter_count
from jaxformer.reports import run_report as report
from jaxformer.reports.page import Json
from jaxformer.reports.translations import ReportedText, describe_translations, unit_of
from jaxformer.runs.config_files import RECORDED, ConfigRequest
from jaxformer.runs.run import Run, open_run, plan_training
from jaxformer.runs.texts import of_split, read_text
from jaxformer.system.files import require_output
from jaxformer.system.first import once
from jaxformer.text.sources import Text
from jaxformer.training.log import METRICS_FILE, read_metrics
from jaxformer.training.loop import is_over
from jaxformer.training.optimizer import make_schedule

logger = logging.getLogger(__name__)


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    output: Path | None,
    compare: Sequence[Path],
    examples: int,
    source: Path | None,
    reference: Path | None,
    split: str,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Write the page to `output` and its data beside it; returns where, and BLEU.

    By default the page is report.html in the workdir.
    """
    page_file = output or workdir / "report.html"
    workdirs = [workdir, *compare]
    runs = {
        name: open_run(folder, config if folder == workdir else RECORDED)
        for name, folder in zip(report.unique_names(workdirs), workdirs, strict=True)
    }
    require_output(page_file, [".html"])
    report.require_own(page_file.with_suffix(".json"))
    data = of_split(next(iter(runs.values())), split).config.data
    if source is None and split == "test" and not data.has_text("test"):
        split = "dev"
    texts = {
        name: name_text(each, source, reference, split, options)
        for name, each in runs.items()
    }
    text = report.require_one_text({name: text for name, (_, text) in texts.items()})
    described = [
        describe(name, each, texts[name][0], text, examples, models, options)
        for name, each in runs.items()
    ]
    found = report.gather(*zip(*described, strict=True), text, examples=examples)
    first = found["runs"][0]
    bleu = first["scores"]["bleu"] if first["scores"] else {}
    return {
        "output": str(page_file),
        "json": once(lambda: str(report.write(found, page_file))),
        "bleu": bleu.get("score"),
        "signature": bleu.get("signature"),
        "direction": first["direction"],
        "sentences": len(text.sources) if text else 0,
    }


def name_text(
    run: Run,
    source: Path | None,
    reference: Path | None,
    split: str,
    options: TranslateRequest,
) -> tuple[Run, ReportedText | None]:
    """Read and name the text that a run translates; None if it is not trained yet.

    Also returns the run restricted to the text's corpus.
    """
    if not run.workdir.has_checkpoints():
        return of_split(run, split), None
    run, pairs = read_text(run, source, reference, split, options)
    values, kind = vars(run.config.data), split.rpartition("/")[2]
    name = source or values.get(kind, "").partition(",")[0] or kind  # of the sources
    languages = values["source_language"], values["target_language"]
    return run, ReportedText(Path(name).name, *languages, *pairs)


def describe(
    name: str,
    run: Run,
    of_text: Run,
    text: ReportedText | None,
    examples: int,
    models: ModelChoice,
    options: TranslateRequest,
) -> tuple[Json, list[str] | None]:
    """Return the report's data of a run, and its translations if it is trained.

    `of_text` is the run restricted to the text's corpus.
    """
    folder, config = run.workdir.path, run.config
    facts = {
        "name": name,
        "direction": of_text.config.data.direction,
        "length_unit": unit_of(of_text.config.data.source_language),
        "tokenizer": run.tokenizer.hash,
        "vocabulary": run.tokenizer.vocab_size,
        "source_vocabulary": run.tokenizer.source_vocab_size,
        "versions": run.record.versions,
    }
    done = prepared = None
    if run.workdir.has_checkpoints():
        logger.info("report: %s", name)
        pairs = Text(text.sources, text.references)
        found = options.resolve(of_text.config)
        done, translator = evaluate(of_text, pairs, models, found)
        facts["checkpoint"] = models.checkpoint  # None: as the config says
        flags = dict(options.given)
        if models.choose:  # folders may be private
            runs = models.choose.rerankers
            by = ",".join(f"{folder.name}:{weight:g}" for folder, weight in runs)
            flags["choose"] = by or models.choose
        facts["search"] = ", ".join(f"{key}={flags[key]}" for key in flags)
        facts["parameters"] = parameter_count(translator.params[0])
        align = partial(aligned, translator) if translator.has_attention else None
        tag_of = run.tokenizer.language_code
        facts |= describe_translations(done, text, align, examples, tag_of)
    metrics = read_metrics(folder, run.record.run)
    if run.workdir.corpus.exists():  # an imported model has none
        prepared = run.workdir.open_corpus(run.record)
        warn_of_lost_lines(run, metrics)
    described = report.describe_run(
        facts,
        config.as_dict(),
        metrics,
        make_schedule(
            config.optimizer, d_model=run.model.d_model, steps=config.training.steps
        ),
        prepared and prepared.report,
        prepared and plan_training(run, prepared),
    )
    return described, done and done.translations


def aligned(translator: Translator, source: str, target: str) -> Attention | None:
    """The attention of a line and its translation, or None.

    A line in several parts has none, nor has a pair that the model cannot hold.
    """
    if len(translator.text.sentences(source)) > 1:
        return None
    tokenizer = translator.tokenizer
    (ids,), (other,) = tokenizer.encode([source]), tokenizer.encode_target([target])
    if max(len(ids), len(other)) > (translator.longest or math.inf):
        return None
    return translator.attention(source, target)


def warn_of_lost_lines(run: Run, metrics: Sequence[dict]) -> None:
    """Warn if `metrics.jsonl` ends before the newest checkpoint."""
    step = run.workdir.open_checkpoints(run.record).latest_step() or 0
    kind, training = "final", run.config.training
    if not is_over(step, run.scores(), training):
        kind, step = "train", step - step % training.log_every
    if step and (kind, step) not in {(each["kind"], each["step"]) for each in metrics}:
        file = run.workdir.path / METRICS_FILE
        logger.warning("%s lacks its last lines: curves are incomplete", file)
