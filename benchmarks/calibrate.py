"""Compare the TPU compiler's estimates with data sheets; nothing is run.

    python benchmarks/calibrate.py

prints the table of docs/accelerators.md: the share of a chip's peak that products of
bfloat16 matrices reach by the estimate, and the share of its memory's rate that a pass
over float32 numbers reaches, which reads and writes each once. Needs libtpu.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jaxformer.accelerators.estimate import ENVIRONMENT

os.environ.update(ENVIRONMENT)

import jax
import jax.numpy as jnp

from benchmarks.harness import parse, print_table
from jaxformer.accelerators.chips import parse_topology
from jaxformer.accelerators.compiler import devices_of
from jaxformer.accelerators.hlo import Program

TOPOLOGIES = ["v4:2x2x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1"]
SIZES = (1024, 2048, 4096, 8192)  # of square matrices
MEBIBYTES = (16, 256)


def seconds(
    function: Callable, device: jax.Device, clock: float, *arrays: jax.ShapeDtypeStruct
) -> float:
    """Estimate the seconds of a function of arrays on one device."""
    placed = jax.sharding.SingleDeviceSharding(device)
    compiled = jax.jit(function, in_shardings=placed).lower(*arrays).compile()
    return Program(compiled.as_text()).cycles().total() / clock


def shares(name: str) -> dict[str, float]:
    """Return the share of the peak, or of the memory's rate, of each piece of work."""
    topology = parse_topology(name)
    chip, device = topology.chip, devices_of(topology)[0]
    found = {}
    for size in SIZES:
        matrix = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
        taken = seconds(jnp.matmul, device, chip.clock, matrix, matrix)
        found[f"product of {size:,}"] = 2 * size**3 * chip.cores / chip.peak / taken
    for size in MEBIBYTES:
        numbers = jax.ShapeDtypeStruct((size * 2**8, 1024), jnp.float32)
        taken = seconds(lambda x: x + 1, device, chip.clock, numbers)
        moved = 2 * 4 * math.prod(numbers.shape)
        found[f"pass over {size} MiB"] = moved * chip.cores / chip.memory_rate / taken
    return found


def main(argv: Sequence[str] | None = None) -> None:
    names = parse(__doc__, argv, {"topologies": TOPOLOGIES}).topologies
    found = {name: shares(name) for name in names}
    rows = []
    for name, each in found.items():
        chip = parse_topology(name).chip
        cells = " | ".join(f"{100 * share:.0f} %" for share in each.values())
        rows.append(f"{chip.title} | {chip.clock / 1e9:.2f} | {cells}")
    print_table(" | ".join(["chip", "clock, GHz", *found[names[0]]]), rows)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
