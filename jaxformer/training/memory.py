"""The device memory of a train step, as XLA reports it; no program is run."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import Batch
from jaxformer.system.errors import InputError
from jaxformer.training import sharding
from jaxformer.training.setup import TrainingSetup
from jaxformer.training.step import TrainState

GIB = 2**30
GUESSES = 3  # programs compiled after the first two, at most
MEMORY_INFO = Path("/proc/meminfo")


class StepMemory(NamedTuple):
    """Bytes that a program takes on each device."""

    arguments: int  # parameters, optimiser state, batch
    temporary: int  # activations, gradients
    outputs: int  # those that do not reuse the memory of donated arguments


class Microbatch(NamedTuple):
    """The size of a microbatch, and the bytes of its train step on each device."""

    tokens: int
    bytes: int
    is_whole_update: bool


def step_memory(
    setup: TrainingSetup, shape: tuple[int, int, int], *, accumulate: bool
) -> StepMemory | None:
    """Compile the train step for microbatches of (rows, source length, target length).

    `accumulate` is for updates of several microbatches.
    Returns None where the backend does not report memory.
    """
    blocks = sharding.rows_here(setup.mesh).of
    rows = -(-shape[0] // blocks) * blocks  # filled up to divide evenly
    batch = abstract_batch(setup.mesh, (rows, *shape[1:]))
    with sharding.on_mesh(setup.mesh):
        state = sharding.abstract_state(setup.mesh, setup.init)
        lowered = setup.train_step.lower(state, batch, accumulate=accumulate)
        return memory_of(lowered.compile())


def abstract_batch(mesh: jax.sharding.Mesh, shape: tuple[int, int, int]) -> Batch:
    """Describe a batch of (rows, source length, target length) without its data."""
    rows, split = shape[0], sharding.batch_sharding(mesh)
    source, target = (
        jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=split)
        for length in shape[1:]
    )
    return Batch(source, target, source, target)


def memory_of(program: jax.stages.Compiled) -> StepMemory | None:
    """Return the memory of a program; None where the backend does not report it."""
    found = program.memory_analysis()
    return found and StepMemory(
        found.argument_size_in_bytes,
        found.temp_size_in_bytes,
        found.output_size_in_bytes - found.alias_size_in_bytes,
    )


def in_gib(size: int) -> str:
    """Write bytes as "1.50 GiB"."""
    return f"{size / GIB:.2f} GiB"


def device_budget(gib: float | None) -> int | None:
    """Bytes of each device: `gib`, else those that it reports; None if unknown.

    CPU devices share the memory that is available.
    """
    if gib:
        return int(gib * GIB)
    device = jax.local_devices()[0]
    if limit := (device.memory_stats() or {}).get("bytes_limit"):
        return limit
    if device.platform != "cpu" or not MEMORY_INFO.exists():
        return None
    kibibytes = re.search(r"MemAvailable: +(\d+)", MEMORY_INFO.read_text())[1]
    return int(kibibytes) * 1024 // jax.local_device_count()


def heap_share(shapes: int) -> float:
    """Return how much larger the heap is than the temporary memory of one update.

    On CPUs a process keeps freed memory (`jaxformer.system.allocator`). With batches of
    several `shapes` it kept up to a third more than the largest needs, else no more.
    """
    return 1.5 if shapes > 1 and jax.default_backend() == "cpu" else 1


def require_memory(state: TrainState) -> None:
    """Raise InputError if the devices cannot hold an abstract training state."""
    budget = device_budget(None)
    here = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(state)
    )
    if budget is not None and here > budget:
        raise InputError(
            f"parameters and optimiser state take {in_gib(here)} on each device, and "
            f"{in_gib(budget)} are available; use a smaller model, or split it over "
            "more devices by mesh.fsdp"
        )


def require_update_memory(
    setup: TrainingSetup, shape: tuple[int, int, int], *, accumulate: bool
) -> None:
    """Raise InputError if the devices cannot hold microbatches of the largest `shape`.

    On CPUs the kernel would kill the process without a message. Training uses the
    program that is compiled here.
    """
    budget = device_budget(None)
    if budget is None:
        return
    size = sum(step_memory(setup, shape, accumulate=accumulate) or ())
    if size > budget:
        rows, source, target = shape
        raise InputError(
            f"an update with {rows:,} rows of {source} source and {target} target "
            f"tokens takes {in_gib(size)} on each device, and {in_gib(budget)} are "
            "available; lower training.tokens_per_microbatch or set "
            "training.rematerialise=True: `jaxformer check --memory_gib=0` finds the "
            "largest that fits"
        )


def largest_microbatch(
    setup: TrainingSetup,
    shape: tuple[int, int, int],
    budget: int,
    *,
    unit: int,
    tokens_per_update: int,
) -> Microbatch | None:
    """Find the most rows of the lengths in `shape` whose train step fits `budget`.

    They are a multiple of `unit`, and an update or one of nearly equal parts; `budget`
    is in bytes. Returns None if `unit` rows do not fit.
    """
    longest = max(shape[1:])
    most = max(unit, tokens_per_update // longest // unit * unit)

    def bytes_of(rows: int) -> int:
        accumulate = round(tokens_per_update / (rows * longest)) > 1
        return sum(step_memory(setup, (rows, *shape[1:]), accumulate=accumulate))

    rows, size = largest_fitting(bytes_of, budget, unit=unit, most=most)
    if rows is None:
        return None
    parts = -(-most // rows)
    if (even := -(-most // (parts * unit)) * unit) < rows:
        rows, size = even, bytes_of(even)
    return Microbatch(rows * longest, size, rows == most)


def largest_fitting(
    bytes_of: Callable[[int], int], budget: int, *, unit: int, most: int
) -> tuple[int, int] | tuple[None, None]:
    """Find the most rows, in multiples of `unit` up to `most`, whose bytes fit.

    Bytes are nearly affine in rows: the line through the two programs nearest to the
    budget gives the next guess. Returns rows and bytes; None if `unit` rows do not fit.
    """
    known = {unit: bytes_of(unit)}
    guess = min(4 * unit, most) if known[unit] <= budget else unit
    while guess not in known and len(known) < 2 + GUESSES:
        known[guess] = bytes_of(guess)
        fits = max(rows for rows, size in known.items() if size <= budget)
        over = min((rows for rows in known if rows > fits), default=most + unit)
        low, high = sorted(known, key=lambda rows: abs(known[rows] - budget))[:2]
        slope = (known[high] - known[low]) / (high - low)
        meets = low + (budget - known[low]) / max(slope, 1e-9)
        guess = int(min(max(meets, fits), over - unit, most)) // unit * unit
    fitting = (each for each in known.items() if each[1] <= budget)
    return max(fitting, default=(None, None))
