"""Layer norm: its gradient in one pass, and sums by the fastest unit of a platform."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from jaxformer.models.arrays import Columns, Floats, Vector
from jaxformer.models.kernels.barrier import pass_ends

Row = Float32[Array, "1 R"]
Rows = Float32[Array, "*L D"]
OfRows = Float32[Array, "*L 1"]


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
    mean = _mean(wide)
    variance = _mean_square(wide - mean)
    inverse = jax.lax.rsqrt(variance + epsilon)
    shape = (1,) * (x.ndim - 1) + (-1,)
    y = (wide - mean) * inverse * scale.reshape(shape) + bias.reshape(shape)
    return y.astype(x.dtype), (x, mean, inverse, scale)


def _mean_square(x: Rows) -> OfRows:
    """Average the squares of x over its last axis."""

    def by_product(squares: Rows) -> OfRows:
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
    (mean,) = pass_ends(mean)  # or x - mean would be kept for both directions
    wide, centred = gradient.astype(jnp.float32), x.astype(jnp.float32) - mean
    others = tuple(range(x.ndim - 1))
    scaled = wide * scale.reshape((1,) * len(others) + (-1,))
    even, along, inverse = jax.lax.platform_dependent(
        scaled, centred, inverse,
        cuda=partial(_sums_in_one_pass, epsilon), default=_sums,
    )  # fmt: skip
    normal = centred * inverse
    grad_x = inverse * (scaled - even - normal * (along * inverse))
    return grad_x.astype(x.dtype), (wide * normal).sum(others), wide.sum(others)


def _sums(scaled: Rows, centred: Rows, inverse: OfRows) -> tuple[OfRows, ...]:
    return _mean(scaled), _mean(scaled * centred), inverse


def _sums_in_one_pass(
    epsilon: float, scaled: Rows, centred: Rows, _: OfRows
) -> tuple[OfRows, ...]:
    """Compute the variance too, which the forward pass need not write.

    The gradients are a second pass, the sums over rows included.
    """
    means = map(_mean, (scaled, scaled * centred, jnp.square(centred)))
    even, along, variance = pass_ends(*means)
    return even, along, jax.lax.rsqrt(variance + epsilon)


def _mean(x: Rows) -> OfRows:
    def by_shares(x: Rows) -> OfRows:
        return (x * (1 / x.shape[-1])).sum(axis=-1, keepdims=True)

    # On a GPU a quotient would be a kernel of its own.
    plain = partial(jnp.mean, axis=-1, keepdims=True)
    return jax.lax.platform_dependent(x, cpu=plain, default=by_shares)


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
