"""Functions whose gradients XLA computes in place, or within a product."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxformer.models.arrays import Floats, Ids, Table, Vectors


@jax.custom_vjp
def relu(x: Floats) -> Floats:
    """max(0, x); the gradient needs the result alone, which the next product keeps."""
    return jnp.maximum(x, 0)


# XLA would rewrite y > 0 as x > 0. It would then store x, and cuBLAS could not rectify
# as it writes the product.
relu.defvjp(
    lambda x: (relu(x),) * 2,
    lambda y, gradient: (jnp.where(y != 0, gradient, jnp.zeros_like(gradient)),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def copies(x: Floats, count: int) -> tuple[Floats, ...]:
    """Return x for `count` uses, whose gradients are added in this order.

    Each gradient is the left operand of its addition. XLA then lets cuBLAS add the sum
    so far as it writes the product that is this gradient. It does not if the left
    operand is already such a sum.
    """
    return (x,) * count


def _sum(count: int, _: None, gradients: tuple[Floats, ...]) -> tuple[Floats]:
    total, *others = gradients
    for gradient in others:
        total = gradient + total
    return (total,)


copies.defvjp(lambda x, count: (copies(x, count), None), _sum)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def look_up(table: Table, ids: Ids, dtype: DTypeLike) -> tuple[Vectors, Table]:
    """Look up rows of a table by ids; return the rows in `dtype`, and the table.

    If later uses of the table take the one returned here, the gradient of the rows is
    added to theirs in place. Otherwise XLA would fill an array [V, D] for each use and
    add them up.
    """
    return jnp.take(table.astype(dtype), ids, axis=0), table


look_up.defvjp(
    lambda table, ids, dtype: (look_up(table, ids, dtype), ids),
    lambda _, ids, grads: (grads[1].at[ids].add(grads[0]), None),
)
