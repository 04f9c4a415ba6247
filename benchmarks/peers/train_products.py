"""The limit of a train step: its matrix products alone, by XLA, one after another."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.peers.training import TrainSizes, products

MOST_NUMBERS = 2**25  # of the right-hand sides of a shape: what no cache holds


def products_alone(sizes: TrainSizes) -> Callable[[], None]:
    """Make a turn that computes every product of a step as often as a step does.

    Layers have weights of their own, so as many different right-hand sides are used as
    a step has, at most MOST_NUMBERS numbers of them.
    """
    multiply = jax.jit(jnp.matmul)
    work = []
    for product in products(sizes):
        shape = (product.batch, product.inner, product.columns)
        distinct = min(
            product.count,
            max(1, MOST_NUMBERS // (product.inner * product.columns * product.batch)),
        )
        left = jnp.ones((product.batch, product.rows, product.inner), sizes.dtype)
        rights = [jnp.full(shape, 1 + i, sizes.dtype) for i in range(distinct)]
        if product.batch == 1:
            left, rights = left[0], [right[0] for right in rights]
        work.append((product.count, left, rights))

    def turn() -> None:
        for count, left, rights in work:
            for i in range(count):
                multiply(left, rights[i % len(rights)]).block_until_ready()

    return turn
