"""Sections 3.1, 3.3, 3.5 and 5.4: the parts of a layer besides attention."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from jaxformer.models.arrays import Floats, RandomKey, Vector, Vectors
from jaxformer.models.kernels.dropout import drop, random_bits
from jaxformer.models.kernels.elementwise import copies, relu
from jaxformer.models.kernels.norm import layer_norm as fast_layer_norm
from jaxformer.models.linear import Projection
from jaxformer.models.shards import batch_shard

Function = Callable[..., Floats]

ACTIVATIONS = {"relu": relu, "swish": jax.nn.swish}


def sinusoidal_positions(length: int, d_model: int) -> Float32[np.ndarray, "L D"]:
    """Section 3.5: PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i + 1) = cos of the same.

    Computed in float64, so that far positions keep their phase.
    """
    position = np.arange(length)[:, None]  # [L, 1]
    wavelength = 10000.0 ** (np.arange(0, d_model, 2)[None, :] / d_model)  # [1, D/2]
    angle = position / wavelength  # [L, D/2]
    table = np.stack([np.sin(angle), np.cos(angle)], axis=-1)  # [L, D/2, 2]
    return table.reshape(length, -1)[:, :d_model].astype(np.float32)


def layer_norm(
    x: Float[Array, "*L D"], scale: Vector, bias: Vector, epsilon: float
) -> Float[Array, "*L D"]:
    """Normalise x over its last axis in float32 (Ba et al. 2016).

    Returns x's dtype. Models call its equal `jaxformer.models.kernels.norm.layer_norm`.
    """
    wide = x.astype(jnp.float32)
    mean, variance = (f(wide, axis=-1, keepdims=True) for f in (jnp.mean, jnp.var))
    shape = (1,) * (x.ndim - 1) + (-1,)
    normal = (wide - mean) * jax.lax.rsqrt(variance + epsilon)
    return (normal * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype)


def dropout(x: Floats, *, rate: float, key: RandomKey) -> Floats:
    """Section 5.4: zero each element with probability `rate`, scale the others up."""
    first, second, *_ = jax.random.key_data(key)
    return drop(x, (first, second), batch_shard() * len(x), rate)


class Dropout(nn.Module):
    """`dropout` in training, where a key "dropout" is given; it is split by module."""

    rate: float

    @nn.compact
    def __call__(self, x: Floats) -> Floats:
        if self.rate == 0.0 or not self.has_rng("dropout"):
            return x
        return dropout(x, rate=self.rate, key=self.make_rng("dropout"))


def gumbel_noise(shape: tuple[int, ...], *, key: RandomKey) -> Floats:
    """Draw noise by which the largest of scores + noise is a sample of their softmax.

    The first axis is the batch's. The noise is the same on every mesh.
    """
    first, second, *_ = jax.random.key_data(key)
    bits = random_bits((first, second), shape, batch_shard() * shape[0])
    uniform = ((bits >> 8).astype(jnp.float32) + 0.5) * 2.0**-24  # in (0, 1)
    return -jnp.log(-jnp.log(uniform))


class LayerNorm(nn.Module):
    """`layer_norm` with learned scale and bias, both float32 [D]."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*L D"]) -> Float[Array, "*L D"]:
        ones = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("norm",))
        scale = self.param("scale", ones, x.shape[-1:])
        bias = self.param("bias", zeros, x.shape[-1:])
        return fast_layer_norm(x, scale, bias, self.epsilon)


def residual_gain(sublayers: int) -> float:
    """Scale the initial output matrices of a stack of so many sub-layers.

    With Xavier's initialisation everywhere, post-norm sub-layers outweigh their input,
    until the encoder's output hardly depends on the sentence. With this gain all
    sub-layers of a stack together add about as much as their input.
    """
    return sublayers**-0.5


def residual(
    x: Floats,
    function: Function,
    *,
    norm: Function,
    norm_first: bool,
    drop: Function = lambda x: x,
    uses: int = 1,
) -> Floats:
    """Section 3.1: norm(x + drop(f(x))), or pre-norm's x + drop(f(norm(x))).

    f is called with `uses` copies of its argument, such as queries, keys and values.
    """
    x, *others = copies(x, 2 if norm_first else 1 + uses)
    if norm_first:
        return x + drop(function(*copies(norm(*others), uses)))
    return norm(x + drop(function(*others)))


class Sublayer(nn.Module):
    """`residual` with its layer norm and dropout."""

    dropout: float
    norm_first: bool
    epsilon: float  # of the layer norm

    @nn.compact
    def __call__(self, x: Vectors, function: Function, uses: int = 1) -> Vectors:
        norm = LayerNorm(self.epsilon, name="norm")
        drop = Dropout(self.dropout, name="dropout")
        how = {"norm_first": self.norm_first, "uses": uses}
        return residual(x, function, norm=norm, drop=drop, **how)


class FeedForward(nn.Module):
    """Equation 2: max(0, x W1 + b1) W2 + b2, or another `activation` than max(0, .)."""

    d_model: int
    d_ff: int
    activation: str  # of ACTIVATIONS
    dtype: jnp.dtype
    output_gain: float  # of the initial W2, see `residual_gain`

    @nn.compact
    def __call__(self, x: Vectors) -> Vectors:
        d, f = self.d_model, self.d_ff
        linear = partial(Projection, contracted=1, dtype=self.dtype, has_bias=True)
        hidden = linear((d, f), ("embed", "mlp"), gain=1.0, name="hidden")
        output = linear((f, d), ("mlp", "embed"), gain=self.output_gain, name="output")
        return output(ACTIVATIONS[self.activation](hidden(x)))
