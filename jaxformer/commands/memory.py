"""What a train step takes of a device's memory, and the largest microbatch that fits.

Both by XLA's own account of the compiled program; nothing is run. Used by --mode=check.
"""

import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer.batch import Batch
from jaxformer.commands.runs import Learner, Run, make_learner
from jaxformer.data.plan import Plan, Shape
from jaxformer.models import architectures
from jaxformer.models.sequence_model import Model
from jaxformer.training.sharding import (
    abstract_state,
    batch_sharding,
    on_mesh,
    rows_here,
)

logger = logging.getLogger(__name__)

GIB = 2**30
GUESSES = 3  # programs compiled after the first two, at most
MEMORY_INFO = Path("/proc/meminfo")


class Memory(NamedTuple):
    """Bytes that a program takes on each device."""

    arguments: int
    temporary: int
    outputs: int  # those that are not in the place of donated arguments

    @property
    def total(self) -> int:
        return sum(self)


def step_memory(this_run: Run, learner: Learner, plan: Plan) -> int | None:
    """Bytes that the train step takes on each device at the plan's largest shape.

    Compiles it and logs what XLA says. None where its backend does not say.
    """
    shape = largest_shape(this_run.model, plan)
    start = time.monotonic()
    accumulate = plan.microbatches_per_update > 1
    memory = program_memory(learner, shape, accumulate=accumulate)
    if memory is None:
        logger.info("memory      this backend does not say what a program takes")
        return None
    logger.info(
        "memory      %s by XLA on each of %d x %s, for %d x %d x %d (compiled in "
        "%.0f s)\n"
        "            %s arguments: parameters, optimiser state, batch\n"
        "            %s temporary: activations, gradients\n"
        "            %s outputs that are not in the place of arguments",
        in_gib(memory.total),
        jax.device_count(),
        jax.devices()[0].device_kind,
        *shape,
        time.monotonic() - start,
        *map(in_gib, memory),
    )
    return memory.total


def program_memory(
    learner: Learner, shape: Shape, *, accumulate: bool
) -> Memory | None:
    """What XLA says of the program that takes most; None if it does not."""
    with on_mesh(learner.mesh):
        lowered = learner.train_step.lower(
            abstract_state(learner.mesh, learner.init),
            abstract_batch(learner.mesh, shape),
            accumulate=accumulate,
        )
        found = lowered.compile().memory_analysis()
    if found is None:
        return None
    return Memory(
        found.argument_size_in_bytes,
        found.temp_size_in_bytes,
        found.output_size_in_bytes - found.alias_size_in_bytes,
    )


def abstract_batch(mesh: Mesh, shape: Shape) -> Batch:
    """Shapes and shardings of a microbatch; holds no data."""
    blocks = rows_here(mesh).of
    rows = -(-shape.rows // blocks) * blocks
    source, target = (
        jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=batch_sharding(mesh))
        for length in (shape.source_length, shape.target_length)
    )
    return Batch(source, target, source, target)


def largest_shape(model: Model, plan: Plan) -> Shape:
    """The shape of a plan that takes most memory."""
    return max(plan.shapes, key=lambda each: model.activations(*each))


def in_gib(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / GIB:.2f} GiB"


# The largest that fits ----------------------------------------------------------------


def device_budget(gib: float | None) -> int | None:
    """Bytes that each device has: as given, as it says, or this machine's share.

    Devices that are the processor share what memory is available. None if unknown.
    """
    if gib is not None:
        return int(gib * GIB)
    device = jax.local_devices()[0]
    if limit := (device.memory_stats() or {}).get("bytes_limit"):
        return limit
    if device.platform != "cpu" or not MEMORY_INFO.exists():
        return None
    info = dict(line.split(":", 1) for line in MEMORY_INFO.read_text().splitlines())
    kibibytes = int(info["MemAvailable"].split()[0])
    return kibibytes * 1024 // jax.local_device_count()


def largest_microbatches(this_run: Run, plan: Plan, budget: int) -> dict[str, Any]:
    """The largest microbatch that fits `budget` bytes, as it is and rematerialised.

    "plain" and "rematerialised" each have "tokens", the places of either side, and
    "bytes", or None where nothing fits. Logs them with the flags to set.
    """
    found: dict[str, Any] = {}
    for name in ("plain", "rematerialised"):
        model = architectures.make_model(
            this_run.model.config,
            vocab_size=this_run.tokenizer.vocab_size,
            rematerialise=name == "rematerialised",
        )
        found[name] = largest_microbatch(this_run._replace(model=model), plan, budget)
    lines = [f"            {in_gib(budget)} a device, training alone: the largest that"]
    for name, values in found.items():
        if values is None:
            lines.append(f"            {name}: not even one row each")
            continue
        lines.append(
            f"            {name}: --config.training.tokens_per_microbatch="
            f"{values['tokens']} --config.training.rematerialise="
            f"{name == 'rematerialised'} ({in_gib(values['bytes'])}"
            f"{', a whole update' if values['is_whole_update'] else ''})"
        )
    logger.info("%s", "\n".join(lines))
    return found


def largest_microbatch(
    this_run: Run, plan: Plan, budget: int
) -> dict[str, int | bool] | None:
    """The same for the run's model as it is.

    It has the lengths of the plan's largest shape; more than an update it never is.
    """
    shape = largest_shape(this_run.model, plan)
    longest = max(shape.source_length, shape.target_length)
    unit = this_run.config["batches"]["row_multiple"]
    update = this_run.training.tokens_per_update
    most = max(unit, update // longest // unit * unit)
    learner = make_learner(this_run)

    @functools.cache
    def bytes_of(rows: int) -> int:
        memory = program_memory(
            learner,
            shape._replace(rows=rows),
            accumulate=round(update / (rows * longest)) > 1,
        )
        return memory.total

    rows = largest_fitting(bytes_of, budget, unit=unit, most=most)
    if rows is None:
        return None
    return {
        "tokens": rows * longest,
        "bytes": bytes_of(rows),
        "is_whole_update": rows == most,
    }


def largest_fitting(
    bytes_of: Callable[[int], int], budget: int, *, unit: int, most: int
) -> int | None:
    """The most rows, in multiples of `unit` up to `most`, whose bytes fit the budget.

    Bytes are nearly affine in rows: two programs give the line, and where it meets the
    budget is compiled too; a few more set it right. What is returned was compiled.
    """
    known = {unit: bytes_of(unit)}
    if known[unit] > budget:
        return None
    guess = min(4 * unit, most)
    for _ in range(1 + GUESSES):
        if guess in known:
            break
        known[guess] = bytes_of(guess)
        fits = max(rows for rows, size in known.items() if size <= budget)
        over = min((rows for rows in known if rows > fits), default=most + unit)
        # The line through the nearest points on either side, or the two largest
        points = sorted(known)
        right = points.index(over) if over in known else len(points) - 1
        low, high = points[right - 1], points[right]
        slope = max((known[high] - known[low]) / (high - low), 1e-9)
        meets = low + (budget - known[low]) / slope
        guess = int(min(max(meets, fits), over - unit, most)) // unit * unit
    return max(rows for rows, size in known.items() if size <= budget)
