"""Where arrays live: the device mesh, and the table that maps axis names to it.

Parameters carry logical axis names (see `jaxformer.model`); AXIS_RULES is the one
place that says which mesh axis each of them is split over. The mesh has three axes:
`data` splits the batch, `fsdp` splits the batch and the parameters' `embed` axis
(ZeRO), `tensor` splits heads, feed-forward and vocabulary.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxformer.batch import Batch
from jaxformer.errors import InputError

AXIS_RULES = (
    # parameters
    ("vocab", "tensor"),
    ("embed", "fsdp"),
    ("heads", "tensor"),
    ("head_size", None),
    ("mlp", "tensor"),
    ("norm", None),
    ("position", None),
    # activations
    ("batch", ("data", "fsdp")),
    ("length", None),
    ("activation", None),
)


def make_mesh(*, data: int, fsdp: int, tensor: int) -> Mesh:
    """Arrange all devices as data x fsdp x tensor; one size may be -1, "the rest".

    Raises InputError where the sizes do not multiply to the number of devices.
    """
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    devices = jax.device_count()
    given = math.prod(size for size in sizes.values() if size != -1)
    free = [name for name, size in sizes.items() if size == -1]
    is_wrong = any(size < 1 and size != -1 for size in sizes.values()) or len(free) > 1
    if is_wrong or devices % given or (not free and given != devices):
        shape = ", ".join(f"mesh.{name}={size}" for name, size in sizes.items())
        raise InputError(
            f"{shape} does not fit {devices} devices; let the sizes multiply to "
            f"{devices}, with at most one of them -1 for what is left"
        )
    shape = tuple(devices // given if size == -1 else size for size in sizes.values())
    return jax.make_mesh(shape, tuple(sizes), axis_types=(AxisType.Auto,) * 3)


@contextlib.contextmanager
def on_mesh(mesh: Mesh) -> Iterator[None]:
    """Give the logical names in the model their meaning while this is entered."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(AXIS_RULES):
        yield


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows split over `data` and `fsdp` together."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def batch_devices(mesh: Mesh) -> int:
    """Count the devices that the rows of a batch are split over."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def put_batch(mesh: Mesh, batch: Batch) -> Batch:
    """Place a host batch of numpy arrays on the mesh."""
    return jax.device_put(batch, batch_sharding(mesh))


def state_shardings(mesh: Mesh, init: Callable[[], Any]) -> Any:
    """Shardings of what `init` would make, by the axis names its parameters carry."""
    specs = nn.get_partition_spec(jax.eval_shape(init))
    return nn.logical_to_mesh_sharding(specs, mesh, AXIS_RULES)


def abstract_state(mesh: Mesh, init: Callable[[], Any]) -> Any:
    """Shapes, dtypes and shardings of what `init` would make, without making it."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        jax.eval_shape(lambda: nn.unbox(init())),
        state_shardings(mesh, init),
    )


def born_sharded(mesh: Mesh, init: Callable[[], Any]) -> Any:
    """Run `init` so that every array is created where it belongs, and unbox it."""
    shardings = state_shardings(mesh, init)
    return jax.jit(lambda: nn.unbox(init()), out_shardings=shardings)()


def with_whole_rows(embedding: jax.Array) -> jax.Array:
    """The embedding [V, D] with D in one piece, as the loss and its gradient use it."""
    return nn.with_logical_constraint(embedding, ("vocab", "activation"))


def parameter_count(params: Any) -> int:
    """Count the numbers in a pytree of arrays or abstract arrays."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
