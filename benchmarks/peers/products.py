"""The limit of a train step: its matrix products alone, by XLA, one after another."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.models import Sizes

MOST_NUMBERS = 2**25  # of the right-hand sides of a shape: more than a cache holds


class Product(NamedTuple):
    """A product of [batch, rows, inner] with [batch, inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int


def products(sizes: Sizes) -> Counter[Product]:
    """Count all matrix products of a train step, forward and backward.

    y = x w costs three: itself, dx = dy w^T and dw = x^T dy.
    """
    found: Counter[Product] = Counter()
    for (batch, rows, inner, columns), count in forward_products(sizes).items():
        found[Product(batch, rows, inner, columns)] += count
        found[Product(batch, rows, columns, inner)] += count
        found[Product(batch, inner, rows, columns)] += count
    return found


def forward_products(sizes: Sizes) -> Counter[Product]:
    d, f, n = sizes.d_model, sizes.d_ff, sizes.layers
    lengths = sizes.source, sizes.target
    forward: Counter[Product] = Counter()
    for length in lengths:
        # Encoder: four projections. Decoder: four of self-attention and two of cross-
        # attention, whose other two project the source.
        tokens = sizes.rows * length
        forward[Product(1, tokens, d, d)] += 6 * n
        forward[Product(1, tokens, d, f)] += n
        forward[Product(1, tokens, f, d)] += n
    heads, head = sizes.rows * sizes.num_heads, d // sizes.num_heads
    for queries, keys in (lengths[:1] * 2, lengths[1:] * 2, lengths[::-1]):
        forward[Product(heads, queries, head, keys)] += n
        forward[Product(heads, queries, keys, head)] += n
    forward[Product(1, sizes.rows * sizes.target, d, sizes.vocabulary)] += 1
    return forward


def products_alone(sizes: Sizes) -> Callable[[], None]:
    """Make a turn that computes every product of a step as often as a step does.

    Right-hand sides differ, as layers have weights of their own, up to MOST_NUMBERS
    numbers of a shape.
    """
    # A CPU would compute several products at a time, and would cast factors in bfloat16
    # to float32 for a result in bfloat16. A GPU takes products in order, and its time
    # to start one would count.
    is_cpu = jax.default_backend() == "cpu"
    result = jnp.float32 if is_cpu else None
    multiply = jax.jit(functools.partial(jnp.matmul, preferred_element_type=result))
    work = []
    for product, count in products(sizes).items():
        shape = (product.batch, product.inner, product.columns)
        most = max(1, MOST_NUMBERS // (product.batch * product.inner * product.columns))
        left = jnp.ones((product.batch, product.rows, product.inner), sizes.dtype)
        rights = [jnp.full(shape, 1 + i, sizes.dtype) for i in range(min(count, most))]
        if product.batch == 1:
            left, rights = left[0], [right[0] for right in rights]
        work.append((count, left, rights))

    def turn() -> None:
        for count, left, rights in work:
            for i in range(count):
                found = multiply(left, rights[i % len(rights)])
                if is_cpu:
                    found.block_until_ready()
        found.block_until_ready()

    return turn
