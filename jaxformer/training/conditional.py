"""An update that may be skipped, by the fastest way of a platform."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def updated_if(
    condition: jax.Array, update: Callable[[Tree], Tree], state: Tree
) -> Tree:
    """Return update(state) where `condition`, bool [], holds, else the state.

    XLA for CPUs would copy all parameters and moments to select between new and old
    ones. XLA for GPUs gathers on each device all that a branch returns.
    """
    return jax.lax.platform_dependent(
        state,
        cuda=lambda state: jax.tree.map(
            lambda new, old: jnp.where(condition, new, old), update(state), state
        ),
        default=lambda state: jax.lax.cond(
            condition, update, lambda state: state, state
        ),
    )
