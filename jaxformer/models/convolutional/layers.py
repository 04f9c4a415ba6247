"""The parts of a convolutional layer (Gehring et al. 2017, sections 3.2 to 3.5)."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, PyTree, Shaped

from jaxformer.models.arrays import Floats, Ids, RandomKey, Sources, Targets, Vectors
from jaxformer.models.attention import attention_weights
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.kernels.attention import attend
from jaxformer.models.kernels.linear import multiply
from jaxformer.models.layers import Dropout
from jaxformer.models.sequence_model import pad

HALF = 0.5**0.5  # sums of two times this keep their variance (section 3.4)


def neighbours(x: Vectors, segments: Ids, offsets: Sequence[int]) -> list[Vectors]:
    """List the inputs at some offsets of each position, zeros across borders."""

    def shift(x: Shaped[Array, "B L *D"], offset: int) -> Shaped[Array, "B L *D"]:
        return pad(x, -offset, offset, axis=1)

    def shifted(offset: int) -> Vectors:
        is_inside = shift(segments, offset) == segments
        return jnp.where(is_inside[..., None], shift(x, offset), jnp.zeros_like(x))

    return [shifted(offset) if offset else x for offset in offsets]


def windows(
    x: Vectors, segments: Ids, offsets: Sequence[int]
) -> Float[Array, "B L {len(offsets)}*D"]:
    """Concatenate `neighbours`.

    The product with a matrix is a convolution of each segment padded with zeros.
    """
    return jnp.concatenate(neighbours(x, segments, offsets), axis=-1)


def normalise_weight(
    kernel: Float[Array, "*inputs N"], scale: Float[Array, " N"], dtype: DTypeLike
) -> Float[Array, "inputs N"]:
    """Weight normalisation (Salimans and Kingma 2016, equation 2).

    The kernel gives the direction of the weights of each output, scale their norm.
    Norms are of the kernel in `dtype`, which a mesh exchanges.
    """
    direction = kernel.reshape(-1, kernel.shape[-1]).astype(dtype).astype(jnp.float32)
    norm = jnp.sqrt(jnp.square(direction).sum(axis=0, keepdims=True))
    return (direction * (scale[None] / norm)).astype(dtype)


class NormalisedWeight(nn.Module):
    """Weights with weight normalisation, drawn with variance `gain` / inputs."""

    shape: Sequence[int]  # of the kernel; the last dimension is that of the outputs
    gain: float
    dtype: jnp.dtype

    def weight(self, *axes: str | None) -> Float[Array, "inputs outputs"]:
        """Declare a kernel with axes of these names, and the norms of its outputs."""
        *inputs, outputs = self.shape
        named = nn.with_logical_partitioning
        init = nn.initializers.normal((self.gain / math.prod(inputs)) ** 0.5)
        kernel = self.param("kernel", named(init, axes), self.shape)

        def norms(key: RandomKey, shape: Sequence[int]) -> Float32[Array, " N"]:
            return jnp.linalg.norm(kernel.reshape(-1, *shape), axis=0)

        scale = self.param("scale", named(norms, (None,)), (outputs,))
        return normalise_weight(kernel, scale, self.dtype)


class ConvolutionalLinear(NormalisedWeight):
    """An affine map with weight normalisation.

    The variance of the outputs is `gain` times that of the inputs (section 3.5).
    """

    @nn.compact
    def __call__(self, x: Float[Array, "B L inputs"]) -> Float[Array, "B L outputs"]:
        weight = self.weight(*[None] * (len(self.shape) - 2), "embed", None)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, (None,))
        bias = self.param("bias", zeros, self.shape[-1:]).astype(self.dtype)
        return multiply(x, weight, self.dtype) + bias[None, None]


class DepthwiseConvolution(NormalisedWeight):
    """A convolution of each channel by itself; the linear map after it has biases."""

    @nn.compact
    def __call__(self, inputs: list[Vectors]) -> Vectors:
        """Weigh `neighbours`; sums are in float32."""
        return weighted_sum(inputs, self.weight(None, "embed")[:, None, None])


def weighted_sum(inputs: list[Floats], weights: Float[Array, "k ..."]) -> Floats:
    """Add products of arrays and weights in float32; return the type of the arrays."""
    products = [
        each.astype(jnp.float32) * weight.astype(jnp.float32)
        for each, weight in zip(inputs, weights, strict=True)
    ]
    return sum(products).astype(inputs[0].dtype)


class ConvolutionalAttention(nn.Module):
    """Attention of a decoder layer to the source (section 3.3)."""

    config: ConvolutionalConfig

    @nn.compact
    def __call__(
        self,
        x: Targets,
        target: Targets,
        source: tuple[Sources, Sources],  # keys and values
        mask: Bool[Array, "B 1 T S"],
    ) -> Targets:
        """Return the contexts of states x, given the embedded `target`."""
        d = self.config.d_model
        linear = functools.partial(
            ConvolutionalLinear, (d, d), 1.0, jnp.dtype(self.config.dtype)
        )
        query = (linear(name="query")(x) + target) * HALF
        query = query * d**0.5  # scores are not divided by it
        query, key, value = (each[:, :, None] for each in (query, *source))
        if self.is_mutable_collection("intermediates"):  # asked for
            self.sow("intermediates", "weights", attention_weights(query, key, mask))
        context = attend(query, key, value, mask)
        return linear(name="output")(context[:, :, 0])


class ConvolutionalLayer(nn.Module):
    """A gated convolution with its residual, in the decoder with attention (3.2)."""

    config: ConvolutionalConfig
    stack: str  # "encoder" or "decoder"
    number: int

    @nn.compact
    def __call__(self, x: Vectors, segments: Ids, *source: PyTree[Array]) -> Vectors:
        """Apply the layer; `source` are further inputs of its attention."""
        config, d = self.config, x.shape[-1]
        y = Dropout(config.dropout, name="dropout")(x)
        offsets = config.offsets(self.stack, self.number)
        # A gate passes a fourth of the variance; dropout has raised it (section 3.5).
        gain, dtype = 4 * (1 - config.dropout), jnp.dtype(config.dtype)
        if config.separable:
            size = (config.kernel_width, d), 1.0, dtype
            y = neighbours(y, segments, offsets)
            y = DepthwiseConvolution(*size, name="depthwise")(y)
            y = ConvolutionalLinear((d, 2 * d), gain, dtype, name="pointwise")(y)
        else:
            shape, y = (config.kernel_width, d, 2 * d), windows(y, segments, offsets)
            y = ConvolutionalLinear(shape, gain, dtype, name="convolution")(y)
        y = nn.glu(y)
        if source:
            y = (
                y + ConvolutionalAttention(config, name="attention")(y, *source)
            ) * HALF
        return (x + y) * HALF


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def scale_gradient(x: Floats, factor: float) -> Floats:
    """Return x; multiply its gradient by a factor."""
    return x


scale_gradient.defvjp(
    lambda x, factor: (x, None), lambda factor, _, gradient: (factor * gradient,)
)
