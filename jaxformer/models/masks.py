"""Section 3.2.3: which key each query may see; True is may see."""

import jax
import jax.numpy as jnp

MASKED = -1e9  # far below any score, and finite: a row with no key stays free of NaN


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """Let each query see the real tokens of its own sentence pair.

    Segment ids int [B, T] and [B, S], 0 = padding; returns bool [B, 1, T, S].
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]  # [B, T, S]
    return (same & (key_segments[:, None, :] != 0))[:, None]


def causal_mask(length: int) -> jax.Array:
    """Let position t see positions <= t (section 3.2.3): bool [1, 1, L, L]."""
    return jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))
