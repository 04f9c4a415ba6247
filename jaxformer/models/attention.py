"""Section 3.2: scaled dot-product attention and multi-head attention.

The math is in free functions of arrays; the module adds parameters. The whole
repository writes shapes in one alphabet:

    B  batch rows         D  d_model          V  vocabulary
    S  source length      F  d_ff             W  beam width
    T  target length      H  heads            L  any length
    K  head size of queries and keys (d_k); values have head size d_v, written U
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.models.fused_attention import (
    cuda_capability,
    fused_attention,
    fused_attention_fits,
)
from jaxformer.models.linear import Projection
from jaxformer.models.local_attention import Neighbourhood, local_attention
from jaxformer.models.masks import MASKED

Mask = jax.Array | Neighbourhood  # bool broadcastable to [B, H, T, S], or a rule


class KeyValue(NamedTuple):
    """Projected keys and values: what a decoder caches instead of recomputing."""

    key: jax.Array  # [B, L, H, K]
    value: jax.Array  # [B, L, H, U]


def attention_weights(query: jax.Array, key: jax.Array, mask: Mask | None) -> jax.Array:
    """softmax(Q K^T / sqrt(d_k)), the weights of equation 1, in float32.

    query [B, T, H, K], key [B, S, H, K], mask bool broadcastable to [B, H, T, S]
    (True = may see) or a neighbourhood; returns float32 [B, H, T, S].
    """
    if isinstance(mask, Neighbourhood):
        mask = mask.as_mask()
    query = query * (query.shape[-1] ** -0.5)
    scores = jnp.einsum(
        "bthk,bshk->bhts", query, key, preferred_element_type=jnp.float32
    )
    if mask is not None:
        scores = jnp.where(mask, scores, MASKED)
    return jax.nn.softmax(scores, axis=-1)


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask | None = None,
    *,
    may_fuse: bool = False,
) -> jax.Array:
    """Equation 1: softmax(Q K^T / sqrt(d_k)) V for every head at once.

    query [B, T, H, K], key [B, S, H, K], value [B, S, H, U], mask bool broadcastable
    to [B, H, T, S] (True = may see), or a neighbourhood if queries and keys are of the
    same positions; `may_fuse` allows one kernel where it fits. Returns [B, T, H, U] in
    value's dtype.
    """
    if isinstance(mask, Neighbourhood):
        return local_attention(query, key, value, mask)
    if may_fuse and fused_attention_fits(
        query, key, value,
        capability=cuda_capability(), devices=jax.device_count(),
    ):  # fmt: skip
        return fused_attention(query, key, value, mask)
    weights = attention_weights(query, key, mask).astype(value.dtype)  # [B, H, T, S]
    return jnp.einsum("bhts,bshu->bthu", weights, value)


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: h attentions side by side, each on its own projection.

    d_k and d_v are free of d_model / h (Table 3, rows A and B). The paper's projections
    have no biases.
    """

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    dtype: jnp.dtype
    has_bias: bool
    output_gain: float  # of the first W^O, see `residual_gain`
    may_fuse: bool = False  # one kernel, see `fused_attention`

    def setup(self) -> None:
        """Declare the four projections W^Q, W^K, W^V and W^O."""
        d, h, k, u = self.d_model, self.num_heads, self.d_k, self.d_v
        axes = ("embed", "heads", "head_size")

        def into_heads(size: int) -> Projection:
            return Projection((d, h, size), axes, 1, self.dtype, self.has_bias, 1.0)

        self.query = into_heads(k)
        self.key = into_heads(k)
        self.value = into_heads(u)
        self.output = Projection(
            (h, u, d), ("heads", "head_size", "embed"), 2, self.dtype,
            self.has_bias, self.output_gain,
        )  # fmt: skip

    def keys_values(self, memory: jax.Array) -> KeyValue:
        """Project what is attended to: [B, S, D] -> keys and values."""
        return KeyValue(self.key(memory), self.value(memory))

    def attend(self, x: jax.Array, memory: KeyValue, mask: Mask) -> jax.Array:
        """Attend from x [B, T, D] to projected memory; returns [B, T, D]."""
        heads = dot_product_attention(
            self.query(x), memory.key, memory.value, mask, may_fuse=self.may_fuse
        )
        return self.output(heads)

    def __call__(self, x: jax.Array, memory: jax.Array, mask: Mask) -> jax.Array:
        """Attend from x [B, T, D] to memory [B, S, D]; self-attention if they are one.

        mask as in `dot_product_attention`; returns [B, T, D].
        """
        return self.attend(x, self.keys_values(memory), mask)

    def weights(self, x: jax.Array, memory: KeyValue, mask: Mask) -> jax.Array:
        """Return where each head looks from x [B, T, D]: float32 [B, H, T, S]."""
        return attention_weights(self.query(x), memory.key, mask)
