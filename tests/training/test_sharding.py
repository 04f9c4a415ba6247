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
from jaxformer.models.layers import FeedForward
from jaxformer.system.errors import InputError
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
from jaxformer.training.update_kernels import global_norm
from tests.models.tiny import HYBRIDS, VALUES, model_of
from tests.training.setups import (
    assert_same,
    init_of,
    mesh_of,
    optimizer_of,
    random_batch,
)

OPTIMIZER, _ = optimizer_of(clip_norm=1.0)
ONE, DATA, FSDP, ALL, TENSOR = (1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)
MESHES = (ONE, DATA, FSDP, ALL, TENSOR)
EVERYTHING = {
    "positions": "learned", "norm_first": True, "biases": "all",
}  # fmt: skip
PROJECTED = {"encoder_projected_keys": 8}
CONVOLUTIONAL, RECURRENT = (
    {"architecture": name} for name in ("convolutional", "recurrent")
)
SSRU = {"decoder_self_attention": "ssru"}
FORWARDS = {"bidirectional": False}
LEARNED = tuple(
    HYBRIDS[sides]
    for sides in ("transformer to convolutional", "convolutional to recurrent")
)
WIDE = (  # one dimension of each matrix is d_model or half of it
    {"encoder_global_positions": 2, "attention_window": 4},
    SSRU,
    CONVOLUTIONAL,
    CONVOLUTIONAL | {"separable": True},
    RECURRENT | FORWARDS | {"cell": "tanh"},
    RECURRENT | {"attention_reading": "hard"},
    RECURRENT | {"cell": "gru", "attention": "additive", "feeding": "context"},
    RECURRENT | {"attention": "local", "attention_window": 2},
    *LEARNED,
)
OTHERS = ({"positions": "relative", "max_positions": 16}, PROJECTED, *WIDE)


def make_model(**changes):
    """Every size that an axis may be split over is a multiple of eight."""
    values = {"num_heads": 8, "d_k": 4, "d_v": 4, "dropout": 0.1, "max_positions": 16}
    keys = VALUES[changes.get("architecture", "transformer")]
    return model_of(**{k: v for k, v in values.items() if k in keys} | changes)


@pytest.mark.parametrize(
    ("sizes", "shape"), [((8, 1, 1), DATA), ((2, -1, 2), ALL), ((1, 8, -1), FSDP)]
)
def test_the_sizes_multiply_to_the_devices_and_one_may_be_the_rest(sizes, shape):
    mesh = make_mesh(**dict(zip(AXES, sizes, strict=True)))
    assert mesh.axis_names == AXES == ("data", "fsdp", "tensor")
    assert mesh.devices.shape == shape


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (3, -1, 1), (-1, -1, 1), (16, 1, 1), (0, 8, 1), (0, -1, 1)]
)
def test_sizes_that_do_not_fit_are_refused_with_the_number_of_devices(sizes):
    said = "mesh.data={}, mesh.fsdp={}, mesh.tensor={} does not fit 8 devices"
    with pytest.raises(InputError, match=said.format(*sizes)):
        make_mesh(**dict(zip(AXES, sizes, strict=True)))


def test_the_gradients_norm_is_one_number_of_each_device():
    """Square matrices may be split over either dimension."""
    specs = {"hidden": P("tensor", None), "output": P(None, "tensor")}
    tree = {
        name: {"kernel": jax.device_put(x, NamedSharding(mesh_of(TENSOR), specs[name]))}
        for name, x in zip(specs, np.ones((2, 8, 8), np.float32), strict=True)
    }
    compiled = jax.jit(global_norm).lower(tree).compile()
    assert set(re.findall(r" (all-[a-z-]+)\(", compiled.as_text())) == {"all-reduce"}
    np.testing.assert_allclose(compiled(tree), 128**0.5, rtol=1e-6)


@pytest.mark.parametrize("changes", [{}, EVERYTHING, *OTHERS], ids=str)
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
    for box in jax.tree.leaves(params, is_leaf=lambda leaf: hasattr(leaf, "names")):
        assert len(box.names) == len(box.value.shape)
        names.update(box.names)
    is_convolutional = changes.get("architecture") == "convolutional"
    learned = is_convolutional or changes in (EVERYTHING, PROJECTED, *LEARNED)
    assert ("position" in names) == learned
    assert names - {None} <= LOGICAL_AXES.keys()


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        *(({}, sizes) for sizes in MESHES),
        *((changes, sizes) for changes in WIDE for sizes in (DATA, FSDP)),
        *((SSRU, sizes) for sizes in (ALL, TENSOR)),
    ],
    ids=str,
)
def test_no_matrix_nor_a_moment_of_one_is_whole_on_a_mesh(changes, sizes):
    init = init_of(make_model(**changes), OPTIMIZER, ema_decay=0.9)
    state = abstract_state(mesh_of(sizes), init)
    for path, leaf in jax.tree.leaves_with_path(state):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        part = np.prod(leaf.sharding.shard_shape(leaf.shape))
        if leaf.ndim > 1:
            assert part * np.prod(sizes) == leaf.size, name
        if name.endswith("hidden/bias"):
            assert part * sizes[2] == leaf.size


def test_state_is_born_where_it_belongs_with_the_same_values_on_every_mesh():
    float32 = jnp.dtype("float32")
    block = FeedForward(16, 32, activation="relu", dtype=float32, output_gain=1.0)

    def init():
        params = block.init(jax.random.key(5), jnp.ones((1, 1, 16)))["params"]
        return params, OPTIMIZER.init(params)

    mesh = mesh_of((1, 4, 2))
    born = born_sharded(mesh, init)
    described = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), born
    )
    assert described == abstract_state(mesh, init)
    kernel = born[0]["hidden"]["kernel"]
    assert [shard.data.shape for shard in kernel.addressable_shards] == [(4, 16)] * 8
    assert_same(born, born_sharded(mesh_of(ONE), init))


@pytest.mark.parametrize(
    ("changes", "axis", "split", "what", "size"),
    [
        ({}, "tensor", 8, "data.vocab_size", 20),
        ({}, "fsdp", 8, "model.d_model", 20),
        ({}, "tensor", 8, "model.num_heads", 6),
        ({}, "tensor", 8, "model.d_ff", 36),
        (CONVOLUTIONAL, "fsdp", 8, "model.d_model", 20),
        (RECURRENT, "fsdp", 8, "half of model.d_model", 20),
        (RECURRENT, "fsdp", 4, "half of model.d_model", 20),
        (RECURRENT | FORWARDS, "fsdp", 8, "model.d_model", 20),
    ],
)
def test_a_size_that_does_not_divide_is_refused_with_values_that_would_do(
    changes, axis, split, what, size
):
    """One sentence; each half of its advice is followed.

    Each direction of a bidirectional encoder has half of d_model.
    """
    key = what.removeprefix("half of ")

    def place(size, **axes):
        model = make_model(**changes, **{key.partition(".")[2]: size})
        mesh = make_mesh(**{"data": -1, "fsdp": 1, "tensor": 1, **axes})
        abstract_state(mesh, init_of(model, OPTIMIZER))

    with pytest.raises(InputError) as refusal:
        place(size, **{axis: split})
    said = re.fullmatch(
        rf"mesh\.{axis}={split} does not divide {what}={size}; choose "
        rf"mesh\.{axis}=(\d+), or a multiple of (\d+) such as {key}=(\d+)",
        str(refusal.value),
    )
    assert said, refusal.value
    fewer, multiple, better = map(int, said.groups())
    place(better, **{axis: split})
    place(3 * multiple, **{axis: split})
    place(size, **{axis: fewer})


@pytest.mark.parametrize("sizes", MESHES)
def test_rows_of_the_mesh_are_those_of_the_host_in_their_order(sizes):
    mesh, blocks = mesh_of(sizes), sizes[0] * sizes[1]
    assert rows_here(mesh) == Rows(tuple(range(blocks)), blocks)  # one process has all
    source, target = (np.arange(16 * n, dtype=np.int32).reshape(16, n) for n in (5, 7))
    host = Batch(source, target, -source, -target)
    for placed, mine in zip(put_batch(mesh, host), host, strict=True):
        assert_same(placed, mine)
        for shard in placed.addressable_shards:
            np.testing.assert_array_equal(shard.data, mine[shard.index])
            assert shard.data.shape == (16 // blocks, mine.shape[1])


@pytest.mark.parametrize("sizes", [None, FSDP, ALL])
def test_parameters_are_copied_whole_to_each_device_from_wherever_they_were(sizes):
    """From numpy, or from a mesh."""
    rng = np.random.default_rng(4)
    host = {"w": rng.normal(size=(16, 8)).astype(np.float32), "n": np.float32([1, 2])}
    training = mesh_of(sizes or ALL)
    specs = {"w": P("fsdp", "tensor"), "n": P()}
    split = {name: NamedSharding(training, spec) for name, spec in specs.items()}
    mesh = local_mesh()
    assert mesh.axis_names == AXES
    assert mesh.devices.flatten().tolist() == jax.local_devices()
    with on_mesh(training):
        copied = copy_to(mesh, jax.device_put(host, split) if sizes else host)
    for name, leaf in copied.items():
        assert leaf.sharding == NamedSharding(mesh, P())
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, host[name])
