"""Layer norm: its gradient in one pass, and sums by the fastest unit of a platform."""

from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> jax.Array:
    """Compute `jaxformer.models.layers.layer_norm`.

    Its gradient reads x once; that of the formula has sums that are zero.
    """
    return _layer_norm(x, scale, bias, epsilon)[0]


def _layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=-1, keepdims=True)
    variance = _mean_square(wide - mean)
    inverse = jax.lax.rsqrt(variance + epsilon)
    shape = (1,) * (x.ndim - 1) + (-1,)
    y = (wide - mean) * inverse * scale.reshape(shape) + bias.reshape(shape)
    return y.astype(x.dtype), (x, mean, inverse, scale)


def _mean_square(x: jax.Array) -> jax.Array:
    """Average the squares of x float32 [..., D] over its last axis: [..., 1]."""

    def by_product(squares: jax.Array) -> jax.Array:
        size = squares.shape[-1]
        shares = jnp.full((size, 2), 1 / size)  # XLA would sum for a single column
        return jnp.matmul(squares, shares, precision="highest")[..., :1]

    # A TPU adds the mean to the product before the norm. For the squares, which need a
    # pass of their own, its matrix unit is faster than sums, and as exact.
    return jax.lax.platform_dependent(
        jnp.square(x), tpu=by_product, default=partial(jnp.mean, axis=-1, keepdims=True)
    )


def _layer_norm_gradient(epsilon: float, kept: tuple, gradient: jax.Array) -> tuple:
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


def mean_and_variance(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute both over the first axis of x float32 [D, R]: [1, R] each."""

    def by_sum(x: jax.Array) -> jax.Array:
        return (x * (1 / len(x))).sum(axis=0, keepdims=True)

    def by_product(x: jax.Array) -> jax.Array:
        return jnp.full((1, len(x)), 1 / len(x), jnp.float32) @ x

    def on_tpu(x: jax.Array) -> jax.Array:
        shares = jnp.full((2, len(x)), 1 / len(x), jnp.float32)
        return jnp.matmul(shares, x, precision="highest")[:1]

    # XLA for TPUs fuses the sum of x into the product that makes x. For the squares the
    # matrix unit is faster; XLA would make a product with one row a sum.
    mean = jax.lax.platform_dependent(x, cpu=by_product, default=by_sum)
    variance = jax.lax.platform_dependent(
        jnp.square(x - mean), cpu=by_product, tpu=on_tpu, default=by_sum
    )
    return mean, variance
