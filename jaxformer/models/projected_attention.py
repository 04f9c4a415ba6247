"""Linformer's self-attention (Wang et al. 2020), whose cost is linear in the length.

Learned matrices E and F [k, n] mix the keys and the values of a sentence of up to n
tokens into k of each:

    head = softmax(Q (E K)^T / sqrt(d_k)) (F V)        equation 7

Each layer has its own E and F, for all its heads: the paper's headwise sharing. Initial
numbers have variance 1 / k, as in its theorem 2. Keys and values of padding are zero.
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.models.arrays import ArrayMask, Ids, Vectors
from jaxformer.models.attention import MultiHeadAttention
from jaxformer.models.kernels.attention import attend


class ProjectedAttention(MultiHeadAttention, kw_only=True):
    """Self-attention to k mixtures of all tokens, one sentence in a row.

    It has no weight for each pair of tokens, and so no attention maps.
    """

    count: int  # k
    longest: int  # n

    def attend(
        self,
        queries: Vectors,
        keys: Vectors,
        values: Vectors,
        mask: ArrayMask,
        positions: Ids | None,
    ) -> Float[Array, "B L H U"]:
        """Compute the heads; the mask [B, 1, 1, L] is True at tokens."""
        query, key, value = self.projected(queries, keys, values, positions)
        init = nn.initializers.normal(self.count**-0.5)
        init = nn.with_logical_partitioning(init, (None, "position"))
        is_real = mask[:, 0, 0, :, None, None]

        def mixed(name: str, x: Float[Array, "B L H K"]) -> Float[Array, "B k H K"]:
            matrix = self.param(name, init, (self.count, self.longest))
            matrix = matrix[:, : x.shape[1]].astype(x.dtype)
            return jnp.einsum("ms,bshk->bmhk", matrix, jnp.where(is_real, x, 0))

        key, value = mixed("key_mixture", key), mixed("value_mixture", value)
        return attend(query, key, value, may_fuse=self.may_fuse)
