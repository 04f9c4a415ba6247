"""The shared embedding on a mesh: a copy for each shard of the batch.

An update uses the embedding three times, for both languages and the loss. XLA would sum
the gradient of each use over the devices separately. With a copy for each shard the
gradients of the uses add up locally, and the copies' gradients are summed once. A
device holds only the copy of its own rows.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn


def batch_shards() -> int:
    """Count the parts into which the mesh splits a batch; 1 without a mesh."""
    (names,) = nn.logical_to_mesh_axes(("batch",)) or [None]
    sizes = jax.sharding.get_abstract_mesh().shape
    names = [names] if isinstance(names, str) else names or []
    return math.prod(sizes.get(name, 1) for name in names)


def by_shard(x: jax.Array) -> jax.Array:
    """Split rows by shard, in place: [B, ...] -> [N, B/N, ...] for N shards."""
    shards = batch_shards()
    x = x.reshape(shards, x.shape[0] // shards, *x.shape[1:])
    return nn.with_logical_constraint(x, ("batch",) + (None,) * (x.ndim - 1))


def copy_for_shards(table: jax.Array) -> jax.Array:
    """Copy a table for each shard: [V, D] -> [N, V, D], or [V] -> [N, V].

    The copies do not split D, because a gather from split rows would split its result.
    """
    axes = ("vocab", "activation")[: table.ndim]
    whole = nn.with_logical_constraint(table, axes)
    copies = jnp.broadcast_to(whole, (batch_shards(), *table.shape))
    return nn.with_logical_constraint(copies, ("batch", *axes))


def look_up(copies: jax.Array, ids: jax.Array) -> jax.Array:
    """Look up ids int [B, L], each in its shard's copy: [B, L, D]."""
    take = jax.vmap(functools.partial(jnp.take, axis=0))
    rows = take(copies, by_shard(ids))  # [N, B/N, L, D]
    return rows.reshape(*ids.shape, copies.shape[-1])
