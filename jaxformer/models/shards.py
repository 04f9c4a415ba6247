"""The shared embedding on a mesh: a copy for each shard of the batch.

The embedding is used three times in an update, by both languages and by the loss. XLA
sums the gradient of every use over the devices by itself, so the largest parameter of
the model would cross the network three times. Here each shard of the batch uses a copy
of its own: the gradients of its uses add up where they are, and the copies' gradients
are summed once. A device holds the one copy that its rows use, so there is none too
many; on one device a copy is the embedding itself.
"""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn


def batch_shards() -> int:
    """Count the parts into which the mesh splits the rows of a batch; 1 without."""
    axes = nn.logical_to_mesh_axes(("batch",))
    sizes = jax.sharding.get_abstract_mesh().shape
    names = axes[0] if axes is not None else None
    if names is None or not sizes:
        return 1
    return math.prod(sizes[name] for name in ([names] if type(names) is str else names))


def by_shard(x: jax.Array) -> jax.Array:
    """Name the shards: [B, ...] -> [N, B/N, ...] for N shards; moves nothing."""
    shards = batch_shards()
    x = x.reshape(shards, x.shape[0] // shards, *x.shape[1:])
    return nn.with_logical_constraint(x, ("batch",) + (None,) * (x.ndim - 1))


def copy_for_shards(table: jax.Array) -> jax.Array:
    """A copy for each shard, its rows whole: [V, D] -> [N, V, D], or [V] -> [N, V].

    Rows are whole because a gather of split rows would split what it gathers.
    """
    axes = ("vocab", "activation")[: table.ndim]
    whole = nn.with_logical_constraint(table, axes)
    copies = jnp.broadcast_to(whole, (batch_shards(), *table.shape))
    return nn.with_logical_constraint(copies, ("batch", *axes))


def look_up(copies: jax.Array, ids: jax.Array) -> jax.Array:
    """Take the rows of ids int [B, L], each from its shard's copy: [B, L, D]."""
    rows = jax.vmap(lambda table, ids: jnp.take(table, ids, axis=0))(
        copies, by_shard(ids)
    )  # [N, B/N, L, D]
    return rows.reshape(*ids.shape, copies.shape[-1])
