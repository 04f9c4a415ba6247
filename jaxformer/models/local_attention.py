"""Section 4 and Table 1: self-attention restricted to a neighbourhood of size r.

Position i sees j with |i - j| <= r // 2, because the paper's neighbourhood is "centered
around the respective output position". In the decoder the causal mask of section 3.2.3
hides the right half.

Queries are cut into blocks of C positions. A block sees itself and the nearest r // 2
positions of the adjacent blocks, so time and memory grow with L x r instead of L x L.
The result is equation 1 under the masks.

    N  blocks of a row        C  positions of a block, at least r // 2
    E  positions that a block sees: C and r // 2 on either side (left, in the decoder)
"""

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from jaxformer.models.masks import MASKED, causal_mask, segment_mask

SMALLEST_BLOCK = 32  # positions; smaller products cost as much (measured on a CPU)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Neighbourhood:
    """A mask of self-attention as a rule, without an array [L, L]."""

    segments: jax.Array  # int [B, L], 0 = padding
    reach: int = field(metadata={"static": True})  # positions on either side
    is_causal: bool = field(metadata={"static": True})  # the right side is hidden

    def as_mask(self) -> jax.Array:
        """Write it out: bool [B, 1, L, L]."""
        length = self.segments.shape[1]
        mask = segment_mask(self.segments, self.segments)
        if self.reach < length - 1:
            index = jnp.arange(length)
            distance = jnp.abs(index[:, None] - index[None, :])  # [L, L]
            mask &= (distance <= self.reach)[None, None]
        return mask & causal_mask(length) if self.is_causal else mask


def self_attention_mask(
    segments: jax.Array, *, window: int | None, is_causal: bool
) -> jax.Array | Neighbourhood:
    """Make the mask of self-attention; segments int [B, L], 0 = padding.

    `window` is r, None for all positions. Returns a Neighbourhood for rows much longer
    than the window, else a mask bool [B, 1, L, L].
    """
    length = segments.shape[1]
    reach = length if window is None else window // 2
    near = Neighbourhood(segments, reach, is_causal)
    return near if _is_worth_blocks(length, reach) else near.as_mask()


def _is_worth_blocks(length: int, reach: int) -> bool:
    """Whether a block sees at most half of the positions of a row."""
    return 2 * (_block_size(reach) + 2 * reach) <= length


def keys_computed(length: int, *, window: int | None, is_causal: bool) -> int:
    """Count the keys that each query of self-attention is multiplied with."""
    reach = length if window is None else window // 2
    if not _is_worth_blocks(length, reach):
        return length
    return _block_size(reach) + (reach if is_causal else 2 * reach)


def _block_size(reach: int) -> int:
    return max(reach, SMALLEST_BLOCK)


def local_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, near: Neighbourhood
) -> jax.Array:
    """Equation 1 within neighbourhoods, block by block.

    query and key [B, L, H, K], value [B, L, H, U]; returns [B, L, H, U] in value's
    dtype. The result at padding is finite and has no meaning.
    """
    length, size = query.shape[1], _block_size(near.reach)
    blocks = functools.partial(_blocks, size=size)
    extend = functools.partial(_extend, near=near)
    queries = blocks(query * (query.shape[-1] ** -0.5))  # [B, N, C, H, K]
    keys, values = extend(blocks(key)), extend(blocks(value))  # [B, N, E, H, K or U]
    own = blocks(near.segments)  # [B, N, C]
    scores = jnp.einsum(
        "bnchk,bnehk->bnhce", queries, keys, preferred_element_type=jnp.float32
    )
    mask = _block_mask(own, extend(own), near)  # [B, N, 1, C, E]
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)
    heads = jnp.einsum("bnhce,bnehu->bnchu", weights.astype(value.dtype), values)
    return heads.reshape(len(heads), -1, *heads.shape[3:])[:, :length]


def _blocks(x: jax.Array, *, size: int) -> jax.Array:
    """Cut rows into blocks, the last one padded: [B, L, ...] -> [B, N, C, ...]."""
    missing = -x.shape[1] % size
    x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(x.shape[0], -1, size, *x.shape[2:])


def _extend(x: jax.Array, near: Neighbourhood) -> jax.Array:
    """Extend blocks by their neighbours: [B, N, C, ...] -> [B, N, E, ...]."""
    no_block = jnp.zeros_like(x[:, :1, : near.reach])
    left = x[:, :-1, x.shape[2] - near.reach :]
    parts = [jnp.concatenate([no_block, left], axis=1), x]
    if not near.is_causal:
        parts.append(jnp.concatenate([x[:, 1:, : near.reach], no_block], axis=1))
    return jnp.concatenate(parts, axis=2)


def _block_mask(own: jax.Array, seen: jax.Array, near: Neighbourhood) -> jax.Array:
    """Mask what a block sees: segments [B, N, C], [B, N, E] -> bool [B, N, 1, C, E]."""
    index = jnp.arange(own.shape[2])[:, None]
    index_seen = jnp.arange(seen.shape[2])[None, :] - near.reach
    distance = index - index_seen  # [C, E]
    is_near = jnp.abs(distance) <= near.reach
    if near.is_causal:
        is_near &= distance >= 0
    mask = (own[..., None] == seen[:, :, None]) & (seen[:, :, None] != 0)
    return (mask & is_near[None, None])[:, :, None]
