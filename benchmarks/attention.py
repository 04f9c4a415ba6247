"""Compare ways to compute attention (equation 1) in bfloat16 on this machine's GPU.

    python benchmarks/attention.py [--rows=96 --length=256 --heads=8 --size=64]
        [--layers=6] [--quick] [--repeats=7]

A call makes --layers attentions with one mask, forward and gradient, as an update of
base does for each kind of mask. Rows have eight sentences and padding; those of "cuDNN,
lengths" one sentence, and those of "cuDNN without a mask" no padding. Errors are those
at real positions, relative to float32 by XLA.
"""

import functools
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Several processes share the GPU's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

from benchmarks import harness
from benchmarks.agreement import packed, relative_error
from benchmarks.models import Sizes
from benchmarks.peers.attentions import FULL, LENGTHS, NAMES, XLA, attention

KINDS = {"encoder": "ss", "decoder": "tt", "cross": "ts"}  # sides of queries and keys
SENTENCES = 8  # a row
CALLS, PAUSE = 10, 0.05  # calls a turn; seconds between turns
ERRORS = "error of the result", "of queries", "of keys", "of values"


@functools.partial(jax.jit, static_argnums=(0, 1))
def gradients(name: str, kind: str, sides: dict, layers: list, upstream: list) -> tuple:
    """Return the result of each layer, and its gradients of queries, keys and values.

    `sides` are segments, by the letters of KINDS.
    """
    segments = [sides[side] for side in KINDS[kind]]
    way = functools.partial(attention, name, kind == "decoder", *segments)
    results, pull = jax.vjp(lambda layers: [way(*qkv) for qkv in layers], layers)
    return results, *pull(upstream)


def draw_sides(name: str, rows: int, length: int) -> dict[str, jax.Array]:
    """Draw the segments of the source and the target, such as a contestant can mask."""
    batch = packed(Sizes(rows=rows, source=length, target=length), SENTENCES)
    least, most = {LENGTHS: (0, 1), FULL: (1, 1)}.get(name, (0, SENTENCES))
    sides = {"s": batch.source_segments, "t": batch.target_segments}
    return {side: jnp.clip(segments, least, most) for side, segments in sides.items()}


def contestant(name: str, layers: int, *shape: int) -> Callable[..., Any]:
    """Return a function that makes `count` calls of a kind and waits for the last.

    Without arguments it returns the ERRORS of each kind, or why it failed.
    """
    sides = draw_sides(name, *shape[:2])
    draw = functools.partial(jax.random.normal, shape=shape, dtype=jnp.bfloat16)
    keys = jax.random.split(jax.random.key(0), (layers, 4))
    arrays = [list(map(draw, each)) for each in keys]
    qkv = [each[:3] for each in arrays]
    upstream = {  # the loss ignores padding
        side: [jnp.where(segments[..., None, None] > 0, each[3], 0) for each in arrays]
        for side, segments in sides.items()
    }

    def errors(kind: str) -> list[float]:
        given = qkv, upstream[KINDS[kind][0]]
        results, grads = gradients(name, kind, sides, *given)
        first = jax.tree.map(jnp.float32, [each[:1] for each in given])
        with jax.default_matmul_precision("highest"):
            expected = jax.tree.leaves(gradients(XLA, kind, sides, *first))
        queries, keys = (sides[side] > 0 for side in KINDS[kind])
        real = queries, queries, keys, keys
        found = zip(expected, [results[0], *grads[0]], real, strict=True)
        return [relative_error(right[at], other[at]) for right, other, at in found]

    def call(kind: str = "", count: int = 0) -> dict[str, list[float] | str] | None:
        if kind:
            for _ in range(count):
                found = gradients(name, kind, sides, qkv, upstream[KINDS[kind][0]])
            return jax.block_until_ready(found) and None
        outcome: dict[str, list[float] | str] = {}
        for each in KINDS:
            try:
                outcome[each] = errors(each)
            except Exception as error:
                traceback.print_exc()
                outcome[each] = f"{type(error).__name__}: {error}".splitlines()[0]
        return outcome

    return call


def measure(options: Namespace) -> dict[str, Any]:
    sizes = options.layers, options.rows, options.length, options.heads, options.size
    calls = {name: harness.Apart(contestant, name, *sizes) for name in NAMES}
    # XLA's is alone: its autotuning measures products.
    checked, ended = harness.at_once({XLA: calls[XLA]})
    others, more_ended = harness.at_once({n: calls[n] for n in NAMES if n != XLA})
    for name, text in (ended | more_ended).items():
        others[name] = dict.fromkeys(KINDS, text.splitlines()[-1])
    checked |= others
    found = {
        f"{kind} | {name}": checked[name][kind] for kind in KINDS for name in NAMES
    }
    turns = {
        f"{kind} | {name}": functools.partial(calls[name], kind, CALLS)
        for kind in KINDS for name in NAMES if isinstance(checked[name][kind], list)
    }  # fmt: skip
    rounds, rows = harness.take_turns(turns, options.repeats, PAUSE), []
    times = harness.figures(rounds, dict.fromkeys(turns, CALLS), "")
    for key, errors in found.items():
        cells = [errors]
        if each := times.get(key):
            each["milliseconds"] = 1e3 / each["per_second"]
            cells = [f"{each['milliseconds']:.3f}", f"{each['spread']:.0%}"]
            cells += [f"{error:.1e}" for error in errors]
        rows.append(" | ".join([key, *cells]))
    head = " | ".join(["mask", "who", "ms a call", "spread", *ERRORS])
    harness.print_table(head, rows)
    device = jax.devices()[0].device_kind
    return {"device": device, "times": times, "errors": found}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(7, 2), rows=96, length=256, heads=8,
    size=64, layers=6,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
