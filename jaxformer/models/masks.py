"""Section 3.2.3: which key each query may see; True is may see."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxformer.batch import positions_in_segments

MASKED = -1e9  # far below any score, and finite: a row with no key stays free of NaN


def segment_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """Let each query see the real tokens of its own sentence pair; 0 is padding."""
    same = query_segments[:, :, None] == key_segments[:, None, :]  # [B, T, S]
    return (same & (key_segments[:, None, :] != 0))[:, None]


def segment_lengths(segments: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Count the tokens of each token's own sentence; 0 for padding."""
    before = positions_in_segments(segments)
    after = jnp.flip(positions_in_segments(jnp.flip(segments, 1)), 1)
    return jnp.where(segments != 0, before + after + 1, 0)


def causal_mask(length: int) -> Bool[Array, "1 1 {length} {length}"]:
    """Let position t see positions <= t (section 3.2.3)."""
    return jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))
