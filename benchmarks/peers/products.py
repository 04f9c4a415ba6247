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
    count = {"convolutional": _of_convs2s, "recurrent": _of_lstm}
    forward = count.get(sizes.architecture, _of_transformer)(sizes)
    tokens = sizes.rows * sizes.target
    forward[Product(1, tokens, sizes.d_model, sizes.vocabulary)] += 1
    found: Counter[Product] = Counter()
    for (batch, rows, inner, columns), count in forward.items():
        found[Product(batch, rows, inner, columns)] += count
        found[Product(batch, rows, columns, inner)] += count
        found[Product(batch, inner, rows, columns)] += count
    return found


def _of_transformer(sizes: Sizes) -> Counter[Product]:
    """Count the products of the layers, forward."""
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
    return forward


def _of_convs2s(sizes: Sizes) -> Counter[Product]:
    d, n, rows = sizes.d_model, sizes.layers, sizes.rows
    width = sizes.model().config.kernel_width
    forward: Counter[Product] = Counter()
    for length in (sizes.source, sizes.target):
        forward[Product(1, rows * length, d, d)] += 2
        forward[Product(1, rows * length, width * d, 2 * d)] += n
    # Attention: a query and an output of each target token, scores and means.
    forward[Product(1, rows * sizes.target, d, d)] += 2 * n
    forward[Product(rows, sizes.target, d, sizes.source)] += n
    forward[Product(rows, sizes.target, sizes.source, d)] += n
    return forward


def _of_lstm(sizes: Sizes) -> Counter[Product]:
    """Count those of LSTM layers and general attention; states follow one another."""
    d, n, rows = sizes.d_model, sizes.layers, sizes.rows
    source, target = rows * sizes.source, rows * sizes.target
    forward: Counter[Product] = Counter()
    forward[Product(1, source, d, 2 * d)] += 2 * n
    forward[Product(1, rows, d // 2, 2 * d)] += 2 * n * sizes.source
    forward[Product(1, target, d, 4 * d)] += n
    forward[Product(1, rows, d, 4 * d)] += n * sizes.target
    forward[Product(rows, sizes.target, sizes.source, d // 2)] += 2  # final states
    forward[Product(1, target, d, d)] += 1  # of which the decoder starts
    forward[Product(1, source, d, d)] += 1
    forward[Product(1, target, 2 * d, d)] += 1
    forward[Product(rows, sizes.target, d, sizes.source)] += 1
    forward[Product(rows, sizes.target, sizes.source, d)] += 1
    return forward


def products_alone(sizes: Sizes) -> Callable[[], None]:
    """Make a turn that computes every product of a step as often as a step does.

    Right-hand sides differ, as layers have weights of their own, up to MOST_NUMBERS
    numbers of a shape.
    """
    # XLA for CPUs would cast factors in bfloat16 to float32 for a result in bfloat16.
    result = jnp.float32 if jax.default_backend() == "cpu" else None
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

    # A CPU would compute several products at a time; a GPU takes them in order, and its
    # time to start one would count.
    waits = jax.default_backend() == "cpu"

    def turn() -> None:
        for count, left, rights in work:
            for i in range(count):
                found = multiply(left, rights[i % len(rights)])
                if waits:
                    found.block_until_ready()
        found.block_until_ready()

    return turn
