"""Table 1 of the paper, measured: the cost of layers, and paths between positions.

    python benchmarks/table1.py --output=docs/architectures/layers.svg

For each kind of layer, over n positions of width d: the operations of its matrix
products and the longest chain of products that depend on each other, both counted in
the traced program; the longest path between two positions, found from which inputs
each output has a gradient of, as layers are stacked; time and memory of a forward and a
backward pass on this machine; with --topology, the TPU compiler's estimate of its time.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def reached(layer: Layer, n: int, depth: int) -> np.ndarray:
    """Find which inputs of the layer at a depth each output depends on: bool [n, n]."""
    width = 16
    params, apply = layer.make(width, depth, jnp.float32)
    x = jax.random.normal(jax.random.key(1), (1, n, width))
    found = jax.jacrev(lambda x: apply(params, x).sum(axis=-1)[0])(x)  # [n, 1, n, D]
    return np.abs(np.asarray(found)).sum(axis=(1, 3)) > 0


def longest_path(layer: Layer, n: int) -> int:
    """Count the steps from the first input to the last output, or back.

    That is the number of stacked layers after which an end depends on the other, times
    the trips of a layer's loop in time.
    """
    x = jnp.zeros((1, n, 16))
    params, apply = layer.make(16, 0, jnp.float32)
    trips = count(apply, params, x).chain - count(apply, params, x[:, :1]).chain + 1
    found, depth = np.eye(n, dtype=bool), 0
    while not (found[-1, 0] or found[0, -1]):
        found = reached(layer, n, depth) @ found
        depth += 1
    return depth * trips


def passes(layer: Layer, n: int, d: int, dtype: Any) -> tuple[Callable, tuple]:
    """Return a function for a forward and a backward pass, and its arguments."""
    params, apply = layer.make(d, 0, dtype)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.square(apply(params, x).astype(jnp.float32)).mean()

    x = jax.random.normal(jax.random.key(1), (1, n, d)).astype(dtype)
    return jax.grad(loss, argnums=(0, 1)), (params, x)


def run(layer: Layer, n: int, d: int, repeats: int) -> dict[str, float]:
    """Time both passes, and read the memory of their temporary arrays."""
    function, arguments = passes(layer, n, d, jnp.float32)
    compiled = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.perf_counter() - start)
    used = compiled.memory_analysis().temp_size_in_bytes
    return {"seconds": statistics.median(seconds), "bytes": used}


def estimated(layer: Layer, n: int, d: int, topology: str) -> float:
    """Estimate the seconds of both passes in bfloat16 on one device of a TPU."""
    from benchmarks import calibrate

    chip = calibrate.parse_topology(topology)
    function, arguments = passes(layer, n, d, jnp.bfloat16)
    shapes = jax.eval_shape(lambda *given: given, *arguments)
    device = calibrate.devices_of(chip)[0]
    return calibrate.seconds(function, device, chip.chip.clock, *shapes)


def slope(values: dict[int, float]) -> float:
    """Fit the exponent of a power of the keys, by least squares of logarithms."""
    return np.polyfit(np.log(list(values)), np.log(list(values.values())), 1)[0]


def table(
    found: dict[str, dict[tuple[int, int], dict[str, float]]],
    paths: dict[str, dict[int, int]],
) -> list[str]:
    """Make the rows of Table 1: the paper's cells beside what was measured.

    Exponents are those between the two largest n at the smallest d, and between the two
    largest d at the largest n.
    """
    rows = []
    for name, cells in found.items():
        layer = LAYERS[name]
        lengths, widths = (sorted(set(sizes)) for sizes in zip(*cells, strict=True))
        by_n = slope({n: cells[n, widths[0]]["operations"] for n in lengths[-2:]})
        by_d = slope({d: cells[lengths[-1], d]["operations"] for d in widths[-2:]})
        chains = [cells[n, widths[0]]["chain"] for n in (lengths[0], lengths[-1])]
        row = [
            name, layer.complexity, f"n^{by_n:.2f}, d^{by_d:.2f}",
            layer.sequential, ", ".join(map(str, chains)),
            layer.path, ", ".join(map(str, paths[name].values())),
        ]  # fmt: skip
        rows.append(" | ".join(row))
    return rows


def print_costs(found: dict[str, dict[tuple[int, int], dict[str, float]]]) -> None:
    """Print time and memory by layer and n, a table for each width."""
    for d in sorted({d for cells in found.values() for _, d in cells}):
        rows = []
        for name, cells in found.items():
            of_width = [cell for (_, each), cell in cells.items() if each == d]
            costs = [
                f"{1000 * cell['seconds']:.3g} ms, {cell['bytes'] / 2**20:.3g} MiB"
                + (f", {1e6 * cell['estimate']:.3g} us" if "estimate" in cell else "")
                for cell in of_width
            ]
            rows.append(" | ".join([name, *costs]))
        lengths = [f"n = {n:,}" for n, each in cells if each == d]
        harness.print_table(" | ".join([f"d = {d}", *lengths]), rows)


def crossings(found: dict[str, dict], measure: str) -> dict[int, int]:
    """By width, find the first n for which self-attention exceeds the LSTM."""
    crossed: dict[int, int] = {}
    for (n, d), cell in sorted(found["self-attention"].items()):
        if cell[measure] > found["LSTM"][n, d][measure]:
            crossed.setdefault(d, n)
    return crossed


def draw(cells: list[dict[str, Any]], measure: str, output: Path) -> None:
    """Draw one chart for each width: n against the measure, a line for each layer."""
    import altair as alt

    from jaxformer.reports import page

    titles = {
        "seconds": "seconds, forward and backward",
        "estimate": "estimated seconds, forward and backward",
    }
    base = alt.Chart(alt.Data(values=cells)).properties(width=220, height=200)
    log, powers = alt.Scale(type="log"), [10.0**power for power in range(-7, 2)]
    lengths = alt.Axis(values=LENGTHS, format=",d")
    colour = alt.Color(
        "layer:N", sort=list(LAYERS), scale=alt.Scale(range=list(page.COLOURS[:6]))
    )
    lines = base.mark_line(point=True).encode(
        x=alt.X("n:Q", scale=log, axis=lengths, title="positions n"),
        y=alt.Y(
            f"{measure}:Q", scale=log, axis=alt.Axis(values=powers),
            title=titles[measure],
        ),
        color=colour,
    )  # fmt: skip
    width = base.mark_rule(strokeDash=[4, 4], color="gray").encode(x="d:Q")
    facet = alt.Facet("d:O", title="width d")
    chart = alt.layer(lines, width).facet(facet=facet, columns=2)
    page.write(output, page.picture(chart, "svg"))


def measure(options: argparse.Namespace) -> dict:
    lengths, widths = (LENGTHS[:3], WIDTHS[:2]) if options.quick else (LENGTHS, WIDTHS)
    found: dict[str, dict] = {}
    for name, layer in LAYERS.items():
        found[name] = {}
        for n in lengths:
            for d in widths:
                params, apply = layer.make(d, 0, jnp.float32)
                x = jax.ShapeDtypeStruct((1, n, d), jnp.float32)
                cell = count(apply, params, x)._asdict()
                cell |= run(layer, n, d, options.repeats)
                if options.topology:
                    cell["estimate"] = estimated(layer, n, d, options.topology)
                found[name][n, d] = cell
        print(f"{name} is measured", file=sys.stderr)
    paths = {
        name: {n: longest_path(layer, n) for n in PATHS}
        for name, layer in LAYERS.items()
    }
    harness.print_table(
        "layer | operations, the paper | counted | sequential, the paper | "
        f"products in a chain, n = {lengths[0]} and {lengths[-1]} | path, the paper | "
        f"found, n = {', '.join(map(str, PATHS))}",
        table(found, paths),
    )
    print_costs(found)
    cells = [
        {"layer": name, "n": n, "d": d, **cell}
        for name, each in found.items()
        for (n, d), cell in each.items()
    ]
    crossed = {each: crossings(found, each) for each in ("operations", "seconds")}
    print("self-attention exceeds the LSTM from n, by d:", crossed, end="\n\n")
    if options.output:
        for kind in ("seconds", "estimate"):
            if kind in cells[0]:
                path = options.output.with_stem(f"{options.output.stem}_{kind}")
                draw(cells, kind, path)
    return {"cells": cells, "paths": paths, "crossings": crossed}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(9, 3), topology="", output=None,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
