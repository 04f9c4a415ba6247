"""Compare the TPU compiler's estimates with data sheets; nothing is run.

    python benchmarks/calibrate.py

prints the table of docs/accelerators.md: the share of a chip's peak that products of
bfloat16 matrices reach by the estimate, and the share of its memory's rate that a pass
over float32 numbers reaches, which reads and writes each once. Needs libtpu.
"""

import functools
import math
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jaxformer.accelerators.estimate import ENVIRONMENT

os.environ.update(ENVIRONMENT)

import jax
import jax.numpy as jnp

from benchmarks import harness
from jaxformer.accelerators.chips import parse_topology
from jaxformer.accelerators.compiler import devices_of
from jaxformer.accelerators.hlo import Program

TOPOLOGIES = ["v4:2x2x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1"]
SIZES = (1024, 2048, 4096, 8192)  # of square matrices
MEBIBYTES = (16, 256)


def shares(name: str) -> dict[str, float]:
    """Return the share of the peak, or of the memory's rate, of each piece of work."""
    topology = parse_topology(name)
    chip, found = topology.chip, {}
    placed = jax.sharding.SingleDeviceSharding(devices_of(topology)[0])

    def seconds(function: Callable, *arrays: jax.ShapeDtypeStruct) -> float:
        compiled = jax.jit(function, in_shardings=placed).lower(*arrays).compile()
        parts = Program(compiled.as_text(), chip.clock).parts()
        return sum(cost.seconds for cost in parts.values())

    for size in SIZES:
        matrix = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
        rate = 2 * size**3 * chip.cores / seconds(jnp.matmul, matrix, matrix)
        found[f"product of {size:,}"] = rate / chip.peak
    for size in MEBIBYTES:
        numbers = jax.ShapeDtypeStruct((size * 2**8, 1024), jnp.float32)
        moved = 2 * 4 * math.prod(numbers.shape) * chip.cores
        rate = moved / seconds(lambda x: x + 1, numbers)
        found[f"pass over {size} MiB"] = rate / chip.memory_rate
    return found


def measure(options: Namespace) -> dict[str, dict[str, float]]:
    found = {name: shares(name) for name in options.topologies}
    rows = []
    for name, each in found.items():
        chip = parse_topology(name).chip
        cells = " | ".join(f"{100 * share:.0f} %" for share in each.values())
        rows.append(f"{chip.title} | {chip.clock / 1e9:.2f} | {cells}")
    work = found[options.topologies[0]]
    harness.print_table(" | ".join(["chip", "clock, GHz", *work]), rows)
    return {"shares": found}


main = functools.partial(harness.run, __doc__, measure, topologies=TOPOLOGIES)


if __name__ == "__main__":
    sys.exit(main())
