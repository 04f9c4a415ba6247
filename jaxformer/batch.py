"""Batches, which every room shares.

A row of a batch holds one sequence of ids, or several when pairs are packed, and
padding. Segment ids are 0 for padding and 1, 2, ... for the pairs of a row; the source
and the target of a pair have the same number. Masks, positions and the decoder's input
follow from them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.tokens import BOS


class Batch(NamedTuple):
    """Sentence pairs as rows of ids; all four arrays are int32."""

    source: jax.Array  # [B, S] ids, PAD where source_segments is 0
    target: jax.Array  # [B, T] ids, PAD where target_segments is 0; without BOS
    source_segments: jax.Array  # [B, S] 0 = padding, else the pair's number in its row
    target_segments: jax.Array  # [B, T]


class Rows(NamedTuple):
    """A process's rows of a batch: some of `of` equal blocks, ascending."""

    blocks: tuple[int, ...]
    of: int


ALL_ROWS = Rows((0,), 1)


def starts_of_segments(segments: jax.Array) -> jax.Array:
    """Whether each position begins a segment: bool [B, L] for segments int [B, L]."""
    first = jnp.ones_like(segments[:, :1], dtype=bool)
    return jnp.concatenate([first, segments[:, 1:] != segments[:, :-1]], axis=1)


def positions_in_segments(segments: jax.Array) -> jax.Array:
    """Position of each token within its own sequence, from 0: int32 [B, L]."""
    index = jnp.arange(segments.shape[1], dtype=jnp.int32)[None, :]  # [1, L]
    start = jnp.where(starts_of_segments(segments), index, 0)  # [B, L]
    return index - jax.lax.cummax(start, axis=1)


def shift_right(target: jax.Array, segments: jax.Array) -> jax.Array:
    """The decoder's input (section 3.1): the target one position later, BOS first.

    Every segment of a packed row starts with BOS. Shapes [B, T]; returns int32 [B, T].
    """
    previous = jnp.pad(target[:, :-1], ((0, 0), (1, 0)))  # [B, T]
    return jnp.where(starts_of_segments(segments), BOS, previous)
