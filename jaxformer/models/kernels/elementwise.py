"""Rectified units and rows of a table, with gradients that XLA computes in place."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxformer.models.arrays import Floats, Ids, Table, Vectors


@jax.custom_vjp
def relu(x: Floats) -> Floats:
    """max(0, x); the gradient needs the result alone, which the next product keeps."""
    return jnp.maximum(x, 0)


relu.defvjp(
    lambda x: (relu(x),) * 2,
    lambda y, gradient: (jnp.where(y > 0, gradient, jnp.zeros_like(gradient)),),
)


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
