"""The linear maps of attention and feed-forward, laid out for their gradient."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.models.mixed_precision import transposed


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def multiply(x: jax.Array, matrix: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Multiply x [B, L, M] by a matrix [M, N], both cast to `dtype`: [B, L, N].

    The result has x's dtype. The matrix's gradient is x^T dy. For JAX's (dy^T x)^T XLA
    transposes copies of dy and of the result on CPUs.
    """
    factors = x.astype(dtype), matrix.astype(dtype)
    return jnp.matmul(*factors, preferred_element_type=x.dtype)


def _backward(
    dtype: jax.typing.DTypeLike, kept: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple:
    (x, matrix), result = kept, gradient.dtype
    product = functools.partial(jnp.einsum, preferred_element_type=result)
    x, gradient = x.astype(dtype), gradient.astype(dtype)
    grad_x = product("bln,mn->blm", gradient, matrix.astype(dtype))
    if x.dtype != result:  # on CPUs, see `mixed_precision`
        rows = gradient.reshape(-1, gradient.shape[-1])
        grad_matrix = product("mr,rn->mn", transposed(x), rows)
    else:
        grad_matrix = jax.lax.dot_general(x, gradient, (((0, 1), (0, 1)), ((), ())))
    return grad_x, grad_matrix.astype(matrix.dtype)


multiply.defvjp(
    lambda x, matrix, dtype: (multiply(x, matrix, dtype), (x, matrix)), _backward
)


class Projection(nn.Module):
    """A linear map between named axes; its parameters are `kernel` and `bias`."""

    shape: Sequence[int]
    axes: Sequence[str]  # logical axis names, one for each dimension of `shape`
    contracted: int  # the number of leading dimensions of `shape` that are summed over
    dtype: jnp.dtype  # of the factors
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
        matrix = kernel.reshape(rows, -1)
        y = multiply(x.reshape(*x.shape[:2], rows), matrix, self.dtype)
        y = y.reshape(*x.shape[:2], *self.shape[summed:])
        if not self.has_bias:
            return y
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[summed:])
        bias = self.param("bias", zeros, self.shape[summed:])
        return y + bias.astype(y.dtype)[None, None]
