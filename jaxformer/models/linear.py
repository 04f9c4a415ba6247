"""The linear maps of attention and feed-forward, laid out for their gradient."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn


@jax.custom_vjp
def multiply(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Multiply x [B, L, M] by a matrix [M, N]: [B, L, N].

    The matrix's gradient is x^T dy. For JAX's (dy^T x)^T XLA transposes copies of dy
    and of the result on CPUs.
    """
    return x @ matrix


def _backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple:
    x, matrix = kept
    return (
        jnp.einsum("bln,mn->blm", gradient, matrix),
        jax.lax.dot_general(x, gradient, (((0, 1), (0, 1)), ((), ()))),  # [M, N]
    )


multiply.defvjp(lambda x, matrix: (x @ matrix, (x, matrix)), _backward)


class Projection(nn.Module):
    """A linear map between named axes; its parameters are `kernel` and `bias`."""

    shape: Sequence[int]
    axes: Sequence[str]  # logical axis names, one for each dimension of `shape`
    contracted: int  # the number of leading dimensions of `shape` that are summed over
    dtype: jnp.dtype
    has_bias: bool
    gain: float  # factor of Xavier's initialisation

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x [B, L, contracted...] to [B, L, others...]."""
        dimensions, summed = range(len(self.shape)), self.contracted
        init = nn.initializers.variance_scaling(
            self.gain**2, "fan_avg", "uniform",
            in_axis=dimensions[:summed], out_axis=dimensions[summed:],
        )  # fmt: skip
        kernel = self.param(
            "kernel", nn.with_logical_partitioning(init, self.axes), self.shape
        )
        # As matrices: in a product of more dimensions XLA copies the kernel transposed.
        rows = math.prod(self.shape[:summed])
        matrix = kernel.astype(self.dtype).reshape(rows, -1)
        y = multiply(x.reshape(*x.shape[:2], rows), matrix)
        y = y.reshape(*x.shape[:2], *self.shape[summed:])
        if not self.has_bias:
            return y
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[summed:])
        bias = self.param("bias", zeros, self.shape[summed:])
        return y + bias.astype(self.dtype)[None, None]
