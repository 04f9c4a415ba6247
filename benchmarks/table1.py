"""Table 1 of the paper, measured: the cost of layers, and paths between positions.

    python benchmarks/table1.py [--quick] [--repeats=9]

For each kind of layer, over n positions of width d: the operations of its matrix
products and the longest chain of products that depend on each other, both counted in
the traced program; the longest path between two positions, found from which inputs
each output has a gradient of, as layers are stacked; the time of a forward and a
backward pass on this machine.
"""

import argparse
import functools
import itertools
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.counting import count
from benchmarks.table1_layers import LAYERS, Layer

LENGTHS = 16, 64, 256, 1024, 4096  # n
WIDTHS = 64, 128, 256, 512  # d
PATHS = 9, 27, 81  # n of the paths
Cells = dict[tuple[int, int], dict[str, float]]  # what was measured, by n and d


def reached(layer: Layer, n: int, depth: int) -> np.ndarray:
    """Find which inputs of the layer at a depth each output depends on: bool [n, n]."""
    width = 16
    params, apply = layer.make(width, depth, jnp.dtype("float32"))
    x = jax.random.normal(jax.random.key(1), (1, n, width))
    found = jax.jacrev(lambda x: apply(params, x).sum(axis=-1)[0])(x)  # [n, 1, n, D]
    return np.abs(np.asarray(found)).sum(axis=(1, 3)) > 0


def longest_path(layer: Layer, n: int) -> int:
    """Count the steps from the first input to the last output, or back.

    That is the number of stacked layers after which an end depends on the other, times
    the trips of a layer's loop in time.
    """
    x = jnp.zeros((1, n, 16))
    params, apply = layer.make(16, 0, jnp.dtype("float32"))
    trips = count(apply, params, x).chain - count(apply, params, x[:, :1]).chain + 1
    found, depth = np.eye(n, dtype=bool), 0
    while not (found[-1, 0] or found[0, -1]):
        found = reached(layer, n, depth) @ found
        depth += 1
    return depth * trips


def measure_cell(layer: Layer, n: int, d: int, repeats: int) -> dict[str, float]:
    """Count a forward pass, and time it with a backward pass."""
    params, apply = layer.make(d, 0, jnp.dtype("float32"))
    x = jax.random.normal(jax.random.key(1), (1, n, d))
    both = jax.jit(jax.grad(lambda *given: jnp.square(apply(*given)).mean(), (0, 1)))
    jax.block_until_ready(both(params, x))
    rounds = harness.take_turns(
        {"": lambda: jax.block_until_ready(both(params, x))}, repeats, pause=0.0
    )
    seconds = statistics.median(each[""] for each in rounds)
    return count(apply, params, x)._asdict() | {"seconds": seconds}


def slope(values: dict[int, float]) -> float:
    """Fit the exponent of a power of the keys, by least squares of logarithms."""
    return np.polyfit(np.log(list(values)), np.log(list(values.values())), 1)[0]


def row_of(name: str, cells: Cells, paths: list[int]) -> str:
    """Make a row of Table 1: the paper's cells beside what was measured.

    Exponents are those between the two largest n at the smallest d, and between the two
    largest d at the largest n.
    """
    layer = LAYERS[name]
    lengths, widths = (sorted(set(sizes)) for sizes in zip(*cells, strict=True))
    by_n = slope({n: cells[n, widths[0]]["operations"] for n in lengths[-2:]})
    by_d = slope({d: cells[lengths[-1], d]["operations"] for d in widths[-2:]})
    chains = [cells[n, widths[0]]["chain"] for n in (lengths[0], lengths[-1])]
    return " | ".join(
        [
            name, layer.complexity, f"n^{by_n:.2f}, d^{by_d:.2f}",
            layer.sequential, ", ".join(map(str, chains)),
            layer.path, ", ".join(map(str, paths)),
        ]
    )  # fmt: skip


def measure(options: argparse.Namespace) -> dict:
    lengths, widths = (LENGTHS[:3], WIDTHS[:2]) if options.quick else (LENGTHS, WIDTHS)
    found: dict[str, Cells] = {}
    for name, layer in LAYERS.items():
        found[name] = {
            (n, d): measure_cell(layer, n, d, options.repeats)
            for n, d in itertools.product(lengths, widths)
        }
        print(f"{name} is measured", file=sys.stderr)
    paths = {
        name: [longest_path(layer, n) for n in PATHS] for name, layer in LAYERS.items()
    }
    harness.print_table(
        "layer | operations, the paper | counted | sequential, the paper | "
        f"products in a chain, n = {lengths[0]} and {lengths[-1]} | path, the paper | "
        f"found, n = {', '.join(map(str, PATHS))}",
        [row_of(name, cells, paths[name]) for name, cells in found.items()],
    )
    for d in widths:
        rows = []
        for name, cells in found.items():
            times = (f"{1000 * cells[n, d]['seconds']:.3g} ms" for n in lengths)
            rows.append(" | ".join([name, *times]))
        heads = (f"n = {n:,}" for n in lengths)
        harness.print_table(" | ".join([f"d = {d}", *heads]), rows)
    cells = [
        {"layer": name, "n": n, "d": d, **cell}
        for name, each in found.items()
        for (n, d), cell in each.items()
    ]
    return {"cells": cells, "paths": paths}


main = functools.partial(harness.run, __doc__, measure, repeats=(9, 3))


if __name__ == "__main__":
    sys.exit(main())
