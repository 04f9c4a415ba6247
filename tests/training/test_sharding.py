"""The mesh says where arrays live and changes nothing else; eight simulated devices."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.batch import Batch, Rows
from jaxformer.errors import InputError
from jaxformer.models.layers import FeedForward
from jaxformer.models.sequence_model import parameter_count
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import (
    AXES,
    AXIS_RULES,
    SIZES,
    abstract_state,
    born_sharded,
    copy_to,
    local_mesh,
    make_mesh,
    on_mesh,
    put_batch,
    rows_here,
)
from jaxformer.training.step import init_state
from tests.models.tiny import model_of

OPTIMIZER, _ = make_optimizer(
    d_model=16,
    warmup_steps=20,
    learning_rate_scale=1.0,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-4,  # with 1e-9 a gradient of zero would step by its rounding's sign
    clip_norm=1.0,
)


def make_model(**changes):
    """Every size that an axis may be split over is a multiple of eight."""
    values = {"num_heads": 8, "d_k": 4, "d_v": 4, "dropout": 0.1, "max_positions": 16}
    return model_of(**values | changes)


def init_of(model, *, ema=False):
    return functools.partial(init_state, model, OPTIMIZER, seed=0, ema=ema)


def tiny_batch():
    rng = np.random.default_rng(1)
    segments = (np.arange(6)[None] < rng.integers(1, 7, (16, 1))).astype(np.int32)
    source, target = rng.integers(3, 24, (2, 16, 6), dtype=np.int32) * segments
    return Batch(source, target, segments, segments)


def mesh_of(data, fsdp, tensor):
    """A mesh of the first devices; `make_mesh` always takes all of them."""
    sizes = (data, fsdp, tensor)
    devices = jax.devices()[: data * fsdp * tensor]
    return jax.make_mesh(sizes, AXES, (AxisType.Auto,) * 3, devices=devices)


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
    blocks = shape[0] * shape[1]
    assert rows_here(mesh) == Rows(tuple(range(blocks)), blocks)  # one process has all


@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1), (3, -1, 1), (-1, -1, 1), (16, 1, 1), (0, 8, 1), (-2, 1, 1), (0, -1, 1)],
)
def test_sizes_that_do_not_fit_are_refused_with_the_number_of_devices(sizes):
    data, fsdp, tensor = sizes
    with pytest.raises(InputError, match="8 devices") as refusal:
        make_mesh(data=data, fsdp=fsdp, tensor=tensor)
    assert f"mesh.data={data}, mesh.fsdp={fsdp}, mesh.tensor={tensor}" in str(
        refusal.value
    )


# --- the names -----------------------------------------------------------------------


@pytest.fixture
def constrained_names(monkeypatch):
    """The logical names that the model gives to activations, recorded as it is traced.

    And their number of dimensions, which has to be that of the array.
    """
    names = []
    constrain = nn.with_logical_constraint

    def record(x, axes, *args, **kwargs):
        assert len(axes) == x.ndim
        names.extend(axes)
        return constrain(x, axes, *args, **kwargs)

    monkeypatch.setattr(nn, "with_logical_constraint", record)
    return names


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_every_axis_name_in_the_model_is_in_the_table(
    positions, norm_first, constrained_names
):
    """An unknown name would silently mean "on every device"."""
    model = make_model(
        positions=positions,
        norm_first=norm_first,
        attention_bias=norm_first,
        logits_bias=norm_first,
    )
    boxed = jax.eval_shape(init_of(model, ema=True))
    specs = jax.tree.leaves(
        nn.get_partition_spec(boxed),
        is_leaf=lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec),
    )
    in_parameters = set(itertools.chain.from_iterable(specs)) - {None}
    assert ("position" in in_parameters) == (positions == "learned")
    assert {"batch", "length"} < set(constrained_names)
    known = {name for name, _ in AXIS_RULES}
    assert in_parameters | set(constrained_names) - {None} <= known


def test_the_table_has_no_name_twice_and_only_axes_of_the_mesh():
    names = [name for name, _ in AXIS_RULES]
    assert len(set(names)) == len(names)
    for _, axes in AXIS_RULES:
        assert set(axes if isinstance(axes, tuple) else (axes,)) <= {*AXES, None}


def test_every_parameter_names_each_of_its_dimensions():
    model = make_model(
        positions="learned", norm_first=True, attention_bias=True, logits_bias=True
    )
    params = jax.eval_shape(init_of(model)).params
    boxes = jax.tree.leaves(
        params, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )
    for box in boxes:
        assert isinstance(box, nn.LogicallyPartitioned)
        assert len(box.names) == len(box.value.shape)


def test_constraints_in_the_model_take_effect_on_a_mesh_and_only_there():
    model = make_model()
    params = jax.eval_shape(lambda: nn.unbox(init_of(model)())).params

    def constraints():
        traced = jax.make_jaxpr(model.logits)(params, tiny_batch())
        return str(traced).count("sharding_constraint[")

    assert constraints() == 0
    with on_mesh(make_mesh(data=2, fsdp=2, tensor=2)):
        assert constraints() >= 3  # embedded source, embedded target, logits


# --- where the state lives -----------------------------------------------------------


def share(leaf):
    """Which part of a leaf one device holds."""
    return np.prod(leaf.sharding.shard_shape(leaf.shape)) / np.prod(leaf.shape)


def by_name(tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in leaves
    }


def test_with_fsdp_each_device_holds_an_eighth_of_all_large_state():
    mesh = make_mesh(data=1, fsdp=8, tensor=1)
    state = abstract_state(mesh, init_of(make_model(positions="learned"), ema=True))
    whole = {name for name, leaf in by_name(state).items() if share(leaf) == 1}
    assert all(share(leaf) in (1, 1 / 8) for leaf in jax.tree.leaves(state))
    # Of what is whole on every device nothing is larger than a vector.
    assert all(by_name(state)[name].ndim <= 1 for name in whole)
    for name in ("params/embedding", "ema/embedding", "opt_state/1/mu/embedding"):
        assert name in by_name(state).keys() - whole


def test_with_tensor_each_device_holds_its_heads_its_hidden_units_and_its_pieces():
    mesh = make_mesh(data=1, fsdp=1, tensor=8)
    params = by_name(abstract_state(mesh, init_of(make_model())).params)
    split = {name for name, leaf in params.items() if share(leaf) == 1 / 8}
    layer = "decoder/layer_0"
    assert {
        "embedding",
        f"{layer}/cross_attention/query/kernel",
        f"{layer}/cross_attention/output/kernel",
        f"{layer}/feed_forward/hidden/kernel",
        f"{layer}/feed_forward/hidden/bias",
        f"{layer}/feed_forward/output/kernel",
    } <= split
    assert f"{layer}/feed_forward/output/bias" not in split


def test_with_data_alone_every_device_holds_all_of_the_state():
    mesh = make_mesh(data=8, fsdp=1, tensor=1)
    state = abstract_state(mesh, init_of(make_model()))
    assert {share(leaf) for leaf in jax.tree.leaves(state)} == {1}


def test_state_is_born_where_it_belongs_with_the_same_values_on_every_mesh():
    block = FeedForward(
        d_model=16, d_ff=32, activation="relu", dtype=jnp.float32, output_gain=1.0
    )

    def init():
        params = block.init(jax.random.key(5), jnp.ones((1, 1, 16)))["params"]
        return params, OPTIMIZER.init(params)

    mesh = make_mesh(data=1, fsdp=4, tensor=2)
    born = born_sharded(mesh, init)
    promised = abstract_state(mesh, init)
    assert jax.tree.structure(born) == jax.tree.structure(promised)
    for leaf, wanted in zip(
        jax.tree.leaves(born), jax.tree.leaves(promised), strict=True
    ):
        assert (leaf.shape, leaf.dtype) == (wanted.shape, wanted.dtype)
        assert leaf.sharding == wanted.sharding
    kernel = born[0]["hidden"]["kernel"]
    assert [shard.data.shape for shard in kernel.addressable_shards] == [(4, 16)] * 8
    on_one = born_sharded(mesh_of(1, 1, 1), init)
    jax.tree.map(np.testing.assert_array_equal, born, on_one)


def test_rows_of_a_batch_are_split_over_data_and_fsdp():
    batch = put_batch(make_mesh(data=2, fsdp=2, tensor=2), tiny_batch())
    for array in batch:
        assert array.sharding.shard_shape(array.shape) == (4, 6)


def test_a_batch_on_the_mesh_is_the_batch():
    host = tiny_batch()
    for sizes in ((8, 1, 1), (2, 2, 2), (1, 1, 8)):
        mesh = make_mesh(**dict(zip(AXES, sizes, strict=True)))
        for array, expected in zip(put_batch(mesh, host), host, strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("changes", "sizes", "said"),
    [
        (
            {"vocab_size": 30},
            (1, 1, 8),
            ["mesh.tensor=8 does not divide data.vocab_size=30", "mesh.tensor=2", "32"],
        ),
        (
            {"num_heads": 2},
            (1, 1, 8),
            ["mesh.tensor=8", "model.num_heads=2", "choose mesh.tensor=2", "heads=8"],
        ),
        ({"d_ff": 20}, (1, 1, 8), ["mesh.tensor=8", "model.d_ff=20", "d_ff=24"]),
        (
            {"d_model": 12},
            (1, 8, 1),
            ["mesh.fsdp=8", "d_model=12", "fsdp=4", "d_model=16"],
        ),
    ],
)
def test_a_size_that_cannot_be_split_evenly_is_named_with_the_ways_out(
    changes, sizes, said
):
    """Of other sizes of the mesh one is named that eight devices can make."""
    mesh = make_mesh(**dict(zip(AXES, sizes, strict=True)))
    with pytest.raises(InputError) as refusal:
        abstract_state(mesh, init_of(make_model(**changes)))
    for words in said:
        assert words in str(refusal.value)


def test_every_axis_that_may_be_split_names_its_key_of_the_config():
    split = {name for name, axes in AXIS_RULES if isinstance(axes, str)}
    assert SIZES.keys() == split


# --- one process's devices -----------------------------------------------------------


def test_the_local_mesh_holds_whole_parameters_and_splits_rows():
    mesh = local_mesh()
    assert mesh.axis_names == AXES
    assert mesh.devices.flatten().tolist() == jax.local_devices()
    assert mesh.shape["data"] == len(jax.local_devices())


@pytest.mark.parametrize("kind", ["numpy", "8 x 1 x 1", "2 x 2 x 2", "1 x 8 x 1"])
def test_parameters_are_copied_whole_to_each_device_from_wherever_they_were(kind):
    rng = np.random.default_rng(4)
    host = {"w": rng.normal(size=(16, 8)).astype(np.float32), "n": np.float32([1, 2])}
    params = host
    if kind != "numpy":
        mesh = make_mesh(**dict(zip(AXES, map(int, kind.split(" x ")), strict=True)))
        places = {"w": P("fsdp", "tensor"), "n": P()}
        params = {
            name: jax.device_put(leaf, NamedSharding(mesh, places[name]))
            for name, leaf in host.items()
        }
    copied = copy_to(local_mesh(), params)
    for name, leaf in copied.items():
        assert leaf.sharding == NamedSharding(local_mesh(), P())
        assert len(leaf.addressable_shards) == len(jax.local_devices())
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, host[name])


def test_parameters_are_counted_by_hand():
    # W1, b1, W2, b2 of a feed-forward block 16 -> 32 -> 16.
    block = FeedForward(
        d_model=16, d_ff=32, activation="relu", dtype=jnp.float32, output_gain=1.0
    )
    init = functools.partial(block.init, jax.random.key(0), jnp.ones((1, 1, 16)))
    counted = parameter_count(nn.unbox(jax.eval_shape(init)))
    assert counted == 16 * 32 + 32 + 32 * 16 + 16
