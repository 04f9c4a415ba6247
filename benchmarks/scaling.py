"""How a train step's speed changes with each size of the model, and with devices.

    python benchmarks/scaling.py [--quick] [--repeats=3] [--plots=DIR]
        [--only=d_model,num_layers,length,vocabulary,microbatch,devices]

From a small model in float32 one size is changed at a time; the models of a table take
turns. Sequence lengths are tried with full and with windowed self-attention, at as many
tokens a step. Devices are simulated: they share this machine's cores, so their speed
says nothing; what counts is how many bytes they exchange in an update, read off the
compiled program, each instruction once. A plot of each table with --plots. The last
line is the same as JSON.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from benchmarks.collectives import collectives
from benchmarks.harness import figures, has, machine, print_table, take_turns
from configs import wmt_base
from jaxformer.batch import Batch
from jaxformer.models.architectures import make_model
from jaxformer.models.sequence_model import Model
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import born_sharded, make_mesh, on_mesh, put_batch
from jaxformer.training.step import TrainStep, init_state

ROOT = Path(__file__).resolve().parents[1]
REPEATS, QUICK_REPEATS = 3, 1
WINDOW = 64  # positions, of windowed self-attention
HEAD = 32  # d_k and d_v
TABLES = {
    "d_model": (64, 128, 256, 512), "num_layers": (1, 2, 4, 6),
    "length": (32, 128, 512, 2048), "vocabulary": (1000, 4000, 16_000, 37_000),
    "microbatch": (512, 2048, 8192), "devices": (2, 4, 8),
}  # fmt: skip
AXES = "data", "fsdp", "tensor"


class Sizes(NamedTuple):
    """Of a model and its batches; the last two are tokens a side."""

    d_model: int = 128
    num_layers: int = 2
    vocabulary: int = 2000
    window: int | None = None
    length: int = 64
    microbatch: int = 2048

    def model(self) -> Model:
        """The base model with these sizes; the ratios of its sizes stay."""
        values = wmt_base.get_config().model.to_dict() | {
            "encoder_layers": self.num_layers, "decoder_layers": self.num_layers,
            "d_model": self.d_model,
            "d_ff": 4 * self.d_model, "num_heads": max(1, self.d_model // HEAD),
            "d_k": HEAD, "d_v": HEAD, "dtype": "float32",
            "attention_window": self.window,
        }  # fmt: skip
        config = TransformerConfig(**values)
        return make_model(config, vocab_size=self.vocabulary, rematerialise=False)

    def batch(self) -> Batch:
        """Rows without padding, one sentence each."""
        shape = self.microbatch // self.length, self.length
        rng = np.random.default_rng(0)
        source, target = rng.integers(4, self.vocabulary, (2, *shape), dtype=np.int32)
        ones = np.ones(shape, np.int32)
        return Batch(source, target, ones, ones)


class Trainer:
    """The train step of a model and a mesh, compiled, with its state."""

    def __init__(self, sizes: Sizes, **mesh: int) -> None:
        model = sizes.model()
        optimizer, _ = make_optimizer(
            d_model=sizes.d_model, warmup_steps=4000, learning_rate_scale=1.0,
            beta1=0.9, beta2=0.98, epsilon=1e-9, clip_norm=None,
        )  # fmt: skip
        step = TrainStep(
            model, optimizer, label_smoothing=0.1, ema_decay=None, max_bad_steps=10
        )
        init = functools.partial(init_state, model, optimizer, seed=0, ema=False)
        self.mesh = make_mesh(**({"data": -1, "fsdp": 1, "tensor": 1} | mesh))
        start = time.perf_counter()
        with on_mesh(self.mesh):
            self.state = born_sharded(self.mesh, init)
            self.batch = put_batch(self.mesh, sizes.batch())
            lowered = step.lower(self.state, self.batch, accumulate=False)
            self.program = lowered.compile()
        self.compile_seconds = time.perf_counter() - start

    def __call__(self) -> None:
        """Make an update."""
        self.state, report = self.program(self.state, self.batch)
        jax.block_until_ready(report)


def variants(table: str, values: tuple[int, ...], base: Sizes) -> dict[str, Sizes]:
    """The models of a table, by the name of their line."""
    if table != "length":
        return {f"{value:,}": base._replace(**{table: value}) for value in values}
    most = max(*values, base.microbatch)
    return {
        f"{value:,} {name}": base._replace(length=value, window=window, microbatch=most)
        for value in values
        for name, window in (("full", None), ("windowed", WINDOW))
    }


def measure(table: str, options: argparse.Namespace) -> dict[str, dict]:
    """Seconds to compile and target tokens a second, of each line of a table."""
    sizes = variants(table, options.values[table], options.base)
    trainers: dict[str, Callable] = {}
    for name, each in sizes.items():
        trainers[name] = Trainer(each)
        trainers[name]()  # not counted
    rounds = take_turns(trainers, options.repeats)
    first = next(iter(sizes))
    return {
        name: {"compile_seconds": trainers[name].compile_seconds}
        | figures(rounds, name, each.microbatch, beside=first)
        for name, each in sizes.items()
    }


def exchanged(axis: str, count: int) -> dict[str, int]:
    """Bytes of the results of each kind of collective, on one of these devices."""
    trainer = Trainer(Sizes(d_model=256, num_layers=1), **{"data": 1, axis: count})
    found: dict[str, int] = {}
    for each in collectives(trainer.program.as_text()):
        found[each.kind] = found.get(each.kind, 0) + each.bytes
    parameters = jax.tree.leaves(trainer.state.params)
    return {"parameters": sum(leaf.nbytes for leaf in parameters), **found}


def measure_devices(options: argparse.Namespace) -> dict[str, dict]:
    """What crosses between simulated devices, each number in a process of its own."""
    found = {}
    for count in options.values["devices"]:
        flag = f"--xla_force_host_platform_device_count={count}"
        done = subprocess.run(
            [sys.executable, __file__, f"--count={count}"], check=True, text=True,
            stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"XLA_FLAGS": flag},
        )  # fmt: skip
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def print_rates(table: str, found: dict[str, dict]) -> None:
    """Print the speeds of a table."""
    rows = [
        f"| {name} | {each['per_second']:,.0f} | {100 * each['spread']:.0f} % "
        f"| {each['per_second'] / next(iter(found.values()))['per_second']:.2f} "
        f"| {each['compile_seconds']:.1f} |"
        for name, each in found.items()
    ]
    header = table, "target tokens/s", "spread", "times the first", "s to compile"
    print_table(header, rows)


def print_bytes(found: dict[str, dict]) -> None:
    """Print what devices exchange, in units of the parameters."""
    rows = []
    for name, kinds in found.items():
        rows += [
            f"| {name} | {kind} | {size:,} | {size / kinds['parameters']:.3f} |"
            for kind, size in kinds.items()
            if kind != "parameters"
        ]
    header = "devices", "collective", "bytes", "times the parameters"
    print_table(header, rows)


def plot(table: str, found: dict[str, dict], folder: Path) -> None:
    """Write a PNG of a table."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    lines: dict[str, list[tuple[int, float]]] = {}
    for name, each in found.items():
        value, _, kind = name.partition(" ")
        height = each.get("per_second")
        if height is None:
            height = sum(each.values()) - each["parameters"]
        point = int(value.replace(",", "")), height
        lines.setdefault(kind, []).append(point)
    for kind, points in lines.items():
        axes.plot(*zip(*points, strict=True), "o-", label=kind or None)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(table)
    unit = "bytes exchanged an update" if table == "devices" else "target tokens/s"
    axes.set_ylabel(unit)
    if len(lines) > 1:
        axes.legend()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{table}.png", dpi=120)
    pyplot.close(figure)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, fewer values")
    parser.add_argument("--repeats", type=int, help=f"rounds, by default {REPEATS}")
    parser.add_argument("--plots", type=Path, help="folder for a PNG of each table")
    parser.add_argument("--only", default=",".join(TABLES), help="tables, by commas")
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(TABLES):
        parser.error(f"there is no table {', '.join(unknown)}")
    options.values = {
        name: values[:2] if options.quick else values for name, values in TABLES.items()
    }
    options.base = Sizes(num_layers=1) if options.quick else Sizes()
    if options.repeats is None:
        options.repeats = QUICK_REPEATS if options.quick else REPEATS
    if options.plots and not has("matplotlib"):
        options.plots = None
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its outcome; returns the exit code."""
    options = parse(argv)
    if options.count:  # a process with so many simulated devices
        found = {f"{options.count} {a}": exchanged(a, options.count) for a in AXES}
        print(json.dumps(found))
        return 0
    outcome: dict = {"machine": machine(), "repeats": options.repeats, "tables": {}}
    print(json.dumps(outcome["machine"]), file=sys.stderr)
    for table in options.only:
        if table == "devices":
            found = measure_devices(options)
            print_bytes(found)
        else:
            found = measure(table, options)
            print_rates(table, found)
        outcome["tables"][table] = found
        if options.plots:
            plot(table, found, options.plots)
    print(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
