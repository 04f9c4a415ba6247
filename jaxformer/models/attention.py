"""Section 3.2: scaled dot-product attention and multi-head attention.

The math is in free functions of arrays; the module adds parameters. The whole
repository writes shapes in one alphabet:

    B  batch rows         D  d_model          V  vocabulary
    S  source length      F  d_ff             W  beam width
    T  target length      H  heads            L  any length
    K  head size of queries and keys (d_k); values have head size d_v, written U
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.models.kernels.attention import attend
from jaxformer.models.layers import rotate, rotations
from jaxformer.models.linear import Projection
from jaxformer.models.local_attention import Neighbourhood
from jaxformer.models.masks import MASKED

Mask = jax.Array | Neighbourhood  # bool broadcastable to [B, H, T, S], or a rule


def attention_scores(query: jax.Array, key: jax.Array, mask: Mask | None) -> jax.Array:
    """Q K^T / sqrt(d_k), `MASKED` where a query may not see a key, in float32.

    query [B, T, H, K], key [B, S, H, K], mask bool broadcastable to [B, H, T, S]
    (True = may see) or a neighbourhood; returns float32 [B, H, T, S].
    """
    if isinstance(mask, Neighbourhood):
        mask = mask.as_mask()
    query = query * (query.shape[-1] ** -0.5)
    scores = jnp.einsum(
        "bthk,bshk->bhts", query, key, preferred_element_type=jnp.float32
    )
    return scores if mask is None else jnp.where(mask, scores, MASKED)


def attention_weights(query: jax.Array, key: jax.Array, mask: Mask | None) -> jax.Array:
    """Compute softmax(Q K^T / sqrt(d_k)) of equation 1: float32 [B, H, T, S]."""
    return jax.nn.softmax(attention_scores(query, key, mask), axis=-1)


def dot_product_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask | None = None
) -> jax.Array:
    """Compute softmax(Q K^T / sqrt(d_k)) V, equation 1, for every head at once.

    query [B, T, H, K], key [B, S, H, K], value [B, S, H, U], mask as in
    `attention_weights`. Returns [B, T, H, U] in value's dtype. Models call its equal
    `jaxformer.models.kernels.attention.attend`.
    """
    weights = attention_weights(query, key, mask).astype(value.dtype)
    return jnp.einsum("bhts,bshu->bthu", weights, value)


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: h attentions in parallel, each on its own projections."""

    num_heads: int
    d_k: int
    d_v: int
    dtype: jnp.dtype
    has_bias: bool
    output_gain: float  # of the initial W^O, see `residual_gain`
    may_fuse: bool = False  # cuDNN's kernel, see `fused_attention_fits`

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        mask: Mask,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Attend from x [B, T, D] to memory [B, S, D]; x itself for self-attention.

        mask as in `dot_product_attention`. Positions int [B, S], for self-attention,
        rotate queries and keys (Su et al. 2021). Returns [B, T, D].
        """
        heads = self.attend(x, memory, mask, positions)
        shape, axes = (*heads.shape[2:], x.shape[-1]), ("heads", "head_size", "embed")
        output = self._linear(
            shape, axes, contracted=2, gain=self.output_gain, name="output"
        )
        return output(heads)

    def attend(
        self, x: jax.Array, memory: jax.Array, mask: Mask, positions: jax.Array | None
    ) -> jax.Array:
        """Compute the heads [B, T, H, U]; another kind of attention replaces this."""
        query, key, value = self.projected(x, memory, positions)
        if self.is_mutable_collection("intermediates"):  # asked for
            self.sow("intermediates", "weights", attention_weights(query, key, mask))
        return attend(query, key, value, mask, may_fuse=self.may_fuse)

    def projected(
        self,
        x: jax.Array,
        memory: jax.Array,
        positions: jax.Array | None,
        *,
        prefix: str = "",
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Project to queries [B, T, H, K], keys [B, S, H, K] and values [B, S, H, U].

        With positions x has the first T tokens of memory. `prefix` is that of the
        projections' names.
        """
        d, h, axes = x.shape[-1], self.num_heads, ("embed", "heads", "head_size")
        project = partial(self._linear, axes=axes, contracted=1, gain=1.0)
        key = project((d, h, self.d_k), name=f"{prefix}key")(memory)
        value = project((d, h, self.d_v), name=f"{prefix}value")(memory)
        query = project((d, h, self.d_k), name=f"{prefix}query")(x)
        if positions is not None:
            turns = rotations(positions, memory.shape[1], self.d_k)
            turns = [each[:, :, None] for each in turns]  # [B, S, 1, K / 2]
            key = rotate(key, *turns, axis=3)
            query = rotate(query, *(each[:, : x.shape[1]] for each in turns), axis=3)
        return query, key, value

    def _linear(self, *args: Any, **options: Any) -> Projection:
        return Projection(*args, dtype=self.dtype, has_bias=self.has_bias, **options)
