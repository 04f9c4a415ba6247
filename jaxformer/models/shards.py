"""The part of a batch that a device computes in training."""

import jax
from jaxtyping import Array, Int

BATCH_AXES = ("data", "fsdp")  # of the mesh; they split the rows of a batch


def batch_shard() -> Int[Array, ""] | int:
    """Return the number of this device's part of the batch inside `jax.shard_map`.

    0 elsewhere, where arrays have all rows.
    """
    manual = jax.sharding.get_abstract_mesh().manual_axes
    axes = tuple(axis for axis in BATCH_AXES if axis in manual)
    return jax.lax.axis_index(axes) if axes else 0
