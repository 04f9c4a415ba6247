"""Compare updates on this machine's accelerator with the same ones on its CPU.

    python benchmarks/agreement.py [--model=base] [--layers=2] [--rows=8] [--length=64]

Each row of a batch has three sentences and padding. The reference is float32 on the
CPU; both draw the same parameters and dropout. The table has the relative error of the
gradient, and of the parameters after five updates, by type of products, precision of
float32 (JAX's default rounds to TF32 on GPUs) and attention; a fused one is cuDNN's.
The exit code is 1 if an error is above the bound of its type in BOUNDS, or is NaN.
"""

import dataclasses
import functools
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Several processes share the accelerator's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from benchmarks import harness
from benchmarks.models import SIZES, Sizes, Trainer, training_config
from jaxformer.batch import Batch
from jaxformer.training.sharding import on_mesh
from jaxformer.training.step import gradients

UPDATES, SENTENCES = 5, 3
REFERENCE = "reference"
KINDS = (  # type, precision, fused attention, bound of the gradient's error
    ("float32", "highest", False, 1e-5),
    ("float32", None, False, 1e-2),
    ("bfloat16", None, False, 3e-2),
    ("bfloat16", None, True, 3e-2),
)
Found = tuple[np.ndarray, np.ndarray]  # gradient and parameters, flat


def packed(sizes: Sizes, sentences: int = SENTENCES) -> Batch:
    """Draw rows of so many sentences of random lengths, with padding at the end."""
    draw = np.random.default_rng(0)

    def side(length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.tile(np.arange(1, length), (sizes.rows, 1))
        ends = np.sort(draw.permuted(places, axis=1)[:, :sentences])
        number = 1 + (np.arange(length) >= ends[..., None]).sum(1)
        segments = np.where(number > sentences, 0, number).astype(np.int32)
        return sizes.sentences(length, seed) * (segments > 0), segments

    ids, segments = zip(side(sizes.source, 1), side(sizes.target, 2), strict=True)
    return Batch(*ids, *segments)


def updates(sizes: Sizes, precision: str | None) -> Callable[[], Found]:
    """Return a function that computes a gradient and then makes UPDATES updates."""
    jax.config.update("jax_default_matmul_precision", precision)
    model, batch, config = sizes.model(), packed(sizes), training_config()
    trainer = Trainer(model)

    def flat(tree: Any) -> np.ndarray:
        leaves = jax.tree.leaves(nn.unbox(tree))
        return np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in leaves])

    def run() -> Found:
        with on_mesh(trainer.mesh):
            differentiate = jax.jit(
                lambda state: gradients(model, state, batch, jnp.int32(0), config).grads
            )
            gradient = flat(differentiate(trainer.state))
        for _ in range(UPDATES):
            trainer.start(batch)
        return gradient, flat(trainer.state.params)

    return run


def relative_error(expected: np.ndarray, found: np.ndarray) -> float:
    difference = np.float64(expected) - np.float64(found)
    return float(np.linalg.norm(difference) / np.linalg.norm(np.float64(expected)))


def measure(options: Namespace) -> dict[str, Any]:
    sizes = dataclasses.replace(
        SIZES[options.model], layers=options.layers, rows=options.rows,
        source=options.length, target=options.length,
    )  # fmt: skip
    with mock.patch.dict(os.environ, {"JAX_PLATFORMS": "cpu"}):  # of the new process
        calls = {REFERENCE: harness.Apart(updates, sizes, None)}
    bounds = {}
    for dtype, precision, fused, bound in KINDS:
        changed = dataclasses.replace(sizes, dtype=dtype, fused_attention=fused)
        name = f"{dtype} {precision or 'default'} {'fused' if fused else 'plain'}"
        calls[name] = harness.Apart(updates, changed, precision)
        bounds[name] = bound
    found, failed = harness.at_once(calls)
    expected, errors, rows = found.pop(REFERENCE), {}, []
    for name, each in found.items():
        errors[name] = [*map(relative_error, expected, each)]
        rows.append(" | ".join([*name.split(), *(f"{e:.1e}" for e in errors[name])]))
    head = "dtype | precision | attention | error of the gradient | of the parameters"
    harness.print_table(head, rows)
    holds = all(errors[name][0] < bounds[name] for name in errors) and not failed
    device = jax.devices()[0].device_kind
    return {"device": device, "errors": errors, "failed": failed, "holds": holds}


main = functools.partial(
    harness.run, __doc__, measure, model=tuple(SIZES), layers=2, rows=8, length=64
)


if __name__ == "__main__":
    sys.exit(main())
