"""Layer norm: its gradient in one pass, and sums by the fastest unit of a platform."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from jaxformer.models.arrays import Columns, Floats, Vector

Row = Float32[Array, "1 R"]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: Float[Array, "*L D"], scale: Vector, bias: Vector, epsilon: float
) -> Float[Array, "*L D"]:
    """Compute `jaxformer.models.layers.layer_norm`.

    Its gradient reads x once; that of the formula has sums that are zero.
    """
    return _layer_norm(x, scale, bias, epsilon)[0]


def _layer_norm(
    x: Float[Array, "*L D"], scale: Vector, bias: Vector, epsilon: float
) -> tuple[Float[Array, "*L D"], tuple]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=-1, keepdims=True)
    variance = _mean_square(wide - mean)
    inverse = jax.lax.rsqrt(variance + epsilon)
    shape = (1,) * (x.ndim - 1) + (-1,)
    y = (wide - mean) * inverse * scale.reshape(shape) + bias.reshape(shape)
    return y.astype(x.dtype), (x, mean, inverse, scale)


def _mean_square(x: Float32[Array, "*L D"]) -> Float32[Array, "*L 1"]:
    """Average the squares of x over its last axis."""

    def by_product(squares: Float32[Array, "*L D"]) -> Float32[Array, "*L 1"]:
        size = squares.shape[-1]
        shares = jnp.full((size, 2), 1 / size)  # XLA would sum for a single column
        return jnp.matmul(squares, shares, precision="highest")[..., :1]

    # A TPU adds the mean to the product before the norm. For the squares, which need a
    # pass of their own, its matrix unit is faster than sums, and as exact.
    return jax.lax.platform_dependent(
        jnp.square(x), tpu=by_product, default=partial(jnp.mean, axis=-1, keepdims=True)
    )


def _layer_norm_gradient(epsilon: float, kept: tuple, gradient: Floats) -> tuple:
    x, mean, inverse, scale = kept
    wide = gradient.astype(jnp.float32)
    normal = (x.astype(jnp.float32) - mean) * inverse
    others = tuple(range(x.ndim - 1))
    scaled = wide * scale.reshape((1,) * len(others) + (-1,))
    even = scaled.mean(axis=-1, keepdims=True)
    along = (scaled * normal).mean(axis=-1, keepdims=True)
    grad_x = inverse * (scaled - even - normal * along)
    return grad_x.astype(x.dtype), (wide * normal).sum(others), wide.sum(others)


layer_norm.defvjp(_layer_norm, _layer_norm_gradient)


def mean_and_variance(x: Columns) -> tuple[Row, Row]:
    """Compute both over the first axis of x."""

    def by_sum(x: Columns) -> Row:
        return (x * (1 / len(x))).sum(axis=0, keepdims=True)

    def by_product(x: Columns) -> Row:
        return jnp.full((1, len(x)), 1 / len(x), jnp.float32) @ x

    def on_tpu(x: Columns) -> Row:
        shares = jnp.full((2, len(x)), 1 / len(x), jnp.float32)
        return jnp.matmul(shares, x, precision="highest")[:1]

    # XLA for TPUs fuses the sum of x into the product that makes x. For the squares the
    # matrix unit is faster; XLA would make a product with one row a sum.
    mean = jax.lax.platform_dependent(x, cpu=by_product, default=by_sum)
    variance = jax.lax.platform_dependent(
        jnp.square(x - mean), cpu=by_product, tpu=on_tpu, default=by_sum
    )
    return mean, variance
