"""Section 3.2: scaled dot-product attention and multi-head attention.

The math is in free functions of arrays; the module adds parameters. The letters of
shapes are those of `jaxformer.models.arrays`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.models.arrays import ArrayMask, Heads, Keys, Queries, Scores, Values
from jaxformer.models.kernels.attention import attend
from jaxformer.models.linear import Projection
from jaxformer.models.local_attention import Neighbourhood
from jaxformer.models.masks import MASKED
from jaxformer.models.positions import rotate, rotations

Mask = ArrayMask | Neighbourhood  # an array or a rule


def attention_scores(query: Queries, key: Keys, mask: Mask | None) -> Scores:
    """Q K^T / sqrt(d_k), `MASKED` where a query may not see a key."""
    if isinstance(mask, Neighbourhood):
        mask = mask.as_mask()
    query = query * (query.shape[-1] ** -0.5)
    scores = jnp.einsum(
        "bthk,bshk->bhts", query, key, preferred_element_type=jnp.float32
    )
    return scores if mask is None else jnp.where(mask, scores, MASKED)


def attention_weights(query: Queries, key: Keys, mask: Mask | None) -> Scores:
    """Compute softmax(Q K^T / sqrt(d_k)) of equation 1."""
    return jax.nn.softmax(attention_scores(query, key, mask), axis=-1)


def dot_product_attention(
    query: Queries, key: Keys, value: Values, mask: Mask | None = None
) -> Heads:
    """Compute softmax(Q K^T / sqrt(d_k)) V, equation 1, in value's dtype.

    Models call its equal `jaxformer.models.kernels.attention.attend`.
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
        queries: Float[Array, "B T D"],
        keys: Float[Array, "B S D"],
        values: Float[Array, "B S D"],
        mask: Mask,
        positions: Int[Array, "B S"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Compute MultiHead(Q, K, V), where all three are one for self-attention.

        Positions of self-attention rotate queries and keys (Su et al. 2021).
        """
        heads = self.attend(queries, keys, values, mask, positions)
        shape = (*heads.shape[2:], queries.shape[-1])
        axes = ("heads", "head_size", "embed")
        output = self._linear(
            shape, axes, contracted=2, gain=self.output_gain, name="output"
        )
        return output(heads)

    def attend(
        self,
        queries: Float[Array, "B T D"],
        keys: Float[Array, "B S D"],
        values: Float[Array, "B S D"],
        mask: Mask,
        positions: Int[Array, "B S"] | None,
    ) -> Heads:
        """Compute the heads; another kind of attention replaces this."""
        query, key, value = self.projected(queries, keys, values, positions)
        if self.is_mutable_collection("intermediates"):  # asked for
            self.sow("intermediates", "weights", attention_weights(query, key, mask))
        return attend(query, key, value, mask, may_fuse=self.may_fuse)

    def projected(
        self,
        queries: Float[Array, "B T D"],
        keys: Float[Array, "B S D"],
        values: Float[Array, "B S D"],
        positions: Int[Array, "B S"] | None,
        *,
        prefix: str = "",  # of the projections' names
    ) -> tuple[Queries, Keys, Values]:
        """Project to the queries, keys and values of all heads.

        With positions the T queries are of the first of the S tokens.
        """
        d, h, axes = queries.shape[-1], self.num_heads, ("embed", "heads", "head_size")
        project = partial(self._linear, axes=axes, contracted=1, gain=1.0)
        key = project((d, h, self.d_k), name=f"{prefix}key")(keys)
        value = project((d, h, self.d_v), name=f"{prefix}value")(values)
        query = project((d, h, self.d_k), name=f"{prefix}query")(queries)
        if positions is not None:
            turns = rotations(positions, keys.shape[1], self.d_k)
            turns = [each[:, :, None] for each in turns]  # [B, S, 1, K / 2]
            key = rotate(key, *turns, axis=3)
            turns = (each[:, : queries.shape[1]] for each in turns)
            query = rotate(query, *turns, axis=3)
        return query, key, value

    @property
    def _linear(self) -> Callable[..., Projection]:
        return partial(Projection, dtype=self.dtype, has_bias=self.has_bias)
