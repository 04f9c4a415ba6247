"""The layers of Table 1 as (parameters, function of x [1, n, d])."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.models.attention import MultiHeadAttention
from jaxformer.models.convolutional.layers import (
    ConvolutionalLinear,
    DepthwiseConvolution,
    neighbours,
    windows,
)
from jaxformer.models.local_attention import self_attention_mask
from jaxformer.models.projected_attention import ProjectedAttention
from jaxformer.models.recurrent.cells import Cell, recur

HEADS = 8
WINDOW = 64  # r: positions that restricted self-attention sees
KERNEL = 3  # k: positions of a convolution
KEYS, LONGEST = 64, 4096  # of Linformer: k and n
Apply = Callable[[Any, jax.Array], jax.Array]


class Layer(NamedTuple):
    """A kind of layer, and what Table 1 says of it."""

    complexity: str
    sequential: str
    path: str
    make: Callable[[int, int, Any], tuple[Any, Apply]]  # of d, depth and dtype


def _made(module: nn.Module, depth: int, dtype: Any, *inputs: Any) -> Any:
    params = nn.unbox(module.init(jax.random.key(depth), *inputs))
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def self_attention(
    d: int, depth: int, dtype: Any, *, window: int | None = None
) -> tuple[Any, Apply]:
    """Multi-head self-attention with its four projections, encoder mask."""
    module = MultiHeadAttention(HEADS, d // HEADS, d // HEADS, dtype, False, 1.0)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        segments = jnp.ones(x.shape[:2], jnp.int32)
        mask = self_attention_mask(segments, window=window, is_causal=False)
        return module.apply(params, x, x, x, mask)

    x, mask = jnp.zeros((1, 2, d), dtype), jnp.ones((1, 1, 2, 2), bool)
    return _made(module, depth, dtype, x, x, x, mask), apply


def linear_attention(d: int, depth: int, dtype: Any) -> tuple[Any, Apply]:
    """Self-attention to `KEYS` mixtures of all positions (Linformer)."""
    module = ProjectedAttention(
        HEADS, d // HEADS, d // HEADS, dtype, False, 1.0, count=KEYS, longest=LONGEST
    )

    def apply(params: Any, x: jax.Array) -> jax.Array:
        mask = jnp.ones((1, 1, 1, x.shape[1]), bool)
        return module.apply(params, x, x, x, mask)

    x, mask = jnp.zeros((1, 2, d), dtype), jnp.ones((1, 1, 1, 2), bool)
    return _made(module, depth, dtype, x, x, x, mask), apply


def recurrent(d: int, depth: int, dtype: Any) -> tuple[Any, Apply]:
    """An LSTM in one direction."""
    module = Cell("lstm", d, d, dtype)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        is_start = jnp.arange(x.shape[1])[None] == 0
        return recur(module.apply(params), x, is_start)

    return _made(module, depth, dtype), apply


def convolution(
    d: int, depth: int, dtype: Any, *, is_dilated: bool = False
) -> tuple[Any, Apply]:
    """A convolution of each position and those before it, without a gate."""
    module = ConvolutionalLinear((KERNEL, d, d), 1.0, dtype)
    step = KERNEL**depth if is_dilated else 1
    offsets = [step * offset for offset in range(1 - KERNEL, 1)]

    def apply(params: Any, x: jax.Array) -> jax.Array:
        segments = jnp.ones(x.shape[:2], jnp.int32)
        return module.apply(params, windows(x, segments, offsets))

    return _made(module, depth, dtype, jnp.zeros((1, 2, KERNEL * d), dtype)), apply


def separable_convolution(d: int, depth: int, dtype: Any) -> tuple[Any, Apply]:
    """A convolution of each channel by itself, and a linear map, without a gate."""
    depthwise = DepthwiseConvolution((KERNEL, d), 1.0, dtype)
    pointwise = ConvolutionalLinear((d, d), 1.0, dtype)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        segments = jnp.ones(x.shape[:2], jnp.int32)
        inputs = neighbours(x, segments, range(1 - KERNEL, 1))
        return pointwise.apply(params[1], depthwise.apply(params[0], inputs))

    x = jnp.zeros((1, 2, d), dtype)
    params = _made(depthwise, depth, dtype, [x] * KERNEL)
    return (params, _made(pointwise, depth, dtype, x)), apply


LAYERS = {
    "self-attention": Layer("n² d", "1", "1", self_attention),
    f"self-attention, r = {WINDOW}": Layer(
        "r n d", "1", "n / r", partial(self_attention, window=WINDOW)
    ),
    f"linear attention, {KEYS} keys": Layer("not in it", "", "", linear_attention),
    "LSTM": Layer("n d²", "n", "n", recurrent),
    f"convolution, k = {KERNEL}": Layer("k n d²", "1", "n / k", convolution),
    f"dilated convolution, k = {KERNEL}": Layer(
        "k n d²", "1", "log_k n", partial(convolution, is_dilated=True)
    ),
    f"separable convolution, k = {KERNEL}": Layer(
        "k n d + n d²", "1", "n / k", separable_convolution
    ),
}
