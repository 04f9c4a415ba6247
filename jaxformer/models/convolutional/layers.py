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


def windows(
    x: Vectors, segments: Ids, offsets: Sequence[int]
) -> Float[Array, "B L {len(offsets)}*D"]:
    """Concatenate the inputs at some offsets of each position, zeros across borders.

    The product with a matrix is a convolution of each segment padded with zeros.
    """

    def shift(x: Shaped[Array, "B L *D"], offset: int) -> Shaped[Array, "B L *D"]:
        return pad(x, -offset, offset, axis=1)

    def shifted(offset: int) -> Vectors:
        is_inside = shift(segments, offset) == segments
        return jnp.where(is_inside[..., None], shift(x, offset), jnp.zeros_like(x))

    parts = [shifted(offset) if offset else x for offset in offsets]
    return jnp.concatenate(parts, axis=-1)


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


class ConvolutionalLinear(nn.Module):
    """An affine map with weight normalisation.

    Weights are drawn with variance `gain` / inputs, so that of the outputs is `gain`
    times that of the inputs (section 3.5).
    """

    shape: Sequence[int]  # of the kernel; the last dimension is that of the outputs
    gain: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "B L inputs"]) -> Float[Array, "B L outputs"]:
        *inputs, outputs = self.shape
        named = nn.with_logical_partitioning
        init = nn.initializers.normal((self.gain / math.prod(inputs)) ** 0.5)
        axes = (None,) * (len(inputs) - 1) + ("embed", None)
        kernel = self.param("kernel", named(init, axes), self.shape)

        def norms(key: RandomKey, shape: Sequence[int]) -> Float32[Array, " N"]:
            return jnp.linalg.norm(kernel.reshape(-1, *shape), axis=0)

        scale = self.param("scale", named(norms, (None,)), (outputs,))
        zeros = named(nn.initializers.zeros, (None,))
        bias = self.param("bias", zeros, (outputs,)).astype(self.dtype)
        y = multiply(x, normalise_weight(kernel, scale, self.dtype), self.dtype)
        return y + bias[None, None]


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
        y = windows(y, segments, config.offsets(self.stack, self.number))
        # A gate passes a fourth of the variance; dropout has raised it (section 3.5).
        gain = 4 * (1 - config.dropout)
        shape, dtype = (config.kernel_width, d, 2 * d), jnp.dtype(config.dtype)
        y = nn.glu(ConvolutionalLinear(shape, gain, dtype, name="convolution")(y))
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
