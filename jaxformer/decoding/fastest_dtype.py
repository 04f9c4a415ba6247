"""Choose the type of products for decoding by timing them."""

import logging
import timeit
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxformer.models.sequence_model import Model

logger = logging.getLogger(__name__)

ROWS, ROUNDS = 128, 5  # hypotheses of the products, and products of each type
LEAST_GAIN = 1.2  # that bfloat16 must have, which is less exact


def fastest_dtype(model: Model) -> str:
    """Return the type of products for a model, and log it.

    On CPUs it is bfloat16 if results are wide and a product of the model's logits gains
    enough, and otherwise float32. On accelerators it is the model's own.
    """
    if jax.default_backend() != "cpu":
        return model.dtype
    if not model.wide_results:
        return "float32"
    exact, rounded = (
        best_time(product(model.vocab_size, model.d_model, dtype))
        for dtype in ("float32", "bfloat16")
    )
    gain = exact / rounded
    dtype = "bfloat16" if gain >= LEAST_GAIN else "float32"
    logger.info(
        "products in %s: bfloat16 is %.1f times as fast here as float32", dtype, gain
    )
    return dtype


def product(vocabulary: int, d_model: int, dtype: str) -> Callable[[], jax.Array]:
    """Return a function that computes logits [V, ROWS] of factors in `dtype`."""
    factors = jnp.ones((vocabulary, d_model), dtype), jnp.ones((d_model, ROWS), dtype)
    multiply = jax.jit(lambda x, y: jnp.matmul(x, y, preferred_element_type="float32"))
    return lambda: multiply(*factors).block_until_ready()


def best_time(work: Callable[[], object]) -> float:
    """Seconds of the fastest of ROUNDS, after one that compiles."""
    work()
    return min(timeit.repeat(work, number=1, repeat=ROUNDS))
