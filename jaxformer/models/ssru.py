"""The Simpler Simple Recurrent Unit, for self-attention in decoders (Kim et al. 2019).

    f_t = sigmoid(W_f x_t + b_f)    c_t = f_t * c_(t-1) + (1 - f_t) * W x_t

The output is relu(c_t). As in Marian there is no output matrix, and c_0 is zero.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from jaxformer.models.arrays import Floats, Vectors
from jaxformer.models.kernels.elementwise import relu
from jaxformer.models.kernels.linear_recurrence import linear_recurrence
from jaxformer.models.linear import Projection

Starts = Bool[Array, "B L 1"]  # of sentences, at which states are forgotten


def next_state(forget: Floats, value: Floats, before: Floats) -> Floats:
    """Compute c_t from f_t, W x_t and c_(t-1)."""
    return forget * before + (1 - forget) * value


def states(
    forget: Float[Array, "B L D"], value: Float[Array, "B L D"], starts: Starts
) -> Float[Array, "B L D"]:
    """Compute the states of all positions, one after the other.

    The model takes them from `kernels.linear_recurrence`.
    """

    def step(before: Float[Array, "B D"], inputs: tuple) -> tuple:
        forget, value, is_start = inputs
        state = next_state(forget, value, jnp.where(is_start, 0, before))
        return state, state

    by_position = tuple(jnp.swapaxes(x, 0, 1) for x in (forget, value, starts))
    found = jax.lax.scan(step, jnp.zeros_like(value[:, 0]), by_position)[1]
    return jnp.swapaxes(found, 0, 1)


class SSRU(nn.Module):
    """The unit on whole targets; its state is float32."""

    dtype: jnp.dtype  # of the factors of products

    @nn.compact
    def __call__(self, x: Vectors, again: Vectors, starts: Starts) -> Vectors:
        """Take x twice, as `residual` hands out copies."""
        size = x.shape[-1]
        linear = partial(
            Projection, (size, size), ("embed", "state"), contracted=1,
            dtype=self.dtype, gain=1.0,
        )  # fmt: skip
        forget = linear(has_bias=True, name="forget")(x).astype(jnp.float32)
        value = linear(has_bias=False, name="value")(again).astype(jnp.float32)
        forget = jax.nn.sigmoid(forget)
        kept = jnp.where(starts, 0, forget)
        y = relu(linear_recurrence(kept, (1 - forget) * value)).astype(x.dtype)
        return nn.with_logical_constraint(y, ("batch", "length", "activation"))
