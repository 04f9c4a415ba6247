"""Measure Table 1 of the paper: what each kind of layer costs, and how far signals go.

    python benchmarks/table1.py [--quick] [--repeats=3]

For sequences of n positions and width d: products of numbers (counted in the program
that JAX traces, loops times their length; XLA counts a loop once), the longest chain of
dependent products, the path between the first and the last position, and time and
memory of forward and backward pass. The path is the number of stacked layers until the
gradient of the last output by the first input is not zero, times the steps of a
recurrent layer. As in the paper, attention is without projections: queries, keys and
values are the input. Exponents are fitted to all sizes with n >= FIT_FROM.
"""

import argparse
import functools
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from benchmarks import harness
from jaxformer.models.attention import dot_product_attention
from jaxformer.models.local_attention import self_attention_mask

WINDOW, KERNEL, KEYS = 32, 3, 32  # r and k of the paper, k of Linformer
FIT_FROM = 128  # positions; shorter rows have no blocks of restricted self-attention
LENGTHS, WIDTHS = (16, 64, 256, 1024, 4096), (64, 128, 256, 512)
QUICK_LENGTHS, QUICK_WIDTHS = (128, 256), (16, 32)
LONGEST_PATH = 1024  # positions; a longer path takes long to walk


def self_attention(params: dict, x: jax.Array, level: int) -> jax.Array:
    """Attend to all positions (section 3.2)."""
    x = x[:, :, None]
    return dot_product_attention(x, x, x)[:, :, 0]


def restricted(params: dict, x: jax.Array, level: int) -> jax.Array:
    """Attend within a neighbourhood of size r (section 4)."""
    ones, x = jnp.ones(x.shape[:2], jnp.int32), x[:, :, None]
    mask = self_attention_mask(ones, window=WINDOW, is_causal=False)
    return dot_product_attention(x, x, x, mask)[:, :, 0]


def recurrent(params: dict, x: jax.Array, level: int) -> jax.Array:
    """Run an LSTM that forgets little: its gradient does not vanish in float32."""

    def step(state: tuple, inputs: jax.Array) -> tuple:
        hidden, cell = state
        gates = inputs + hidden @ params["state"]
        forget, update, out, new = jnp.split(gates, 4, axis=-1)
        kept = jax.nn.sigmoid(forget + 10.0) * cell
        cell = kept + jax.nn.sigmoid(update) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros_like(x[:, 0])
    inputs = (x @ params["input"]).swapaxes(0, 1)
    return jax.lax.scan(step, (zeros, zeros), inputs)[1].swapaxes(0, 1)


def convolution(params: dict, x: jax.Array, level: int, dilation: int = 1) -> jax.Array:
    """Convolve each position with the k - 1 positions before it."""
    return jax.lax.conv_general_dilated(
        x, params["kernel"], (1,), (((KERNEL - 1) * dilation, 0),),
        rhs_dilation=(dilation,), dimension_numbers=("NHC", "HIO", "NHC"),
    )  # fmt: skip


def dilated(params: dict, x: jax.Array, level: int) -> jax.Array:
    """Convolve with gaps that grow by k from layer to layer (ByteNet)."""
    return convolution(params, x, level, KERNEL**level)


def linear_attention(params: dict, x: jax.Array, level: int) -> jax.Array:
    """Attend to k mixtures of all positions (Linformer)."""
    keys, values = (
        jnp.einsum("ms,bsd->bmd", params[name][:, : x.shape[1]], x)[:, :, None]
        for name in ("key_mixture", "value_mixture")
    )
    return dot_product_attention(x[:, :, None], keys, values)[:, :, 0]


class Kind(NamedTuple):
    """A row of Table 1; `published` are its three columns."""

    apply: Callable[[dict, jax.Array, int], jax.Array]  # of parameters, x, layer number
    published: tuple[str, str, str]


KINDS = {
    "self-attention": Kind(self_attention, ("n^2 d", "1", "1")),
    "restricted": Kind(restricted, ("r n d", "1", "n / r")),
    "recurrent": Kind(recurrent, ("n d^2", "n", "n")),
    "convolutional": Kind(convolution, ("k n d^2", "1", "n / k")),
    "dilated": Kind(dilated, ("k n d^2", "1", "log_k n")),
    "linear": Kind(linear_attention, ("not in it", "-", "-")),
}


def inputs_of(n: int, d: int) -> tuple[dict, jax.Array]:
    """Draw the parameters of every kind of layer, and x [1, n, d]."""
    draw = np.random.default_rng(0)
    shapes = {
        "input": (d, 4 * d), "state": (d, 4 * d), "kernel": (KERNEL, d, d),
        "key_mixture": (KEYS, n), "value_mixture": (KEYS, n),
    }  # fmt: skip
    params = {
        name: jnp.float32(draw.normal(size=shape) * shape[-2] ** -0.5)
        for name, shape in shapes.items()
    }
    return params, jnp.float32(draw.normal(size=(1, n, d)))


class Count(NamedTuple):
    """What is counted in a program."""

    operations: int  # multiplications and additions of products
    chains: list[int]  # dependent products before each output
    steps: int  # of the longest loop, 1 without one


def products(equation: core.JaxprEqn) -> int:
    """Count the operations of a product of arrays; 0 for another primitive."""
    size = math.prod(equation.outvars[0].aval.shape)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2 * size * math.prod(shape[axis] for axis in contracted)
    if equation.primitive.name == "conv_general_dilated":
        numbers = equation.params["dimension_numbers"]
        kernel = equation.invars[1].aval.shape
        return 2 * size * math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    return 0


def count(jaxpr: core.Jaxpr, chains: Sequence[int]) -> Count:
    """Count in a jaxpr whose inputs depend on chains of so many products."""
    before = dict(zip(jaxpr.invars, chains, strict=True))
    operations, steps = 0, 1

    def depth(variable: Any) -> int:
        return 0 if isinstance(variable, core.Literal) else before.get(variable, 0)

    for equation in jaxpr.eqns:
        given = [depth(variable) for variable in equation.invars]
        values = equation.params.values()
        inner = next((v.jaxpr for v in values if isinstance(v, core.ClosedJaxpr)), None)
        if equation.primitive.name == "scan":
            found = count_loop(inner, given, equation.params)
        elif inner is not None:
            found = count(inner, given)
        else:
            here = products(equation)
            chain = max(given, default=0) + (here > 0)
            found = Count(here, [chain] * len(equation.outvars), 1)
        operations, steps = operations + found.operations, max(steps, found.steps)
        before.update(zip(equation.outvars, found.chains, strict=True))
    return Count(operations, [depth(variable) for variable in jaxpr.outvars], steps)


def count_loop(body: core.Jaxpr, chains: list[int], params: dict) -> Count:
    """Count in a scan: from its second step on, each adds the same to a chain."""
    first, carried = params["num_consts"], params["num_carry"]
    one = count(body, chains)
    chains = [*chains[:first], *one.chains[:carried], *chains[first + carried :]]
    two, length = count(body, chains), params["length"]
    pairs = zip(one.chains, two.chains, strict=True)
    after = [a + (length - 1) * (b - a) for a, b in pairs]
    return Count(length * one.operations, after, length * one.steps)


def path(kind: Kind, n: int, d: int, steps: int) -> int:
    """Stack layers until the last output depends on the first input.

    Each layer has a gradient of its own for the positions that the layers after it
    depend on; a gradient of all layers would vanish.
    """
    params, x = inputs_of(n, d)

    @functools.partial(jax.jit, static_argnums=1)
    def depends(positions: jax.Array, level: int) -> jax.Array:
        _, back = jax.vjp(lambda x: kind.apply(params, x, level), x)
        (gradient,) = back(jnp.where(positions[:, :, None], x, 0.0))
        return (gradient != 0).any(axis=2)

    positions = jnp.arange(n)[None] == n - 1
    for layers in itertools.count(1):
        positions = depends(positions, layers - 1 if kind.apply is dilated else 0)
        if positions[0, 0]:
            return layers * steps


def compiled_of(kind: Kind, n: int, d: int) -> Callable[[], Any]:
    """Compile forward and backward pass; the result has the compiler's figures."""
    params, x = inputs_of(n, d)

    def loss(params: dict, x: jax.Array) -> jax.Array:
        return kind.apply(params, x, 0).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, x).compile()


def fit(sizes: dict[tuple[int, int], float]) -> tuple[float, float]:
    """Fit the exponents of n and d by least squares of logarithms."""
    chosen = {size: value for size, value in sizes.items() if size[0] >= FIT_FROM}
    rows = np.log([[n, d, math.e] for n, d in chosen])
    target = np.log(np.maximum(list(chosen.values()), 1e-9))
    return tuple(np.linalg.lstsq(rows, target, rcond=None)[0][:2].round(2).tolist())


def measure_size(n: int, d: int, repeats: int) -> dict[str, dict[str, float]]:
    """Measure every kind of layer at one size."""
    params, x = inputs_of(n, d)
    found, turns = {}, {}
    for name, kind in KINDS.items():
        jaxpr = jax.make_jaxpr(functools.partial(kind.apply, level=0))(params, x).jaxpr
        counted = count(jaxpr, [0] * len(jaxpr.invars))
        compiled = compiled_of(kind, n, d)
        found[name] = {
            "operations": counted.operations,
            "sequential": max(counted.chains),
            "bytes": compiled.memory_analysis().temp_size_in_bytes,
        }
        if n <= LONGEST_PATH:
            found[name]["path"] = path(kind, n, d, counted.steps)
        turns[name] = lambda run=compiled: jax.block_until_ready(run(params, x))
        turns[name]()
    rounds = harness.take_turns(turns, repeats)
    for name, each in harness.figures(rounds, dict.fromkeys(KINDS, 1), "").items():
        found[name]["seconds"] = each["seconds"]
    return found


def crossings(sizes: dict[tuple[int, int], dict], measure: str) -> dict[int, int]:
    """By width, find the first n where self-attention exceeds the recurrent layer."""
    found: dict[int, int] = {}
    for (n, d), each in sorted(sizes.items()):
        if each["self-attention"][measure] > each["recurrent"][measure]:
            found.setdefault(d, n)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes and print both tables."""
    lengths, widths = LENGTHS, WIDTHS
    if options.quick:
        lengths, widths = QUICK_LENGTHS, QUICK_WIDTHS
    sizes = {
        (n, d): measure_size(n, d, options.repeats)
        for n, d in itertools.product(lengths, widths)
    }
    exponents, rows = {}, []
    for name, kind in KINDS.items():
        columns = ("operations", "sequential", "path", "seconds", "bytes")
        exponents[name] = {
            column: fit({
                size: each[name][column]
                for size, each in sizes.items() if column in each[name]
            })
            for column in columns
        }  # fmt: skip
        counted = zip(kind.published, columns[:3], strict=True)
        cells = [f"{text} | {exponents[name][column]}" for text, column in counted]
        cells += [str(exponents[name][column]) for column in columns[3:]]
        rows.append(" | ".join([name, *cells]))
    header = ["layer"]
    header += [f"{what}, paper | fitted" for what in ("operations", "chain", "path")]
    harness.print_table(" | ".join([*header, "seconds", "bytes"]), rows)
    rows = [
        f"{n:,} | {d} | {name} | {each['operations']:.3g} | {each['sequential']:,} | "
        f"{each.get('path', '-')} | {each['seconds'] * 1e3:.2f} | {each['bytes']:,}"
        for (n, d), found in sizes.items()
        for name, each in found.items()
    ]
    harness.print_table("n | d | layer | operations | chain | path | ms | bytes", rows)
    crossed = {name: crossings(sizes, name) for name in ("operations", "seconds")}
    print("self-attention exceeds the recurrent layer from n, by d:", crossed)
    figures = {f"{n} x {d}": found for (n, d), found in sizes.items()}
    return {"exponents": exponents, "crossings": crossed, "sizes": figures}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script."""
    return harness.run(__doc__, measure, argv, repeats=(3, 1))


if __name__ == "__main__":
    sys.exit(main())
