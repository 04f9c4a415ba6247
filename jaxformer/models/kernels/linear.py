"""A product with a matrix, laid out for its gradient."""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxformer.models.kernels.mixed_precision import transposed


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def multiply(
    x: Float[Array, "B L M"], matrix: Float[Array, "M N"], dtype: DTypeLike
) -> Float[Array, "B L N"]:
    """Multiply x by a matrix, both cast to `dtype`.

    The result has x's dtype. The matrix's gradient is x^T dy. For JAX's (dy^T x)^T XLA
    transposes copies of dy and of the result on CPUs.
    """
    factors = x.astype(dtype), matrix.astype(dtype)
    return jnp.matmul(*factors, preferred_element_type=x.dtype)


def _backward(dtype: DTypeLike, kept: tuple, gradient: Float[Array, "B L N"]) -> tuple:
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
