"""jaxformer check: report a run's text, batches, memory and time; train nothing.

One process prepares the text, in a temporary folder without --workdir; another inspects
it. Then XLA compiles the train step at its largest shape to measure its memory.
"""

import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from jaxformer.config.data import DataConfig
from jaxformer.corpus.survey import require_same_text
from jaxformer.inspection import findings
from jaxformer.inspection.text_findings import Described
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.system.files import require_output, write_atomically
from jaxformer.system.worker import Worker

logger = logging.getLogger(__name__)


def run(
    *,
    config: ConfigRequest,
    workdir: Path | None,
    memory_gib: float | None,
    output: Path | None,
    topology: str | None = None,
    before: Path | None = None,
    json: bool = False,  # read by `main`
) -> dict:
    """Check a config, or the run of a workdir; return the figures of the report.

    With a `topology` the programs alone are checked, for these accelerators;
    "NAME,auto" searches the best arrangement.
    """
    require_output(output, [".html"] if topology else [".html", ".tsv"])
    if output is not None and output.suffix == ".html":  # a package may be missing
        import jaxformer.reports.page  # noqa: F401
    if workdir is config.values is config.init_from is None:
        raise InputError("there is nothing to check: give --config=FILE, a run or both")
    if topology is not None:
        if memory_gib is not None:
            raise InputError("--memory_gib and --topology exclude each other; use one")
        from jaxformer.commands import check_topology

        figures = check_topology.run(
            config=config, workdir=workdir, topology=topology, before=before,
            output=output,
        )  # fmt: skip
    elif before is not None:
        raise InputError("--before is for a check with --topology; add it")
    elif workdir is not None:
        figures = check(config, Workdir(workdir), memory_gib, output)
    else:
        logger.info("check: the prepared text is kept only if a run is given")
        with tempfile.TemporaryDirectory(prefix="jaxformer-check-") as folder:
            figures = check(config, Workdir(Path(folder)), memory_gib, output)
    return figures


def check(
    config: ConfigRequest, run: Workdir, memory_gib: float | None, output: Path | None
) -> dict:
    """Report on plan, text, memory and time."""
    load = os.getloadavg()[0]  # before the work of this command
    text = run.resolve(config, run.recorded()).data
    with Worker("jaxformer.inspection.text_findings:inspect_corpus") as inspector:
        inspector.send(text)
        # The other process reads while these modules are imported.
        from jaxformer.inspection.piece_findings import add_pieces
        from jaxformer.runs import estimates
        from jaxformer.runs.run import (
            open_run,
            plan_training,
            prepare_run,
            warn_of_plan,
        )
        from jaxformer.training.memory import device_budget, heap_share

        if run.has_checkpoints() and run.corpus.exists():  # it may be in training
            checked = open_run(run.path, config)
            prepared = run.open_corpus(checked.record)
            # The text is inspected beside the corpus.
            if text.paths == checked.record.config.data.paths:  # else `open_run` did it
                require_same_text(text, run.path, prepared.report)
        else:
            with prepare_run(run.path, config, is_check=True) as (checked, prepared):
                pass
        plan = plan_training(checked, prepared)
        warn_of_plan(checked, plan)
        figures = estimates.report_plan(checked, plan, prepared)
        corpus = inspector.receive()
    add_pieces(corpus, text, prepared)
    begun_with = checked.config.training.init_from or checked.record.imported
    if begun_with or run.has_checkpoints():  # its vocabulary stays
        text = replace(text, tokenizer=str(run.tokenizer_file))
    warnings = report_text(corpus, text, output)
    corpus = findings.without_text(corpus)
    # Devices of a given size are elsewhere.
    heap = 1 if memory_gib else heap_share(len(plan.shapes))
    used = estimates.report_memory(checked, plan, heap)
    budget, largest = device_budget(memory_gib), None
    if None not in (memory_gib, budget, used):
        largest = {
            name: estimates.search_microbatch(checked, plan, int(budget / heap), again)
            for name, again in (("plain", False), ("rematerialised", True))
        }
    flops, steps = figures["flops_per_update"], checked.config.training.steps
    seconds = estimates.seconds_per_update(flops, checked.model)
    kinds = {each.corpus for each in text.training_texts.values()}
    is_new = kinds != {"builtin:grammar"} and not begun_with
    figures |= {
        "corpus": corpus,
        "warnings": warnings,
        "load": load,
        "measured_quality": estimates.report_quality(figures["pairs"] * is_new),
        "bytes_per_device": used,
        "bytes_available": budget,
        "fits": None if None in (used, budget) else used <= budget,
        "largest_microbatches": largest,
        "seconds_per_update_estimate": seconds,
        "epochs": round(plan.epochs(steps), 1),
    }
    estimates.report_verdict(figures, steps)
    return figures


def report_text(corpus: Described, config: DataConfig, output: Path | None) -> int:
    """Log the findings in the text; return the number of warnings.

    With `output` write a page, or a table of all findings.
    """
    warnings = findings.warnings(corpus, config)
    logger.info(findings.describe(corpus, config, warnings))
    if output is not None and output.suffix == ".tsv":
        write_atomically(output, *findings.table(corpus, config))
        logger.info("findings    %s", output)
    elif output is not None:
        from jaxformer.reports import page

        lengths = {name: split["lengths"] for name, split in corpus["splits"].items()}
        values = {"title": config.direction, "warnings": warnings, "corpus": corpus}
        values |= {"sections": findings.sections(corpus, config, warnings)}
        write_atomically(output, page.render("corpus.html", data=lengths, **values))
        logger.info("page        %s", output)
    return len(warnings)
