"""--mode=check: what a run would do: its text, model, batches, memory and time.

Nothing is trained. The text is prepared (kept with --workdir, thrown away without) and
looked through, and the train step is compiled, for this machine's devices, at its
largest shape. No parameter is drawn and no batch made: XLA is asked what the program
would take, and so the largest microbatch is found that fits.
"""

import dataclasses
import logging
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import processes
from jaxformer.commands.memory import (
    device_budget,
    largest_microbatches,
    step_memory,
)
from jaxformer.commands.options import Options
from jaxformer.commands.runs import Run, build, make_learner, make_run_plan, prepare_run
from jaxformer.data.cleaning import CorpusReport, SideReport
from jaxformer.data.plan import Plan
from jaxformer.data.sources import CorpusConfig
from jaxformer.errors import InputError
from jaxformer.inspection import findings
from jaxformer.inspection.corpus import inspect_corpus
from jaxformer.models.sequence_model import Model
from jaxformer.training.sharding import abstract_state, rows_here
from jaxformer.training.step import Parameters
from jaxformer.workdir import direction

logger = logging.getLogger(__name__)

# Of the rate of plain matrix products, what training steps reach: published runs of
# models of this size reach 33 to 60 % of the peak of their GPU.
EXPECTED_SHARE_OF_RATE = 0.4
LONG_ENOUGH = 0.05  # seconds: a product that takes so long is timed well
SIZES_TO_TIME = (512, 1024, 2048, 4096, 8192)


def run(options: Options) -> dict:
    """Check a config, or the run of a workdir; returns the figures of the report."""
    if options.workdir is not None:
        return check(options)
    if options.config is None:
        raise InputError(
            "there is nothing to check: give --config=..., --workdir=... or both"
        )
    logger.info("check: what is prepared is kept only with --workdir")
    with tempfile.TemporaryDirectory(prefix="jaxformer-check-") as folder:
        return check(dataclasses.replace(options, workdir=Path(folder)))


def check(options: Options) -> dict:
    """Prepare the text, plan its batches and compile a train step; report on each."""
    this_run, prepared = prepare_run(options)
    learner = make_learner(this_run)
    plan = make_run_plan(this_run, prepared)
    parts = parameters_by_part(abstract_state(learner.mesh, learner.init).params)
    train = prepared.report["train"]
    updates = plan.updates_per_epoch
    flops = flops_per_update(this_run.model, plan)
    logger.info(
        "text        %s, a vocabulary of %s pieces\n"
        "            train: %s\n"
        "            dev: %s",
        direction(this_run.config),
        f"{prepared.tokenizer.vocab_size:,}",
        corpus_report(train),
        corpus_report(prepared.report["dev"]),
    )
    corpus = report_corpus(this_run, options.output)
    report_parameters(parts)
    report_batches(this_run, plan, train, split_over=rows_here(learner.mesh).of)
    memory = step_memory(this_run, learner, plan)
    budget = device_budget(options.memory_gib)
    largest = None
    if memory is not None and budget is not None:
        largest = largest_microbatches(this_run, plan, budget)
    seconds = report_time(this_run, flops)
    return {
        "pairs": train["kept"],
        "dropped": train["dropped"],
        "corpus": corpus,
        "parameters": sum(parts.values()),
        "parameters_by_part": parts,
        "tokens_per_update": round(train["target"]["tokens"] / updates),
        "source_tokens_per_update": round(train["source"]["tokens"] / updates),
        "places_per_update": places_per_update(plan),
        "updates_per_epoch": updates,
        "shapes": [list(shape) for shape in plan.shapes],
        "real_token_share": round(plan.real_token_share, 4),
        "bytes_per_device": memory,
        "bytes_available": budget,
        "largest_microbatches": largest,
        "flops_per_update": flops,
        "seconds_per_update_estimate": seconds,
    }


def corpus_report(values: dict[str, Any]) -> CorpusReport:
    """Read back what `prepare` wrote into report.json about one split."""
    sides = {side: SideReport(**values[side]) for side in ("source", "target")}
    return CorpusReport(**{**values, **sides})


def report_corpus(this_run: Run, output: str | None) -> dict[str, Any] | None:
    """Look through the text itself and log what is found; returns the figures.

    With `output` also as a page, of that name. Of several processes the first one does
    it, and None is returned in the others.
    """
    if not processes.is_first():
        return None
    if output is not None:  # before the work: a package may be missing
        from jaxformer.reports import page
        from jaxformer.reports.corpus import make_corpus_page
    config = build(CorpusConfig, this_run.config, "data")
    corpus = inspect_corpus(config, this_run.tokenizer)
    for section in findings.describe(corpus, deduplicate=config.deduplicate):
        logger.info("%s", section)
    if output is not None:
        details = findings.find_details(corpus)
        html = make_corpus_page(
            corpus,
            title=direction(this_run.config),
            things=list(findings.find_things(corpus, deduplicate=config.deduplicate)),
            sections={title: "\n".join(lines) for title, lines in details.items()},
        )
        page.write(Path(output), html)
        logger.info("page        %s", output)
    return findings.figures(corpus)


# The model ------------------------------------------------------------------------


def parameters_by_part(params: Parameters) -> dict[str, int]:
    """Count parameters as "embedding", "encoder/feed_forward", "decoder/norm", ..."""
    counts: Counter[str] = Counter()
    for path, leaf in jax.tree.leaves_with_path(params):
        stack, *inner = [key.key for key in path]
        if "norm" in inner:  # encoder/layer_0/feed_forward_sublayer/norm/scale
            stack += "/norm"
        elif len(inner) > 1:
            stack += f"/{inner[1]}"
        counts[stack] += leaf.size
    return dict(sorted(counts.items()))


def report_parameters(parts: dict[str, int]) -> None:
    """Log the parameters, part by part."""
    lines = [f"            {count:>13,} {part}" for part, count in parts.items()]
    lines.insert(0, f"model       {sum(parts.values()):>13,} parameters")
    logger.info("%s", "\n".join(lines))


# The batches ----------------------------------------------------------------------


def microbatches_by_shape(plan: Plan) -> np.ndarray:
    """Count the microbatches that an epoch has of each shape: int [shapes]."""
    shape_of = plan.row_shapes[plan.microbatch_starts[:-1]]
    return np.bincount(shape_of, minlength=len(plan.shapes))


def places_per_update(plan: Plan) -> dict[str, int]:
    """Average the places, padding included, that an update has on either side."""
    rows, source, target = np.array(plan.shapes).T
    counts = microbatches_by_shape(plan) / plan.updates_per_epoch
    return {
        "source": round(counts @ (rows * source)),
        "target": round(counts @ (rows * target)),
    }


def report_batches(
    this_run: Run, plan: Plan, train: dict[str, Any], *, split_over: int
) -> None:
    """Log what an update and an epoch consist of, and every shape.

    Rows that `split_over` devices do not divide are filled up with empty ones.
    """
    updates, steps = plan.updates_per_epoch, this_run.training.steps
    places = places_per_update(plan)
    real = {side: train[side]["tokens"] / updates for side in places}
    shapes = "".join(
        f"\n            {rows:>7} x {source:>3} x {target:>3}, {count:>9,} an epoch"
        + (f", {-rows % split_over} rows empty here" if rows % split_over else "")
        for (rows, source, target), count in zip(
            plan.shapes, microbatches_by_shape(plan), strict=True
        )
    )
    logger.info(
        "batches     an update has up to %s microbatch(es), on average %s source and "
        "%s target\n"
        "            places, of which %s and %s hold tokens (%.1f %% of both)\n"
        "            an epoch has %s updates; training.steps=%s are %.1f epochs\n"
        "            microbatches to compile (rows x source x target):%s",
        plan.microbatches_per_update,
        *(f"{places[side]:,}" for side in places),
        *(f"{real[side]:,.0f}" for side in places),
        100 * plan.real_token_share,
        f"{updates:,}",
        f"{steps:,}",
        steps / updates,
        shapes,
    )


# Time -----------------------------------------------------------------------------


def flops_per_update(model: Model, plan: Plan) -> int:
    """Floating-point operations of an average update, those of matrix products.

    Without those that rematerialisation repeats.
    """
    epoch = sum(
        int(count) * model.flops(*shape)
        for shape, count in zip(plan.shapes, microbatches_by_shape(plan), strict=True)
    )
    return epoch // plan.updates_per_epoch


def report_time(this_run: Run, flops: int) -> float:
    """Log and return seconds an update, estimated from a product timed here."""
    rate = matmul_rate(this_run.model.dtype)
    seconds = flops / (EXPECTED_SHARE_OF_RATE * rate * jax.device_count())
    logger.info(
        "time        about %.3g s an update, %s for all %s without evaluations\n"
        "            an estimate: %.3g operations an update, each device at %.0f %% of "
        "%.3g a second,\n"
        "            which is the rate of a product of %s matrices, measured now",
        seconds,
        timedelta(seconds=round(seconds * this_run.training.steps)),
        f"{this_run.training.steps:,}",
        flops,
        100 * EXPECTED_SHARE_OF_RATE,
        rate,
        this_run.model.dtype,
    )
    return float(f"{seconds:.3g}")


def matmul_rate(dtype: str) -> float:
    """Floating-point operations a second of a square matrix product on one device."""
    product = jax.jit(jnp.matmul)
    for size in SIZES_TO_TIME:
        matrix = jnp.ones((size, size), dtype)
        product(matrix, matrix).block_until_ready()  # compiled
        seconds = np.inf
        for _ in range(3):
            start = time.perf_counter()
            product(matrix, matrix).block_until_ready()
            seconds = min(seconds, time.perf_counter() - start)
        if seconds > LONG_ENOUGH:
            break
    return 2 * size**3 / seconds
