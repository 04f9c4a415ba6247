"""Where arrays live: the device mesh, and the table that maps axis names to it.

Parameters and activations carry logical axis names (see `jaxformer.models`). The mesh
has three axes. `data` splits the batch, and a dimension of each matrix that divides
evenly; `fsdp` splits the batch and the parameters' `embed` axis; `tensor` splits heads,
feed-forward and vocabulary. Moments are split like parameters.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import jax
import numpy as np
from flax import linen as nn
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jaxformer.batch import Batch, Rows
from jaxformer.models.sequence_model import Parameters
from jaxformer.system.errors import InputError, counted

State = TypeVar("State")  # a pytree; its leaves may be shapes or shardings
AXES = ("data", "fsdp", "tensor")
# By logical name: the mesh axis that splits it, and the config key of its size.
LOGICAL_AXES = {
    # parameters
    "vocab": ("tensor", "data.vocab_size"),
    "embed": ("fsdp", "model.d_model"),
    "half_embed": ("fsdp", "model.d_model"),
    "heads": ("tensor", "model.num_heads"),
    "head_size": (None, None),
    "state": ("tensor", "model.d_model"),
    "mlp": ("tensor", "model.d_ff"),
    "norm": (None, None),
    "gates": (None, None),
    "position": (None, None),
    # activations
    "batch": (("data", "fsdp"), None),
    "length": (None, None),
    "activation": (None, None),
}
PARTS = {"half_embed": 2}  # how many times such a size makes the value of its key
AXIS_RULES = tuple((name, axis) for name, (axis, _) in LOGICAL_AXES.items())


def make_mesh(
    *, data: int, fsdp: int, tensor: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Arrange devices as data x fsdp x tensor; one size may be -1, "the rest".

    `devices` None means all. Raises InputError if the sizes do not multiply to the
    number of devices.
    """
    devices = jax.devices() if devices is None else devices
    try:
        shape = np.arange(len(devices)).reshape(data, fsdp, tensor).shape
    except ValueError:
        raise InputError(
            f"mesh.data={data}, mesh.fsdp={fsdp}, mesh.tensor={tensor} does not fit "
            f"{counted(len(devices), 'device')}; let the sizes multiply to "
            f"{len(devices)}, with at most one of them -1 for what is left"
        ) from None
    return _mesh(shape, devices)


def local_mesh() -> Mesh:
    """The devices of this process alone, each with whole parameters, for decoding."""
    return _mesh((jax.local_device_count(), 1, 1), jax.local_devices())


def _mesh(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> Mesh:
    return jax.make_mesh(shape, AXES, (AxisType.Auto,) * 3, devices=devices)


@contextlib.contextmanager
def on_mesh(mesh: Mesh, rules: tuple = AXIS_RULES) -> Iterator[None]:
    """Within the block, logical names in the model mean axes of `mesh` by `rules`."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
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
    place = functools.partial(
        jax.make_array_from_process_local_data, batch_sharding(mesh)
    )
    blocks, of = rows_here(mesh)
    height = len(batch.source) // len(blocks) * of
    return Batch(*(place(mine, (height, mine.shape[1])) for mine in batch))


def place(value: np.ndarray, like: jax.Array) -> jax.Array:
    """Place a value that each process holds whole as `like` is placed."""
    return jax.make_array_from_callback(
        value.shape, like.sharding, lambda index: value[index]
    )


def copy_to(mesh: Mesh, params: Parameters) -> Parameters:
    """Copy whole parameters to each device of a local mesh.

    Takes arrays of numpy or, if all processes take part, of a mesh of all devices.
    """

    def gather(leaf: ArrayLike) -> ArrayLike:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return leaf

    return jax.device_put(
        jax.tree.map(gather, params), NamedSharding(mesh, PartitionSpec())
    )


@functools.lru_cache(maxsize=1)  # tracing takes a third of a second and more
def abstract_state(mesh: Mesh, init: Callable[[], State]) -> State:
    """Shapes, dtypes and shardings of the result of `init`, without running it.

    The axis names of its parameters give the shardings. Raises InputError if a size
    cannot be split evenly.
    """
    boxed = jax.eval_shape(init)
    specs = nn.get_partition_spec(boxed)
    is_spec = {"is_leaf": lambda leaf: isinstance(leaf, PartitionSpec)}
    used = {name for spec in jax.tree.leaves(specs, **is_spec) for name in spec}
    parts_of: dict[str, int] = {}  # into how many parts the model cuts a key's value
    for name in used & LOGICAL_AXES.keys():
        key = LOGICAL_AXES[name][1]
        parts_of[key] = max(parts_of.get(key, 1), PARTS.get(name, 1))

    def place(leaf: jax.ShapeDtypeStruct, names: PartitionSpec) -> jax.ShapeDtypeStruct:
        for size, name in zip(leaf.shape, names, strict=False):
            axis, key = LOGICAL_AXES.get(name, (None, None))
            split, parts = mesh.shape.get(axis, 1), parts_of.get(key, 1)
            value = size * PARTS.get(name, 1)
            part = value // parts
            if part % split:
                divisor = max(n for n in range(1, split) if part % n == split % n == 0)
                what = "half of " * (parts == 2) + f"{key}={value}"
                raise InputError(
                    f"mesh.{axis}={split} does not divide {what}; choose "
                    f"mesh.{axis}={divisor}, or a multiple of {parts * split} such as "
                    f"{key}={parts * (part + -part % split)}"
                )
        axes = nn.logical_to_mesh_axes(names, AXIS_RULES)
        sharding = NamedSharding(mesh, _share(mesh, leaf.shape, axes))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    leaves = jax.eval_shape(nn.unbox, boxed)
    return jax.tree.map(place, leaves, specs)


def _share(mesh: Mesh, shape: tuple[int, ...], spec: PartitionSpec) -> PartitionSpec:
    """Split over `data` too: the dimension of `fsdp`, else the first that divides.

    Vectors stay whole: exchanging them takes longer than updating them.
    """
    axes = [axis if mesh.shape.get(axis, 1) > 1 else None for axis in spec]
    axes += [None] * (len(shape) - len(axes))
    joined = "fsdp" if "fsdp" in axes else None
    parts = mesh.shape["data"] * mesh.shape.get(joined, 1)
    if mesh.shape["data"] > 1 and len(shape) > 1:
        for index, size in enumerate(shape):
            if axes[index] == joined and size % parts == 0:
                axes[index] = ("data", joined) if joined else "data"
                break
    return PartitionSpec(*axes)


def state_shardings(mesh: Mesh, init: Callable[[], State]) -> State:
    """Where each array of the result of `init` belongs."""
    return jax.tree.map(lambda leaf: leaf.sharding, abstract_state(mesh, init))


def splits_batch(mesh: Mesh) -> bool:
    """Whether devices of the mesh have different rows of a batch."""
    return mesh.shape["data"] * mesh.shape["fsdp"] > 1


def born_sharded(mesh: Mesh, init: Callable[[], State]) -> State:
    """Run `init` so that every array is created where it belongs, and unbox it."""

    def initial_state() -> State:
        return nn.unbox(init())

    return jax.jit(initial_state, out_shardings=state_shardings(mesh, init))()
