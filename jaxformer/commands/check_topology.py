"""jaxformer check --topology=NAME: what a run would do on accelerators, without one."""

import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path

import jax

from jaxformer.accelerators import arrangements, describe
from jaxformer.accelerators.chips import Topology, parse_topology
from jaxformer.accelerators.estimate import (
    Figures,
    Work,
    compile_programs,
    compiler_of,
    estimate,
    estimate_decoder,
)
from jaxformer.config.sections import Config, most_rows
from jaxformer.models.architectures import make_model
from jaxformer.models.sequence_model import Model
from jaxformer.runs.config_files import ConfigRequest, parse_config
from jaxformer.runs.run import largest_shape, open_run, plan_training
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError, counted
from jaxformer.training.frozen import trainable
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.step import init_state

logger = logging.getLogger(__name__)


def run(
    *,
    config: ConfigRequest,
    workdir: Path | None,
    topology: str,
    output: Path | None,
    before: Path | None,
) -> Figures:
    """Estimate the programs of a config, or of a prepared workdir, on a topology.

    A `topology` "NAME,auto" searches the arrangement that it takes fastest.
    """
    topology, comma, how = topology.partition(",")
    if comma and how != "auto":
        raise InputError(
            f"--topology={topology},{how} is no topology; write {topology},auto to "
            "search its best arrangement"
        )
    target = parse_topology(topology)
    compiler = compiler_of(target)
    earlier = [] if before is None else [read_figures(before)]
    # A library of TPUs may be installed where there is none.
    jax.config.update("jax_platforms", "cpu")
    work = work_of(config, workdir)

    def compile_one(work: Work, decode: bool = False) -> Figures:
        compiled = compile_programs(target, work, decode=decode)
        figures = estimate(target, work, compiled)
        if decode:
            step = compiled.sentences, compiled.decoder
            figures["decoder"] = estimate_decoder(target, *step)
        return figures

    if how:
        figures = best_arrangement(target, work, compile_one)
    else:
        logger.info("compiling   for %s; a minute or more ...", topology)
        figures = compile_one(work, decode=True)
    figures = {"compiler": compiler, **figures}
    logger.info(describe.update(figures, compiler))
    if "decoder" in figures:
        beam_size = work.config.decoding.beam_size
        logger.info(describe.decoder(figures["decoder"], beam_size))
    if output is not None and "parts" in figures:
        from jaxformer.reports import topology_page

        topology_page.write(output, [*earlier, figures])
        logger.info("page        %s", output)
    return figures


def work_of(request: ConfigRequest, workdir: Path | None) -> Work:
    """Read what a prepared run computes; of a config alone, assume the longest rows."""
    share, text = 1.0, "no text is read: "
    if workdir is not None:
        checked = open_run(workdir, request)
        plan = plan_training(checked, checked.workdir.open_corpus(checked.record))
        config, tokenizer = checked.config, checked.tokenizer
        vocab_sizes = tokenizer.vocab_size, tokenizer.source_vocab_size
        model = checked.model
        shape = tuple(largest_shape(model, plan))
        share, text = plan.real_token_share, ""
        count = plan.microbatches_per_update
    else:
        begun = None
        if request.values is None:
            begun = Workdir(request.init_from).read_record().config.as_dict()
        config = parse_config(request.resolve(begun))
        vocab_sizes = (config.data.vocab_size,) * 2
        model = make_model(config.model, vocab_size=vocab_sizes[0], rematerialise=False)
        shape, count = longest_rows(config)
    logger.info(
        "batches     %sa vocabulary of %s, %s of %s%s",
        text, counted(vocab_sizes[0], "piece"), counted(count, "microbatch"),
        " x ".join(map(str, shape)),
        ", the largest bucket" if config.batches.layout == "buckets" else "",
    )  # fmt: skip
    tokens = share * count * shape[0] * shape[-1]
    return Work(config, *vocab_sizes, shape, count, model.flops(*shape), tokens)


def longest_rows(config: Config) -> tuple[tuple[int, int, int], int]:
    """Return the largest shape that a config allows, and the microbatches of an update.

    Raises InputError if a microbatch does not hold `row_multiple` rows.
    """
    batches, training = config.batches, config.training
    is_packed = batches.layout == "packed"
    length = batches.row_length if is_packed else config.data.max_length
    tokens = training.tokens_per_microbatch
    rows = most_rows(tokens, length, batches.row_multiple)
    return (rows, length, length), max(1, round(training.tokens_per_update / tokens))


def best_arrangement(
    topology: Topology, work: Work, compile_one: Callable[[Work], Figures]
) -> Figures:
    """Search arrangements, log them by rank, and return the first with the others."""
    rows, *lengths = work.shape
    update = work._replace(
        shape=(rows * work.microbatches, *lengths), microbatches=1,
        flops=work.flops * work.microbatches,
    )  # fmt: skip
    model = make_model(
        work.config.model,
        vocab_size=work.vocab_size,
        source_vocab_size=work.source_vocab_size,
        rematerialise=False,
    )
    ranked = arrangements.search(
        topology, update, state_bytes(model, work.config), compile_one
    )
    if not ranked:
        raise InputError(
            f"not even one row fits {topology.name} with any mesh; use more chips or "
            "a smaller model"
        )
    lines = [
        f"{'ranked' * (rank == 1):<12}{rank}. "
        f"{describe.in_all(each)}: {describe.arrangement(each)}\n            "
        f"{describe.flags(each, max(lengths))}"
        for rank, each in enumerate(ranked, start=1)
    ]
    logger.info("\n".join(lines))
    keys = "mesh", "shape", "microbatches", "rematerialise", "bytes_per_device"
    keys += "seconds_with_collectives", "share_of_peak", "collective_bytes"
    others = [{key: each[key] for key in keys} for each in ranked]
    return {**ranked[0], "ranked": others}


def state_bytes(model: Model, config: Config) -> int:
    """Bytes of parameters, gradients and the optimiser's state, before any split."""
    training = config.training
    sizes = {"d_model": model.d_model, "steps": training.steps}
    optimizer, _ = make_optimizer(config.optimizer, **sizes)
    init = functools.partial(init_state, model, optimizer, training)
    state = jax.eval_shape(init)
    gradients = trainable(state.params, training.freeze)
    leaves = jax.tree.leaves((state.params, state.ema, state.opt_state, gradients))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def read_figures(path: Path) -> Figures:
    """Read the saved JSON line of an earlier check. Raises InputError."""
    try:
        figures = json.loads(path.read_text("utf-8"))
        if figures["parts"] and figures["estimated_seconds_per_update"]:
            return figures
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    raise InputError(
        f"{path} is not the JSON line of a check with --topology; save its "
        "standard output in a file"
    )
