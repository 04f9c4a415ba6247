"""Measure seconds from a command to its first update and to its first translation.

    python benchmarks/startup.py [--quick] [--repeats=3] [--shapes=8x32,8x64,16x64]

The commands are started as a user starts them, for the demo's model and text, cold
(nothing compiled is kept) and warm (after a cold run). Cold and warm take turns. The
loss of the first update must be the same, cold and warm. Then, for the layers of the
base model, what compiling them costs for each shape of a batch and how long a step
takes: unrolled, as training has them, and as a loop (`jax.lax.scan`).
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks import harness
from benchmarks.models import Sizes
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.transformer import Layer
from jaxformer.training.log import read_metrics

SHAPES = "8x32,8x64,16x64", "4x32"  # rows x length; the second if quick
SENTENCE = "Yesterday the teacher gave the children two old books.\n"
CONFIG = {
    "data.builtin_pairs": 2000, "data.builtin_eval_pairs": 2, "data.vocab_size": 500,
    "training.steps": 1, "training.log_every": 1, "training.eval_every": 1,
    "training.save_every": 1, "training.keep": 1, "training.average": 1,
    "batches.executor": "python", "decoding.beam_size": 1,
}  # fmt: skip


def run_until(
    mode: str,
    workdir: Path,
    cache: Path,
    stream: str = "stdout",
    start: str | None = "",
) -> None:
    """Run a command, and kill it after the first line of a stream that begins so.

    With `start` None it is not killed. Raises RuntimeError if it fails.
    """
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    config = CONFIG if mode != "translate" else {}
    flags = [f"--mode={mode}", f"--workdir={workdir}"]
    environment = {"XDG_CACHE_HOME": str(cache)}
    process = harness.start_command(flags, config, environment, text=True, **pipes)
    if start is None:
        _, errors = process.communicate(timeout=600)
        if process.returncode:
            raise RuntimeError(errors)
        return
    if mode == "translate":
        process.stdin.write(SENTENCE)
        process.stdin.flush()
    lines = [""]
    for line in getattr(process, stream):
        lines.append(line)
        if line.startswith(start):
            break
    process.kill()
    _, errors = process.communicate()
    if len(lines) == 1 or not lines[-1].startswith(start):
        raise RuntimeError("".join(lines) + errors)


def run_once(what: str, folder: Path, losses: list[float], *, is_cold: bool) -> None:
    """Run a command until its first "update", whose loss is kept, or "translation"."""
    if is_cold:
        shutil.rmtree(folder / what, ignore_errors=True)
    if what == "translation":
        run_until("translate", folder / "trained", folder / what)
        return
    workdir = folder / "training"
    shutil.rmtree(workdir, ignore_errors=True)
    shutil.copytree(folder / "text", workdir)
    run_until("train", workdir, folder / what, "stderr", "step 1/")
    losses.append(read_metrics(workdir)[0]["loss"])


def time_commands(options: argparse.Namespace, folder: Path) -> dict:
    """Time both commands, cold and warm."""
    run_until("prepare", folder / "text", folder / "first", start=None)
    shutil.copytree(folder / "text", folder / "trained")
    run_until("train", folder / "trained", folder / "first", start=None)
    losses, found = [], {}
    for what in ("update", "translation"):
        turn = functools.partial(run_once, what, folder, losses)
        starts = {"cold": True, "warm": False}
        turns = {k: functools.partial(turn, is_cold=v) for k, v in starts.items()}
        rounds = harness.take_turns(turns, options.repeats)
        found[what] = harness.figures(rounds, dict.fromkeys(turns, 1), "cold")
    if len(set(losses)) > 1:
        raise RuntimeError(f"the first losses differ: {losses}")
    harness.print_figures(found, "starts", "cold", {})
    return {**found, "first_loss": losses[0]}


def unrolled(layer: Callable, params: Any, x: jax.Array, keys: jax.Array) -> jax.Array:
    """Apply `layer(params, x, key)` N times; params are stacked, [N, ...]."""
    for i in range(len(keys)):
        x = layer(jax.tree.map(lambda p, i=i: p[i], params), x, keys[i])
    return x


def scanned(layer: Callable, params: Any, x: jax.Array, keys: jax.Array) -> jax.Array:
    """Apply the layers in a loop of the program."""

    def body(x: jax.Array, each: tuple) -> tuple[jax.Array, None]:
        return layer(each[0], x, each[1]), None

    return jax.lax.scan(body, x, (params, keys))[0]


def gradients_of(
    run: Callable, config: TransformerConfig, rows: int, length: int
) -> tuple[Callable, tuple]:
    """Return a function and its arguments: gradients of both stacks, dropout on."""
    encoder, decoder = Layer(config, "encoder"), Layer(config, "decoder")
    x = jax.random.normal(jax.random.key(0), (rows, length, config.d_model))
    mask = jnp.ones((rows, 1, length, length), bool)
    causal = jnp.tril(mask)
    keys = jax.random.split(jax.random.key(1), config.encoder_layers)

    def born(module: nn.Module, *inputs: jax.Array) -> Any:
        def one(key: jax.Array) -> Any:
            return nn.unbox(module.init(key, *inputs)["params"])

        return jax.jit(jax.vmap(one))(keys)

    def loss(params: tuple, x: jax.Array) -> jax.Array:
        def apply(module: nn.Module, *others: jax.Array) -> Callable:
            return lambda params, x, key: module.apply(
                {"params": params}, x, *others, rngs={"dropout": key}
            )

        memory = run(apply(encoder, mask), params[0], x, keys)
        decode = apply(decoder, causal, memory, mask)
        return jnp.square(run(decode, params[1], x, keys)).sum()

    params = born(encoder, x, mask), born(decoder, x, causal, x, mask)
    return jax.jit(jax.grad(loss)), (params, x)


def time_stacks(options: argparse.Namespace) -> dict:
    """Time compiling and running both kinds of stack, by shape."""
    jax.config.update("jax_enable_compilation_cache", False)
    sizes = Sizes(num_layers=options.layers, d_model=options.d_model)
    found: dict = {}
    for shape in (options.shapes or SHAPES[options.quick]).split(","):
        rows, length = map(int, shape.split("x"))
        turns, compiling = {}, {}
        for run in (unrolled, scanned):
            function, arguments = gradients_of(run, sizes.model().config, rows, length)
            lowered, before = function.lower(*arguments), time.perf_counter()
            program = lowered.compile()
            compiling[run.__name__] = time.perf_counter() - before
            turns[run.__name__] = lambda program=program, arguments=arguments: (
                jax.block_until_ready(program(*arguments))
            )
        found[shape] = harness.time_compiled(
            turns, compiling, options.repeats, dict.fromkeys(turns, rows * length)
        )
    harness.print_figures(found, "tokens", "unrolled", harness.COMPILE_COLUMN)
    return found


def measure(options: argparse.Namespace) -> dict:
    """Time the commands, then the layers."""
    with tempfile.TemporaryDirectory(prefix="jaxformer-startup-") as folder:
        starts = time_commands(options, Path(folder))
    return {"starts": starts, "stacks": time_stacks(options)}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(3, 1), shapes="", layers=6, d_model=512
)


if __name__ == "__main__":
    sys.exit(main())
