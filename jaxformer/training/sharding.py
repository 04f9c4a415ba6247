"""Where arrays live: the device mesh, and the table that maps axis names to it.

Parameters carry logical axis names (see `jaxformer.models`); AXIS_RULES is the one
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

from jaxformer.batch import Batch, Rows
from jaxformer.errors import InputError

AXES = ("data", "fsdp", "tensor")
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

# The key of the config that says how large an axis is that may be split.
SIZES = {
    "vocab": "data.vocab_size",
    "embed": "model.d_model",
    "heads": "model.num_heads",
    "mlp": "model.d_ff",
}


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


def rows_here(mesh: Mesh) -> Rows:
    """Which rows of a batch the devices of this process hold."""
    blocks = mesh.shape["data"] * mesh.shape["fsdp"]
    held = batch_sharding(mesh).addressable_devices_indices_map((blocks,))
    numbers = {rows.indices(blocks)[0] for (rows,) in held.values()}
    return Rows(tuple(sorted(numbers)), blocks)


def put_batch(mesh: Mesh, batch: Batch) -> Batch:
    """Place the rows that this process holds, numpy arrays, as a batch of the mesh."""
    rows = rows_here(mesh)
    sharding = batch_sharding(mesh)

    def put(mine: np.ndarray) -> jax.Array:
        height = len(mine) // len(rows.blocks)

        def block(index: tuple[slice, ...]) -> np.ndarray:
            place = rows.blocks.index((index[0].start or 0) // height)
            return mine[place * height : (place + 1) * height]

        shape = (height * rows.of, *mine.shape[1:])
        return jax.make_array_from_callback(shape, sharding, block)

    return Batch(*map(put, batch))


def local_mesh() -> Mesh:
    """The devices of this process alone, each with whole parameters, for decoding."""
    devices = jax.local_devices()
    return jax.make_mesh(
        (len(devices), 1, 1), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices
    )


def copy_to(mesh: Mesh, params: Any) -> Any:
    """Whole parameters on each device of a local mesh, wherever they were.

    Takes arrays of numpy, or of a mesh of all devices; then all processes have to take
    part.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params)):
        return jax.device_put(params, everywhere)
    whole = jax.tree.map(
        lambda leaf: NamedSharding(leaf.sharding.mesh, PartitionSpec()), params
    )
    gathered = jax.jit(lambda tree: tree, out_shardings=whole)(params)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_single_device_arrays(
            leaf.shape, everywhere, [shard.data for shard in leaf.addressable_shards]
        ),
        gathered,
    )


def state_shardings(mesh: Mesh, init: Callable[[], Any]) -> Any:
    """Shardings of what `init` would make, by the axis names its parameters carry.

    Raises InputError where a size cannot be split evenly.
    """
    specs = nn.get_partition_spec(jax.eval_shape(init))
    shapes = jax.eval_shape(lambda: nn.unbox(init()))
    jax.tree.map(
        lambda leaf, spec: _require_even(mesh, leaf.shape, spec), shapes, specs
    )
    return nn.logical_to_mesh_sharding(specs, mesh, AXIS_RULES)


def _require_even(mesh: Mesh, shape: tuple[int, ...], names: PartitionSpec) -> None:
    """Raise InputError unless the mesh splits each named dimension evenly."""
    rules = dict(AXIS_RULES)
    for size, name in zip(shape, names, strict=False):
        axis = rules.get(name)
        if axis is None or size % mesh.shape[axis] == 0:
            continue
        split = mesh.shape[axis]
        divisors = [n for n in range(1, split) if size % n == split % n == 0]
        raise InputError(
            f"mesh.{axis}={split} does not divide {SIZES[name]}={size}; choose "
            f"mesh.{axis}={divisors[-1]}, or a multiple of {split} such as "
            f"{SIZES[name]}={size + -size % split}"
        )


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
