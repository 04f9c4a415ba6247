"""Choose the type of products for decoding by timing them on this device."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

ROWS, ROUNDS = 128, 5  # hypotheses of the products, and products of each type
LEAST_GAIN = 1.2  # that a less exact type must have


def fastest_dtype(d_model: int, vocabulary: int) -> tuple[str, float]:
    """Return bfloat16 or float32, and how many times as fast bfloat16's product is.

    The product is that of the logits [V, ROWS], summed in float32.
    """

    def product(dtype: str) -> Callable[[], jax.Array]:
        factors = (
            jnp.ones((vocabulary, d_model), dtype),
            jnp.ones((d_model, ROWS), dtype),
        )
        multiply = jax.jit(
            lambda *both: jnp.matmul(*both, preferred_element_type="float32")
        )
        return lambda: multiply(*factors).block_until_ready()

    exact, rounded = (best_time(product(dtype)) for dtype in ("float32", "bfloat16"))
    gain = exact / rounded
    return ("bfloat16" if gain >= LEAST_GAIN else "float32"), gain


def best_time(work: Callable[[], object]) -> float:
    """Seconds of the fastest of ROUNDS, after one that compiles."""
    work()

    def seconds() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(seconds() for _ in range(ROUNDS))
