"""Estimates for jaxformer check: batches, memory and time of a plan, known scores."""

import dataclasses
import functools
import logging
import timeit
from collections import Counter
from datetime import timedelta
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.corpus.mixture import pairs_of_an_epoch
from jaxformer.corpus.plan import Plan
from jaxformer.corpus.prepared import PreparedCorpus
from jaxformer.corpus.store import id_dtype
from jaxformer.models.sequence_model import LikeParameters, Model
from jaxformer.runs.recipes import describe_quality, measured_rows
from jaxformer.runs.run import Run, largest_shape
from jaxformer.system.cores import usable_cores
from jaxformer.system.errors import counted
from jaxformer.tokens import SIDES, AnyTokenizer
from jaxformer.training.frozen import trainable
from jaxformer.training.memory import in_gib, largest_microbatch, step_memory
from jaxformer.training.setup import make_training_setup
from jaxformer.training.sharding import abstract_state, rows_here

logger = logging.getLogger(__name__)

# Of training steps, in the rate of plain matrix products. Published runs of models of
# this size reach 33 to 60 % of the peak of their GPU.
EXPECTED_SHARE_OF_RATE = 0.4
SIZES_TO_TIME = (512, 1024, 2048, 4096, 8192)
LONG_ENOUGH = 0.05  # seconds: a product that takes so long is timed well


def seconds_per_update(flops: int, model: Model) -> float:
    """Estimate the seconds of an update on all devices, from a product timed here."""
    is_wide = model.wide_results and jax.default_backend() == "cpu"
    result = jnp.float32 if is_wide else None
    product = jax.jit(functools.partial(jnp.matmul, preferred_element_type=result))
    for size in SIZES_TO_TIME:
        matrix = jnp.ones((size, size), model.dtype)
        call = "product(matrix, matrix).block_until_ready()"  # the first one compiles
        seconds = min(timeit.repeat(call, globals=locals(), number=1, repeat=4))
        if seconds > LONG_ENOUGH:
            break
    rate = EXPECTED_SHARE_OF_RATE * 2 * size**3 / seconds * jax.device_count()
    return float(f"{flops / rate:.3g}")


def parameters_by_part(params: LikeParameters) -> dict[str, int]:
    """Count parameters as "embedding", "encoder/feed_forward", "decoder/norm", ..."""
    counts = Counter()
    for path, leaf in jax.tree.leaves_with_path(params):
        stack, *inner = [key.key for key in path]
        if inner:  # encoder/layer_0/feed_forward_sublayer/norm/scale and the like
            part = next(name for name in inner if not name.startswith("layer_"))
            stack += "/norm" if "norm" in inner else f"/{part}"
        counts[stack] += leaf.size
    return dict(sorted(counts.items()))


def describe_vocabulary(tokenizer: AnyTokenizer) -> str:
    """Say how many ids there are."""
    source, target = tokenizer.source_vocab_size, tokenizer.vocab_size
    if source == target:
        return f"a vocabulary of {target:,} pieces"
    return f"vocabularies of {source:,} source and {target:,} target pieces"


def describe_corpora(checked: Run, sizes: dict[str, int]) -> list[str]:
    """Say how many pairs of each corpus an epoch has, from which update on."""
    data, lines = checked.config.data, []
    for update in data.stages if data.corpora else ():
        weights = data.weights(sizes, update)
        since = f" from update {update:,} on" if update else ""
        for name, size in sizes.items():
            pairs = pairs_of_an_epoch(weights[name], size)
            lines.append(
                f"            {pairs:>13,} pairs an epoch of {name}, "
                f"{size:,} x {weights[name]:.4g}{since}"
            )
    return lines


def report_plan(checked: Run, plan: Plan, prepared: PreparedCorpus) -> dict[str, Any]:
    """Log the model's parameters and what an update consists of; return figures."""
    setup = make_training_setup(checked.config, checked.model)
    train, versions = prepared.report["train"], len(prepared.versions)
    id_bytes = np.dtype(id_dtype(prepared.tokenizer.largest_vocab_size)).itemsize
    size = id_bytes * sum(prepared.tokens())
    disk = f"            {versions} versions, {size / 1e6:,.1f} MB of ids on disk"
    params = abstract_state(setup.mesh, setup.init).params
    parts = parameters_by_part(params)
    changed = jax.tree.leaves(trainable(params, checked.config.training.freeze))
    frozen = sum(parts.values()) - sum(leaf.size for leaf in changed)
    updates = plan.updates_per_epoch
    shape_of = plan.row_shapes[plan.microbatch_starts[:-1]]
    counts = np.bincount(shape_of, minlength=len(plan.shapes))  # microbatches an epoch
    rows, *lengths = np.array(plan.shapes).T
    positions = [round((counts / updates) @ (rows * length)) for length in lengths]
    real = [round(tokens / updates) for tokens in plan.tokens]
    shapes = list(zip(plan.shapes, counts.tolist(), strict=True))
    lines = [
        f"text        {train['kept']:,} pairs to train on, "
        f"{describe_vocabulary(checked.tokenizer)}",
        *([disk] if versions > 1 else []),
        *describe_corpora(checked, prepared.sizes()),
        f"model       {sum(parts.values()):>13,} parameters",
        *(f"            {count:>13,} {part}" for part, count in parts.items()),
        *([f"            {frozen:>13,} of all are frozen"] if frozen else []),
        f"batches     up to {counted(plan.microbatches_per_update, 'microbatch')} an "
        f"update; {positions[0]:,} source and {positions[1]:,} target positions,",
        f"            of which {real[0]:,} and {real[1]:,} hold tokens "
        f"({plan.real_token_share:.1%} of both), on average",
        "            rows x source x target length",
    ]
    for (height, source, target), count in shapes:
        empty = -height % rows_here(setup.mesh).of  # fill up what devices do not divide
        lines.append(
            f"            {height:>7,} x {source:>3,} x {target:>3,}, {count:>9,} an "
            f"epoch{', ' + counted(empty, 'row') + ' empty here' if empty else ''}"
        )
    flops = sum(count * checked.model.flops(*shape) for shape, count in shapes)
    logger.info("\n".join(lines))
    return {
        "pairs": train["kept"],
        "dropped": train["dropped"],
        "parameters": sum(parts.values()),
        "parameters_by_part": parts,
        "frozen_parameters": frozen,
        "tokens_per_update": real[1],
        "source_tokens_per_update": real[0],
        "positions_per_update": dict(zip(SIDES, positions, strict=True)),
        "updates_per_epoch": updates,
        "shapes": [list(shape) for shape in plan.shapes],
        "bytes_of_ids": size,
        "real_token_share": round(plan.real_token_share, 4),
        "flops_per_update": flops // updates,
    }


def report_memory(checked: Run, plan: Plan, heap: float) -> int | None:
    """Log what XLA says of the memory of the train step at the plan's largest shape.

    Its temporary memory is counted `heap` times, see `heap_share`.
    Returns the bytes on each device, or None where the backend does not say.
    """
    devices = jax.devices()
    logger.info("memory      %d x %s", len(devices), devices[0].device_kind)
    memory = step_memory(
        make_training_setup(checked.config, checked.model),
        largest_shape(checked.model, plan),
        accumulate=plan.microbatches_per_update > 1,
    )
    if memory is None:
        logger.info("            this backend does not say what a program takes")
        return None
    memory = memory._replace(temporary=int(heap * memory.temporary))
    logger.info(
        "            %s on each device: %s parameters, optimiser state and batch, %s\n"
        "            activations and gradients%s, %s other outputs",
        *map(in_gib, (sum(memory), *memory[:2])), ", counted 1.5 times" * (heap > 1),
        in_gib(memory.outputs),
    )  # fmt: skip
    return sum(memory)


def search_microbatch(
    checked: Run, plan: Plan, budget: int, rematerialise: bool
) -> dict[str, Any] | None:
    """Find the largest microbatch that fits `budget` bytes; log the flags to set."""
    config = checked.config
    model = dataclasses.replace(checked.model, rematerialise=rematerialise)
    flags = f"--config.training.rematerialise={rematerialise}"
    logger.info("search      %s", flags)
    found = largest_microbatch(
        make_training_setup(config, model),
        largest_shape(model, plan),
        budget,
        unit=config.batches.row_multiple,
        tokens_per_update=config.training.tokens_per_update,
    )
    if found is None:
        logger.info("            not even batches.row_multiple rows fit")
        return None
    whole = ", a whole update" if found.is_whole_update else ""
    flags += f" --config.training.tokens_per_microbatch={found.tokens}"
    logger.info("            %s takes %s%s", flags, in_gib(found.bytes), whole)
    return found._asdict() | {"flags": flags}


def report_quality(pairs: int) -> list[dict[str, Any]]:
    """Log the scores of models that were trained on about as many pairs.

    Returns their rows of docs/model_size.md, or [] if no number of pairs is near.
    """
    if found := measured_rows(pairs):
        scores = "\n            ".join(describe_quality(pairs))
        logger.info(f"quality     {scores}")
    return found


def describe_load(load: float) -> str:
    """Say that other programs slow this machine down, "" if its load is low."""
    if load <= (cores := usable_cores()):
        return ""
    busy = f"the machine was busy, with a load of {load:.1f} on {cores} cores"
    return f"{busy}, and may be several times faster when it is idle"


def report_verdict(figures: dict[str, Any], steps: int) -> None:
    """Log whether the run fits the devices, and how long it takes."""
    fits = {True: "fits", False: "does NOT fit", None: "unknown whether it fits"}
    sizes = [figures["bytes_per_device"], figures["bytes_available"]]
    memory = " of ".join(in_gib(size) for size in sizes if size is not None)
    updates = figures["updates_per_epoch"]
    seconds = figures["seconds_per_update_estimate"]
    epoch, whole = (timedelta(seconds=round(seconds * n)) for n in (updates, steps))
    count, epochs = figures["warnings"], figures["epochs"]
    epochs = f"{epochs:,.0f}" if epochs >= 10 else f"{epochs:.2g}"
    lines = [
        f"verdict     {fits[figures['fits']]}: {memory} on each device",
        counted(count, "warning") + " about the text" + ", listed above" * bool(count),
        f"about {epoch} an epoch of {counted(updates, 'update')}, {seconds} s each",
        f"{epochs} epochs in training.steps={steps:,}, about {whole}",
        f"estimated from {figures['flops_per_update']:.3g} operations an update, at "
        f"{EXPECTED_SHARE_OF_RATE:.0%} of the rate of a matrix product here",
    ]
    if busy := describe_load(figures["load"]):
        lines.append(f"{busy}; repeat the check then")
    if figures["fits"] is False:
        largest = figures["largest_microbatches"]
        cures = [f"add {found['flags']}" for found in (largest or {}).values() if found]
        cures.append(
            "lower batches.row_multiple, the length of rows or the model's size"
        )
        if largest is None:
            cures = [
                "lower training.tokens_per_microbatch; --memory_gib=0 finds what fits"
            ]
        lines.insert(1, cures[0])
    logger.info("\n            ".join(lines))
