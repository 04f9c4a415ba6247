"""--mode=check: report a run's text, batches, memory and time; train nothing.

One process prepares the text, in a temporary folder without --workdir; another inspects
it. Then XLA compiles the train step at its largest shape to measure its memory.
"""

import logging
import tempfile
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from jaxformer import estimates, processes
from jaxformer.config import DataConfig
from jaxformer.config_files import ConfigRequest
from jaxformer.errors import InputError
from jaxformer.estimates import in_gib
from jaxformer.inspection import findings
from jaxformer.inspection.corpus import inspect_in_background
from jaxformer.inspection.pieces import add_pieces
from jaxformer.run import plan_training, prepare_run, resolve_config
from jaxformer.training.memory import device_budget
from jaxformer.workdir import Workdir

logger = logging.getLogger(__name__)


def run(
    *,
    config: ConfigRequest,
    workdir: Path | None,
    memory_gib: float | None,
    output: Path | None,
) -> dict:
    """Check a config, or the run of a workdir; return the figures of the report."""
    if output is not None:  # fails early if a package is missing
        import jaxformer.reports.corpus  # noqa: F401
    if workdir is not None:
        return check(config, workdir, memory_gib, output)
    if config.values is None:
        raise InputError(
            "there is nothing to check: give --config=..., --workdir=... or both"
        )
    logger.info("check: the prepared text is kept only with --workdir")
    with tempfile.TemporaryDirectory(prefix="jaxformer-check-") as folder:
        return check(config, Path(folder), memory_gib, output)


def check(
    config: ConfigRequest, workdir: Path, memory_gib: float | None, output: Path | None
) -> dict:
    """Report on plan, text, memory and time; the first process inspects the text."""
    text = resolve_config(Workdir(workdir), config).data
    background = inspect_in_background(text) if processes.is_first() else nullcontext()
    with background as inspected:
        checked, prepared = prepare_run(workdir, config)
        plan = plan_training(checked, prepared)
        figures = estimates.report_plan(checked, plan, prepared.report["train"])
        corpus = inspected and inspected()
    if corpus:
        add_pieces(corpus, text, prepared)
        report_text(corpus, text, output)
        corpus = findings.without_text(corpus)
    used = estimates.report_memory(checked, plan)
    budget, largest = device_budget(memory_gib), None
    if None not in (memory_gib, budget, used):
        largest = {
            name: estimates.search_microbatch(checked, plan, budget, again)
            for name, again in (("plain", False), ("rematerialised", True))
        }
    flops, steps = figures["flops_per_update"], checked.config.training.steps
    seconds = estimates.seconds_per_update(flops, checked.model.dtype)
    figures |= {
        "corpus": corpus,
        "bytes_per_device": used,
        "bytes_available": budget,
        "fits": None if None in (used, budget) else used <= budget,
        "largest_microbatches": largest,
        "seconds_per_update_estimate": seconds,
        "epochs": round(steps / figures["updates_per_epoch"], 1),
    }
    report_verdict(figures, steps)
    return figures


def report_text(
    corpus: dict[str, Any], config: DataConfig, output: Path | None
) -> None:
    """Log the findings in the text; with `output` write them also as a page."""
    warnings = findings.warnings(corpus, deduplicate=config.deduplicate)
    logger.info("%s", findings.describe(corpus, warnings))
    if output is not None:
        from jaxformer.reports import page
        from jaxformer.reports.corpus import make_corpus_page

        title, sections = config.direction, findings.sections(corpus)
        html = make_corpus_page(corpus, title, warnings, sections)
        page.write(output, html)
        logger.info("page        %s", output)


def report_verdict(figures: dict[str, Any], steps: int) -> None:
    """Log whether the run fits the devices, and how long it takes."""
    fits = {True: "fits", False: "does NOT fit", None: "unknown whether it fits"}
    sizes = [figures["bytes_per_device"], figures["bytes_available"]]
    memory = " of ".join(in_gib(size) for size in sizes if size is not None)
    updates = figures["updates_per_epoch"]
    seconds = figures["seconds_per_update_estimate"]
    epoch, whole = (timedelta(seconds=round(seconds * n)) for n in (updates, steps))
    lines = [
        f"verdict     {fits[figures['fits']]}: {memory} on each device",
        f"about {epoch} an epoch of {updates:,} updates, {seconds} s each",
        f"{figures['epochs']} epochs in training.steps={steps:,}, about {whole}",
        f"estimated from {figures['flops_per_update']:.3g} operations an update, at "
        f"{estimates.EXPECTED_SHARE_OF_RATE:.0%} of the rate of a matrix product here",
    ]
    if figures["fits"] is False and figures["largest_microbatches"] is None:
        lines.append("to search the largest microbatch that fits, add --memory_gib=0")
    logger.info("%s", "\n            ".join(lines))
