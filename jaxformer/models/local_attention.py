"""Section 4 and Table 1: self-attention restricted to a neighbourhood of size r.

Position i sees j with |i - j| <= r // 2, because the paper's neighbourhood is "centered
around the respective output position". In the decoder the causal mask of section 3.2.3
hides the right half.

Queries are cut into blocks of C positions. A block sees itself and the nearest r // 2
positions of the adjacent blocks, so time and memory grow with L x r instead of L x L.

    N  blocks of a row        C  positions of a block, at least r // 2
    E  positions that a block sees: C and r // 2 on either side (left, in the decoder)
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxformer.models.arrays import Heads, Ids, Keys, Queries, Values
from jaxformer.models.masks import MASKED, causal_mask, segment_mask
from jaxformer.models.sequence_model import pad

SMALLEST_BLOCK = 32  # positions; smaller products cost as much (measured on a CPU)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Neighbourhood:
    """A mask of self-attention as a rule, without an array [L, L]."""

    segments: Ids
    reach: int = field(metadata={"static": True})  # positions on either side
    is_causal: bool = field(metadata={"static": True})  # the right side is hidden
    # Positions of a row with one sentence that all see, and that see all.
    first: int = field(default=0, metadata={"static": True})

    def as_mask(self) -> Bool[Array, "B 1 L L"]:
        length = self.segments.shape[1]
        mask = segment_mask(self.segments, self.segments)
        if self.reach < length - 1:
            index = jnp.arange(length)
            distance = jnp.abs(index[:, None] - index[None, :])  # [L, L]
            is_seen = distance <= self.reach
            if self.first:
                is_seen |= jnp.minimum(index[:, None], index[None, :]) < self.first
            mask &= is_seen[None, None]
        return mask & causal_mask(length) if self.is_causal else mask


SelfMask = Bool[Array, "B 1 #L L"] | Neighbourhood


def self_attention_mask(
    segments: Ids, *, window: int | None, is_causal: bool, first: int = 0
) -> SelfMask:
    """Make the mask of self-attention; a rule for rows much longer than the window.

    `window` is r, None for all positions; `first` is that of Neighbourhood.
    """
    length = segments.shape[1]
    reach = length if window is None else window // 2
    near = Neighbourhood(segments, reach, is_causal, first)
    in_blocks = keys_computed(length, window=window, is_causal=is_causal) < length
    return near if in_blocks else near.as_mask()


def keys_computed(length: int, *, window: int | None, is_causal: bool) -> int:
    """Count the keys that each query of self-attention is multiplied with.

    Blocks are used if each sees at most half of the positions of a row.
    """
    reach = length if window is None else window // 2
    block = max(reach, SMALLEST_BLOCK)
    if 2 * (block + 2 * reach) > length:
        return length
    return block + (reach if is_causal else 2 * reach)


def local_attention(
    query: Queries, key: Keys, value: Values, near: Neighbourhood
) -> Heads:
    """Equation 1 within neighbourhoods, block by block, in value's dtype.

    The result at padding is finite and has no meaning, and so is that of the `first`
    positions, which do not see all here.
    """
    length, reach, size = query.shape[1], near.reach, max(near.reach, SMALLEST_BLOCK)

    def blocks(x: Shaped[Array, "B L *H"]) -> Shaped[Array, "B N C *H"]:
        """Cut rows into blocks, the last one padded."""
        x = pad(x, 0, -length % size, axis=1)
        return x.reshape(x.shape[0], -1, size, *x.shape[2:])

    def extend(x: Shaped[Array, "B N C *H"]) -> Shaped[Array, "B N E *H"]:
        """Extend blocks by their neighbours."""
        left = pad(x[:, :-1, size - reach :], 1, 0, axis=1)
        if near.is_causal:
            return jnp.concatenate([left, x], axis=2)
        right = pad(x[:, 1:, :reach], 0, 1, axis=1)
        return jnp.concatenate([left, x, right], axis=2)

    def with_first(
        extended: Float[Array, "B N E H K"], x: Float[Array, "B L H K"]
    ) -> Float[Array, "B N more H K"]:
        """Append the positions that all see."""
        x = x[:, None, : near.first]
        x = jnp.broadcast_to(x, (*extended.shape[:2], *x.shape[2:]))
        return jnp.concatenate([extended, x], axis=2)

    queries = blocks(query * (query.shape[-1] ** -0.5))  # [B, N, C, H, K]
    keys, values = extend(blocks(key)), extend(blocks(value))  # [B, N, E, H, K or U]
    if near.first:
        keys, values = with_first(keys, key), with_first(values, value)
    scores = jnp.einsum(
        "bnchk,bnehk->bnhce", queries, keys, preferred_element_type=jnp.float32
    )
    own = blocks(near.segments)
    seen = extend(own)[:, :, None]
    mask = (own[..., None] == seen) & (seen != 0)  # [B, N, C, E]
    distance = jnp.arange(size)[:, None] - jnp.arange(seen.shape[3])[None] + reach
    is_near = jnp.abs(distance) <= reach
    if near.is_causal:
        is_near &= distance >= 0
    mask = mask & is_near[None, None]
    if near.first:
        mask = jnp.concatenate([mask, _mask_of_first(near, own)], axis=3)
    mask = mask[:, :, None]  # [B, N, 1, C, E]
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)
    heads = jnp.einsum("bnhce,bnehu->bnchu", weights.astype(value.dtype), values)
    return heads.reshape(len(heads), -1, *heads.shape[3:])[:, :length]


def _mask_of_first(
    near: Neighbourhood, own: Int[Array, "B N C"]
) -> Bool[Array, "B N C {near.first}"]:
    """Mask the first positions for those far from them, whose segments are `own`."""
    first = near.segments[:, : near.first]
    same = (own[..., None] == first[:, None, None]) & (first != 0)[:, None, None]
    index = jnp.arange(own[0].size).reshape(*own.shape[1:], 1)
    distance = index - jnp.arange(first.shape[1])[None, None]  # [N, C, g]
    return same & (distance > near.reach)[None]
