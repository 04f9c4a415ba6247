"""Longformer's self-attention (Beltagy et al. 2020): a window and global positions.

Global positions, here the first g of a sentence, see all tokens and are seen by all.
As in section 3.1 of the paper their own attention has queries, keys and values of its
own projections; other tokens see them by the projections of the window.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.models.arrays import Ids, Vectors
from jaxformer.models.attention import MultiHeadAttention, attention_weights
from jaxformer.models.kernels.attention import attend
from jaxformer.models.local_attention import Neighbourhood, SelfMask


class GlobalAttention(MultiHeadAttention, kw_only=True):
    """Self-attention under a mask with `first` global positions, one sentence a row."""

    first: int  # g

    def attend(
        self,
        queries: Vectors,
        keys: Vectors,
        values: Vectors,
        mask: SelfMask,
        positions: Ids | None,
    ) -> Float[Array, "B L H U"]:
        near = self.projected(queries, keys, values, positions)
        first = queries[:, : self.first]
        far = self.projected(first, keys, values, positions, prefix="global_")
        if isinstance(mask, Neighbourhood):
            of_first = (mask.segments != 0)[:, None, None]
        else:
            of_first = mask[:, :, : self.first]
        if self.is_mutable_collection("intermediates"):
            weights = attention_weights(*far[:2], of_first)
            others = attention_weights(*near[:2], mask)[:, :, self.first :]
            weights = jnp.concatenate([weights, others], axis=2)
            self.sow("intermediates", "weights", weights)
        heads = attend(*far, of_first)
        others = attend(*near, mask, may_fuse=self.may_fuse)
        return jnp.concatenate([heads, others[:, self.first :]], axis=1)
