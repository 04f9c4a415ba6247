"""Attention of a decoding step to cached keys and values, in the layout of a platform.

`EachHead` multiplies head by head, with the operations of equation 1 and no more. TPUs
pad the last two axes of an array to tiles of 8 x 128 or more, so a head of 64 numbers
wastes half of its tiles, and they multiply few rows slowly. `AllHeads` keeps the heads
of a position together and multiplies groups of heads at once: `GROUP` times as many
operations, which a TPU's matrix unit has to spare.

The letters are those of `jaxformer.models.arrays`; M counts cached positions: P
slots with one position of each of W hypotheses.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.models.arrays import AnyArray, Integer
from jaxformer.models.masks import MASKED

GROUP = 8  # heads multiplied at once, if it divides their number; else all are
BLOCK = 32, 80  # positions, least and most, of a block of keys


class Attended(NamedTuple):
    """Keys and values in the layout of one of the classes below."""

    key: Float[Array, "..."]
    value: Float[Array, "..."]


Mask = Bool[Array, " B #W M"]
Flat = Float[Array, "_ BL"]  # the features of all heads are the first axis
Change = Callable[[AnyArray, int], AnyArray]  # of a leaf and its axis M


@dataclass(frozen=True)
class EachHead:
    """Keys are [B, C H, K, M / C], values [B, H, M, U].

    If it is `on_cpu`, the keys of a cache lie in C blocks, each of whole slots and
    contiguous. A CPU reads them from memory twice as fast (docs/speed.md).
    Blocks share the axis of the heads: the product needs no other shape of the keys,
    for which XLA would copy the cache in each step.
    """

    heads: int
    on_cpu: bool = False

    def empty(self, batch: int, slots: int, width: int, d_k: int, d_v: int) -> Attended:
        """Return zeros for P slots of W positions, in float32."""
        count, size = self._blocks(slots, width), slots * width
        key = jnp.zeros((batch, count * self.heads, d_k, size // count))
        return Attended(key, jnp.zeros((batch, self.heads, size, d_v)))

    def put(self, past: Attended, new: Attended, index: Integer) -> Attended:
        """Replace the positions of the slot that begins at `index`."""
        size = past.key.shape[3]
        start = 0, index // size * self.heads, 0, index % size
        return Attended(
            jax.lax.dynamic_update_slice(past.key, new.key, start),
            jax.lax.dynamic_update_slice_in_dim(past.value, new.value, index, axis=2),
        )

    def changed(self, past: Attended, change: Change, width: int | None) -> Attended:
        """Apply `change` to M of both; keys of W = None positions stay one block."""
        batch, _, size, block = past.key.shape
        key = past.key.reshape(batch, -1, self.heads, size, block)  # [B, C, H, K, n]
        key = key.transpose(0, 2, 3, 1, 4).reshape(batch, self.heads, size, -1)
        key = change(key, 3)
        count = 1 if width is None else self._blocks(key.shape[3] // width, width)
        key = key.reshape(batch, self.heads, size, count, -1).transpose(0, 3, 1, 2, 4)
        key = key.reshape(batch, count * self.heads, size, -1)
        return Attended(key, change(past.value, 2))

    def _blocks(self, slots: int, width: int) -> int:
        """Return C: the fewest blocks in the limits of BLOCK, or one."""
        if not self.on_cpu:
            return 1
        least, most = BLOCK
        counts = (c for c in range(1, slots + 1) if slots % c == 0)
        return next((c for c in counts if least <= slots * width // c <= most), 1)

    def shared(self, mask: Mask, clock: Integer) -> Mask:
        """Return a mask that all layers read; `clock` is never negative.

        XLA for CPUs drops barriers, and would compute the mask anew in each layer. It
        keeps the result of a branch.
        """
        if not self.on_cpu:
            return mask
        return jax.lax.cond(clock >= 0, lambda: mask, lambda: ~mask)

    def query(self, x: Flat, batch: int) -> Float[Array, "{batch} H W K"]:
        """Cut x into the queries for `attend`."""
        return self._cut(x, batch).transpose(2, 0, 3, 1)

    def attended(self, key: Flat, value: Flat, batch: int) -> Attended:
        """Cut keys and values into those of L positions."""
        key = self._cut(key, batch).transpose(2, 0, 1, 3)
        return Attended(key, self._cut(value, batch).transpose(2, 0, 3, 1))

    def attend(
        self,
        query: Float[Array, "B H W K"],
        past: Attended,
        mask: Mask,
        of_slots: Attended | None = None,
    ) -> Float[Array, "HU B*W"]:
        """Compute equation 1.

        With relative positions `of_slots` are vectors of the P slots, [P, K] and
        [P, U], for the M / P keys and values of each.
        """
        query = query * (query.shape[-1] ** -0.5)
        # In the order of a batch of products; XLA for CPUs is slow in any other.
        batch, count, width, _ = query.shape
        blocks = past.key.shape[1] // count
        scores = jnp.einsum(
            "bxwk,bxkn->bxwn", jnp.tile(query, (1, blocks, 1, 1)), past.key,
            preferred_element_type=jnp.float32,
        )  # fmt: skip
        scores = scores.reshape(batch, blocks, count, width, -1)
        scores = scores.transpose(0, 2, 3, 1, 4)  # [B, H, W, C, n]
        if of_slots is not None:
            of_query = jnp.einsum(
                "bhwk,pk->bhwp", query, of_slots.key, preferred_element_type=jnp.float32
            )
            per_slot = blocks * scores.shape[4] // of_query.shape[3]
            scores += jnp.repeat(of_query, per_slot, axis=3).reshape(scores.shape)
        # XLA for CPUs is slower if the blocks are joined before.
        mask = mask.reshape(batch, 1, -1, blocks, scores.shape[4])
        scores = jnp.where(mask, scores, MASKED).reshape(batch, count, width, -1)
        weights = jax.nn.softmax(scores, axis=-1).astype(past.value.dtype)
        heads = jnp.einsum("bhwm,bhmu->bhwu", weights, past.value)
        if of_slots is not None:
            of_slot = weights.reshape(*weights.shape[:3], -1, per_slot).sum(axis=4)
            heads += jnp.einsum("bhwp,pu->bhwu", of_slot, of_slots.value)
        return heads.transpose(1, 3, 0, 2).reshape(-1, batch * width)

    def _cut(self, x: Flat, batch: int) -> Float[Array, "{self.heads} K {batch} L"]:
        return x.reshape(self.heads, len(x) // self.heads, batch, -1)


@dataclass(frozen=True)
class AllHeads:
    """Keys are [B, M, H K], values [B, M, H U]; has the methods of `EachHead`."""

    heads: int

    def empty(self, batch: int, slots: int, width: int, d_k: int, d_v: int) -> Attended:
        key = jnp.zeros((batch, slots * width, self.heads * d_k))
        return Attended(key, jnp.zeros((batch, slots * width, self.heads * d_v)))

    def put(self, past: Attended, new: Attended, index: Integer) -> Attended:
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
        return Attended(*map(put, past, new, (index, index)))

    def changed(self, past: Attended, change: Change, width: int | None) -> Attended:
        return Attended(*(change(leaf, 1) for leaf in past))

    def shared(self, mask: Mask, clock: Integer) -> Mask:
        return mask

    def query(self, x: Flat, batch: int) -> Float[Array, "{batch} W HK"]:
        return x.T.reshape(batch, -1, len(x))

    def attended(self, key: Flat, value: Flat, batch: int) -> Attended:
        return Attended(self.query(key, batch), self.query(value, batch))

    def attend(
        self, query: Float[Array, "B W HK"], past: Attended, mask: Mask
    ) -> Float[Array, "HU B*W"]:
        groups = self.heads // GROUP if self.heads % GROUP == 0 else 1
        parts = (jnp.split(x, groups, axis=2) for x in (query, *past))
        group = AllHeads(self.heads // groups)
        mixed = [group._attend(*each, mask) for each in zip(*parts, strict=True)]
        mixed = jnp.concatenate(mixed, axis=2)
        return mixed.reshape(-1, mixed.shape[2]).T

    def _attend(
        self,
        query: Float[Array, "B W HK"],
        key: Float[Array, "B M HK"],
        value: Float[Array, "B M HU"],
        mask: Mask,
    ) -> Float[Array, "B W HU"]:
        """Compute equation 1 for all heads at once."""
        batch, width, size = query.shape
        query = query * ((size // self.heads) ** -0.5)
        # The query of each head, with zeros for the other heads.
        spread = query[:, :, None] * self._own(size, query.dtype)
        scores = jnp.einsum(
            "bqx,bmx->bqm", spread.reshape(batch, -1, size), key,
            preferred_element_type=jnp.float32,
        )  # fmt: skip
        scores = scores.reshape(batch, width, self.heads, -1)
        scores = jnp.where(mask[:, :, None], scores, MASKED)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        rows = weights.reshape(batch, width * self.heads, -1)
        mixed = jnp.einsum("bqm,bmx->bqx", rows, value)
        # Of each head's mixture, the values of that head.
        mixed = mixed.reshape(batch, width, self.heads, -1)
        return (mixed * self._own(mixed.shape[-1], mixed.dtype)).sum(axis=2)

    def _own(self, size: int, dtype: jnp.dtype) -> Float[Array, "1 1 H {size}"]:
        """Mark the numbers of each head with one."""
        own = jnp.repeat(jnp.eye(self.heads, dtype=dtype), size // self.heads, axis=1)
        return own[None, None]


def cached_attention(heads: int) -> EachHead | AllHeads:
    """Choose the layout for the devices of the mesh in context."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = device.platform if device is not None else None
    if platform == "tpu":
        return AllHeads(heads)
    return EachHead(heads, on_cpu=platform == "cpu")
