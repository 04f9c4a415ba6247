"""The linear maps of attention and feed-forward."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.models.kernels.linear import multiply


class Projection(nn.Module):
    """A linear map between named axes; its parameters are `kernel` and `bias`."""

    shape: Sequence[int]
    axes: Sequence[str]  # logical axis names, one for each dimension of `shape`
    contracted: int  # the number of leading dimensions of `shape` that are summed over
    dtype: jnp.dtype  # of the factors
    has_bias: bool
    gain: float  # factor of Xavier's initialisation

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L *contracted"]
    ) -> Float[Array, "B L *others"]:
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
        matrix = kernel.reshape(rows, -1)
        y = multiply(x.reshape(*x.shape[:2], rows), matrix, self.dtype)
        y = y.reshape(*x.shape[:2], *self.shape[summed:])
        if not self.has_bias:
            return y
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[summed:])
        bias = self.param("bias", zeros, self.shape[summed:])
        return y + bias.astype(y.dtype)[None, None]
