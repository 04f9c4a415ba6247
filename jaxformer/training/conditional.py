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
    ones. In a branch, XLA for GPUs gathers on each device all that it returns, and XLA
    for TPUs copies parameters that are no whole tiles into another layout.
    """

    def selected(state: Tree) -> Tree:
        return jax.tree.map(
            lambda new, old: jnp.where(condition, new, old), update(state), state
        )

    def branched(state: Tree) -> Tree:
        return jax.lax.cond(condition, update, lambda state: state, state)

    return jax.lax.platform_dependent(
        state, cuda=selected, tpu=selected, default=branched
    )
