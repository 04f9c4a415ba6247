"""--mode=report: one page about a run, or about several side by side, and its data.

Each run translates the text once, as --mode=evaluate does; its log, corpus and config
are read from its workdir. A run without a checkpoint is reported without scores.
"""

import logging
import time
from dataclasses import replace
from pathlib import Path

from jaxformer import processes
from jaxformer.commands.evaluate import evaluate, read_pairs_for
from jaxformer.commands.options import Options
from jaxformer.commands.runs import Run, make_run_plan, open_run
from jaxformer.data.corpus import open_prepared
from jaxformer.reports import page
from jaxformer.reports import run as report
from jaxformer.reports.translations import Text, Translated
from jaxformer.training.log import read_metrics
from jaxformer.training.sharding import parameter_count
from jaxformer.workdir import direction

logger = logging.getLogger(__name__)


def run(options: Options) -> dict | None:
    """Write the page to --output and its data beside it; returns where, and BLEU.

    By default the page is report.html in the workdir. Of several processes all
    translate and the first one writes. Raises InputError for workdirs that cannot be
    read or compared, and for an --output that cannot be written.
    """
    start = time.monotonic()
    output = Path(options.output or options.workdir / "report.html")
    page.require_output(output)
    others = [Path(o.strip()) for o in (options.compare or "").split(",") if o.strip()]
    names = report.unique_names([options.workdir, *others])
    chosen = [options, *(replace(options, workdir=o, config=None) for o in others)]
    runs = [open_run(each) for each in chosen]
    if options.source is None and not has_test(runs[0], options.split):
        chosen = [replace(each, split="dev") for each in chosen]
    texts = [read_text(*each) for each in zip(runs, chosen, strict=True)]
    text = report.require_one_text(dict(zip(names, texts, strict=True)))
    facts = [describe(*each) for each in zip(names, runs, chosen, strict=True)]
    if not processes.is_first():
        return None
    found = report.gather(facts, text, examples=options.examples)
    scores = found["runs"][0]["scores"]
    bleu = scores["bleu"] if scores else {"score": None, "signature": None}
    return {
        "output": str(output),
        "json": str(report.write(found, output)),
        "bleu": bleu["score"],
        "signature": bleu["signature"],
        "direction": found["runs"][0]["direction"],
        "sentences": len(text.sources) if text else 0,
        "seconds": round(time.monotonic() - start, 1),
    }


def has_test(this_run: Run, split: str) -> bool:
    """Whether the config names the split, if that is the test text."""
    data = this_run.config["data"]
    key = "test_source" if data["corpus"] == "files" else "test"
    return split != "test" or data["corpus"].startswith("builtin") or bool(data[key])


def read_text(this_run: Run, options: Options) -> Text | None:
    """Read what a run translates; None if it is not trained yet."""
    if not this_run.workdir.has_checkpoints():
        return None
    data, split = this_run.config["data"], options.split
    name = options.source or data.get(f"{split}_source") or data.get(split) or split
    languages = data["source_language"], data["target_language"]
    return Text(Path(name).name, *languages, *read_pairs_for(this_run, options))


def describe(name: str, this_run: Run, options: Options) -> report.RunFacts:
    """Translate the text if the run is trained, and collect what its workdir tells."""
    folder = this_run.workdir.path
    translated = prepared = None
    if this_run.workdir.has_checkpoints():
        logger.info("report: %s", name)
        done = evaluate(options)
        translated = Translated(
            done.translations,
            done.scores["nll"],
            done.scores["ppl"],
            options.checkpoint,
            parameter_count(done.translator.params[0]),
            done.translator.attention,
        )
    if (folder / "corpus").exists():  # an imported model has none
        prepared = open_prepared(folder)
    return report.RunFacts(
        name,
        this_run.config,
        direction(this_run.config),
        this_run.tokenizer.hash,
        this_run.tokenizer.vocab_size,
        read_metrics(folder),
        prepared and prepared.report,
        prepared and make_run_plan(this_run, prepared),
        this_run.workdir.read_record().get("versions", {}),
        translated,
    )
