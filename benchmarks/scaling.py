"""Measure how a train step's speed changes with each size of a model, and devices.

    python benchmarks/scaling.py [--quick] [--repeats=3]
        [--only=d_model,layers,length,vocabulary,microbatch,devices]

From a small model in float32 one size is changed at a time; the models of a table take
turns. "layers" are encoder_layers and decoder_layers, "length" is tried with full and
with windowed self-attention, at as many tokens a step. Devices are simulated: they
share this machine's cores, so the benchmark times nothing there and counts the bytes
that they exchange in an update, read off the compiled program, each instruction once.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from benchmarks import harness
from benchmarks.models import Sizes, Trainer, one_device
from jaxformer.accelerators.hlo import Program
from jaxformer.system.errors import InputError
from jaxformer.training.sharding import AXES, make_mesh

WINDOW = 64  # positions, of windowed self-attention
HEAD = 32  # d_k and d_v
TABLES = {
    "d_model": (64, 128, 256, 512), "layers": (1, 2, 4, 6),
    "length": (32, 128, 512, 2048), "vocabulary": (1000, 4000, 16_000, 37_000),
    "microbatch": (512, 2048, 8192), "devices": (2, 4, 8),
}  # fmt: skip


def sizes_of(
    d_model: int = 128, length: int = 64, microbatch: int = 2048, **sizes: int | None
) -> Sizes:
    """Return the small model with other sizes; `microbatch` is in tokens a side."""
    small = {"layers": 2, "vocabulary": 2000} | sizes
    return Sizes(
        d_model=d_model, d_ff=4 * d_model, num_heads=max(1, d_model // HEAD),
        rows=microbatch // length, source=length, target=length, **small,
    )  # fmt: skip


def variants(table: str, values: tuple[int, ...]) -> dict[str, Sizes]:
    """Return the models of a table by the name of their line."""
    if table != "length":
        return {f"{value:,}": sizes_of(**{table: value}) for value in values}
    tokens = max(*values, 2048)
    return {
        f"{n:,} {name}": sizes_of(length=n, microbatch=tokens, attention_window=window)
        for n in values
        for name, window in (("full", None), ("windowed", WINDOW))
    }


def measure_speed(table: str, values: tuple[int, ...], repeats: int) -> dict:
    sizes, turns, compiling = variants(table, values), {}, {}
    for name, each in sizes.items():
        start, batch = time.perf_counter(), each.batch()
        trainer = Trainer(each.model(), one_device())
        trainer.compile(batch)
        compiling[name] = time.perf_counter() - start
        turns[name] = functools.partial(trainer, batch)
        turns[name]()  # not counted
    tokens = {name: each.rows * each.target for name, each in sizes.items()}
    rounds = harness.take_turns(turns, repeats)
    found = harness.figures(rounds, tokens, next(iter(turns)))
    for name, each in found.items():
        each["compile_seconds"] = compiling[name]
    columns = {"s to compile": "{compile_seconds:.1f}"}
    harness.print_figures({table: found}, "target tokens", next(iter(sizes)), columns)
    return found


def exchanged(axis: str) -> dict[str, int]:
    """Count bytes of each kind of collective on one of the devices along an axis."""
    mesh = make_mesh(**{name: 1 for name in AXES} | {axis: -1})
    sizes = sizes_of(d_model=256, layers=1)
    trainer = Trainer(sizes.model(), mesh)
    parameters = jax.tree.leaves(trainer.state.params)
    found = {"parameters": sum(leaf.nbytes for leaf in parameters)}
    for each in Program(trainer.compile(sizes.batch()).as_text()).collectives():
        found[each.kind] = found.get(each.kind, 0) + each.bytes
    return found


def measure_devices(counts: tuple[int, ...]) -> dict[str, dict]:
    """Count what simulated devices exchange, each number in a process of its own."""
    found = {}
    for count in counts:
        flag = f"--xla_force_host_platform_device_count={count}"
        done = subprocess.run(
            [sys.executable, __file__, "--only=exchanged"], check=True, text=True,
            stdout=subprocess.PIPE, env=os.environ | {"XLA_FLAGS": flag},
        )  # fmt: skip
        kinds = json.loads(done.stdout.splitlines()[-1])["tables"]
        found |= {f"{count} {axis}": kinds[axis] for axis in AXES}
    rows = [
        f"{name} | {kind} | {size:,} | {size / kinds['parameters']:.3f}"
        for name, kinds in found.items()
        for kind, size in kinds.items()
        if kind != "parameters"
    ]
    harness.print_table("devices | collective | bytes | times the parameters", rows)
    return found


def measure(options: argparse.Namespace) -> dict:
    if options.only == ["exchanged"]:  # the process of `measure_devices`
        return {"tables": {axis: exchanged(axis) for axis in AXES}}
    if unknown := set(options.only) - set(TABLES):
        raise InputError(f"there is no table {', '.join(unknown)}")
    tables = {}
    for table in options.only:
        values = TABLES[table][: 2 if options.quick else None]
        if table == "devices":
            tables[table] = measure_devices(values)
        else:
            tables[table] = measure_speed(table, values, options.repeats)
    return {"tables": tables}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(3, 1), only=list(TABLES)
)


if __name__ == "__main__":
    sys.exit(main())
