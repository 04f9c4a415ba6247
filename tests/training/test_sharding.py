"""The mesh says where arrays live and changes nothing else; eight simulated devices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.batch import Batch, Rows
from jaxformer.errors import InputError
from jaxformer.models.layers import FeedForward
from jaxformer.training.sharding import (
    AXES,
    LOGICAL_AXES,
    abstract_state,
    born_sharded,
    copy_to,
    local_mesh,
    make_mesh,
    on_mesh,
    put_batch,
    rows_here,
)
from tests.models.tiny import model_of
from tests.training.setups import by_name, init_of, mesh_of, optimizer_of, random_batch

OPTIMIZER, _ = optimizer_of(clip_norm=1.0)
ONE, DATA, FSDP, ALL, TENSOR = (1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)
MESHES = (ONE, DATA, FSDP, ALL, TENSOR)
EVERYTHING = {
    "positions": "learned", "norm_first": True, "attention_bias": True,
    "logits_bias": True,
}  # fmt: skip


def make_model(**changes):
    """Every size that an axis may be split over is a multiple of eight."""
    values = {"num_heads": 8, "d_k": 4, "d_v": 4, "dropout": 0.1, "max_positions": 16}
    return model_of(**values | changes)


# --- the mesh ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((8, 1, 1), (8, 1, 1)),
        ((2, 2, 2), (2, 2, 2)),
        ((-1, 1, 1), (8, 1, 1)),
        ((2, -1, 2), (2, 2, 2)),
        ((1, 8, -1), (1, 8, 1)),
    ],
)
def test_the_sizes_multiply_to_the_devices_and_one_may_be_the_rest(sizes, shape):
    mesh = make_mesh(**dict(zip(AXES, sizes, strict=True)))
    assert mesh.axis_names == AXES == ("data", "fsdp", "tensor")
    assert mesh.devices.shape == shape


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (3, -1, 1), (-1, -1, 1), (16, 1, 1), (0, 8, 1), (0, -1, 1)]
)
def test_sizes_that_do_not_fit_are_refused_with_the_number_of_devices(sizes):
    asked = dict(zip(AXES, sizes, strict=True))
    with pytest.raises(InputError, match="8 devices") as refusal:
        make_mesh(**asked)
    said = ", ".join(f"mesh.{axis}={size}" for axis, size in asked.items())
    assert said in str(refusal.value)


# --- the names -----------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, EVERYTHING])
def test_every_dimension_in_the_model_has_a_name_of_the_table(changes, monkeypatch):
    """An unknown name would silently mean "on every device"."""
    names = set()
    constrain = nn.with_logical_constraint

    def record(x, axes, *args, **kwargs):
        assert len(axes) == x.ndim
        names.update(axes)
        return constrain(x, axes, *args, **kwargs)

    monkeypatch.setattr(nn, "with_logical_constraint", record)
    model = make_model(**changes)
    params = jax.eval_shape(init_of(model, OPTIMIZER)).params
    jax.eval_shape(model.logits, nn.unbox(params), random_batch(16, 6))
    assert {"batch", "length"} < names
    boxes = jax.tree.leaves(
        params, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )
    for box in boxes:
        assert len(box.names) == len(box.value.shape)
        names.update(box.names)
    assert ("position" in names) == bool(changes)
    assert names - {None} <= LOGICAL_AXES.keys()


# --- where the state lives -----------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "share"), [*zip(MESHES, (1, 1, 8, 4, 8), strict=True)]
)
def test_no_matrix_nor_a_moment_of_one_is_whole_on_a_device_with_fsdp_or_tensor(
    sizes, share
):
    state = abstract_state(mesh_of(sizes), init_of(make_model(), OPTIMIZER, ema=True))
    for name, leaf in by_name(state).items():
        part = np.prod(leaf.sharding.shard_shape(leaf.shape))
        if leaf.ndim > 1:
            assert part * share == leaf.size, name
        if name.endswith("hidden/bias"):
            assert part * sizes[2] == leaf.size


def test_state_is_born_where_it_belongs_with_the_same_values_on_every_mesh():
    block = FeedForward(
        d_model=16, d_ff=32, activation="relu", dtype=jnp.float32, output_gain=1.0
    )

    def init():
        params = block.init(jax.random.key(5), jnp.ones((1, 1, 16)))["params"]
        return params, OPTIMIZER.init(params)

    mesh = mesh_of((1, 4, 2))
    born, promised = born_sharded(mesh, init), abstract_state(mesh, init)
    assert jax.tree.structure(born) == jax.tree.structure(promised)
    for leaf, wanted in zip(*map(jax.tree.leaves, (born, promised)), strict=True):
        assert (leaf.shape, leaf.dtype) == (wanted.shape, wanted.dtype)
        assert leaf.sharding == wanted.sharding
    kernel = born[0]["hidden"]["kernel"]
    assert [shard.data.shape for shard in kernel.addressable_shards] == [(4, 16)] * 8
    on_one = born_sharded(mesh_of(ONE), init)
    jax.tree.map(np.testing.assert_array_equal, born, on_one)


@pytest.mark.parametrize(
    ("axis", "key", "field", "size"),
    [
        ("tensor", "data.vocab_size", "vocab_size", 20),
        ("fsdp", "model.d_model", "d_model", 20),
        ("tensor", "model.num_heads", "num_heads", 6),
        ("tensor", "model.d_ff", "d_ff", 36),
    ],
)
def test_a_size_that_does_not_divide_is_refused_with_values_that_would_do(
    axis, key, field, size
):
    """One sentence; each half of its advice is followed."""

    def init(size):
        return init_of(make_model(**{field: size}), OPTIMIZER)

    mesh = {name: -1 if name == axis else 1 for name in AXES}
    with pytest.raises(InputError) as refusal:
        abstract_state(make_mesh(**mesh), init(size))
    said = re.fullmatch(
        rf"mesh\.{axis}=8 does not divide {key}={size}; choose mesh\.{axis}=(\d+), "
        rf"or a multiple of 8 such as {key}=(\d+)",
        str(refusal.value),
    )
    assert said, refusal.value
    split, better = map(int, said.groups())
    abstract_state(make_mesh(**mesh), init(better))
    fewer = make_mesh(**{**mesh, "data": -1, axis: split})
    abstract_state(fewer, init(size))


# --- rows and copies -----------------------------------------------------------------


@pytest.mark.parametrize("sizes", MESHES)
def test_rows_of_the_mesh_are_those_of_the_host_in_their_order(sizes):
    mesh, blocks = mesh_of(sizes), sizes[0] * sizes[1]
    assert rows_here(mesh) == Rows(tuple(range(blocks)), blocks)  # one process has all
    rng = np.random.default_rng(2)
    host = Batch(
        *(rng.integers(0, 99, (16, length), np.int32) for length in (5, 7, 5, 7))
    )
    for placed, mine in zip(put_batch(mesh, host), host, strict=True):
        assert placed.dtype == np.int32
        np.testing.assert_array_equal(placed, mine)
        for shard in placed.addressable_shards:
            np.testing.assert_array_equal(shard.data, mine[shard.index])
            assert shard.data.shape == (16 // blocks, mine.shape[1])


@pytest.mark.parametrize("sizes", [None, *MESHES[1:]])
def test_parameters_are_copied_whole_to_each_device_from_wherever_they_were(sizes):
    """From numpy, or from a mesh."""
    rng = np.random.default_rng(4)
    host = {"w": rng.normal(size=(16, 8)).astype(np.float32), "n": np.float32([1, 2])}
    params = host
    if sizes is not None:
        specs = {"w": P("fsdp", "tensor"), "n": P()}
        params = {
            name: jax.device_put(leaf, NamedSharding(mesh_of(sizes), specs[name]))
            for name, leaf in host.items()
        }
    mesh = local_mesh()
    assert mesh.axis_names == AXES
    assert mesh.devices.flatten().tolist() == jax.local_devices()
    with on_mesh(mesh_of(sizes or ALL)):  # as during training
        copied = copy_to(mesh, params)
    for name, leaf in copied.items():
        assert leaf.sharding == NamedSharding(mesh, P())
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, host[name])
