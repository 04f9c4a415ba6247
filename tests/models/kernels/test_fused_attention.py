"""cuDNN's kernel for equation 1: when it is used, and that it computes the same."""

import contextlib
import importlib.util
import re
from functools import partial
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.batch import Batch
from jaxformer.models.kernels.attention import attend
from jaxformer.models.kernels.fused_attention import (
    cuda_capability,
    fused_attention,
    fused_attention_fits,
)
from jaxformer.models.masks import causal_mask, segment_mask
from jaxformer.training.sharding import AXES, AXIS_RULES, on_mesh
from tests.models.test_transformer import BATCH
from tests.models.tiny import model_of, shapes_of


def mesh_of(kind="NVIDIA H200", platform="gpu", **sizes):
    """A mesh of devices that this machine lacks."""
    sizes = dict.fromkeys(AXES, 1) | sizes
    return AbstractMesh(
        tuple(sizes.values()),
        tuple(sizes),
        (AxisType.Auto,) * len(sizes),
        abstract_device=AbstractDevice(kind, None, platform),
    )


@contextlib.contextmanager
def compiling_for(mesh, rules=AXIS_RULES):
    with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(rules):
        yield


@pytest.mark.parametrize(
    ("fits", "changes"),
    [
        *((True, changes) for changes in (
            {}, {"dtypes": ("float16",) * 3}, {"d_k": 128, "d_v": 128},
            {"d_k": 8, "d_v": 8}, {"mesh": mesh_of(data=8)},
            {"mesh": mesh_of(fsdp=2, data=2, tensor=2)}, {"mesh": mesh_of(tensor=4)},
            {"mesh": mesh_of(), "rules": ()}, {"t": 15}, {"s": 31},
        )),
        *((False, changes) for changes in (
            {"mesh": mesh_of("AMD Instinct MI300X")}, {"mesh": mesh_of("cpu", "cpu")},
            {"mesh": mesh_of("TPU v5 lite", "tpu")}, {"mesh": AbstractMesh((), ())},
            {"mesh": mesh_of(data=3)}, {"mesh": mesh_of(tensor=8)},
            {"mesh": mesh_of(data=2), "rules": ()},
            {"dtypes": ("float32",) * 3}, {"d_k": 136, "d_v": 136},
            {"dtypes": ("bfloat16", "bfloat16", "float16")}, {"d_k": 20, "d_v": 20},
            {"d_v": 32},
        )),
    ],
    ids=str,
)  # fmt: skip
def test_what_fits(fits, changes):
    defaults = {
        "t": 16, "s": 32, "d_k": 64, "d_v": 64, "dtypes": ("bfloat16",) * 3,
        "mesh": mesh_of(), "rules": AXIS_RULES,
    }  # fmt: skip
    t, s, d_k, d_v, dtypes, mesh, rules = (defaults | changes).values()
    shapes = (8, t, 4, d_k), (8, s, 4, d_k), (8, s, 4, d_v)
    qkv = map(jnp.zeros, shapes, map(jnp.dtype, dtypes))
    with compiling_for(mesh, rules):
        assert fused_attention_fits(*qkv) == fits


@pytest.mark.parametrize(
    ("name", "capability"),
    [("NVIDIA B200", "10.0"), ("NVIDIA A100", "8.0"), ("NVIDIA TITAN V", "7.0")],
)
def test_the_capability_is_that_of_the_devices_here(name, capability):
    card = SimpleNamespace(device_kind=name, compute_capability=capability)
    device = AbstractDevice(name, None, "gpu")
    with mock.patch.object(jax, "local_devices", return_value=[card]):
        found = cuda_capability(device)
    assert found == tuple(map(int, capability.split(".")))


@pytest.mark.parametrize("count", [1, 2])
def test_without_a_mesh_it_is_the_only_device(count):
    cards = [AbstractDevice("NVIDIA H200", None, "gpu")] * count
    qkv = [jnp.zeros((2, 4, 1, 8), jnp.bfloat16)] * 3
    with (
        mock.patch.object(jax, "devices", return_value=cards),
        mock.patch.object(jax, "device_count", return_value=count),
    ):
        assert fused_attention_fits(*qkv) == (count == 1)


SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
MASKS = {
    "none": None,
    "causal": causal_mask(6),
    "padding": segment_mask(SEGMENTS, SEGMENTS) & causal_mask(6),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_call_without_the_kernel_has_our_values_and_gradients(name):
    """Scale, order of axes and mask are right; a query without keys averages."""
    draw = np.random.default_rng(0)
    *qkv, cotangent = draw.normal(size=(4, 2, 6, 3, 8)).astype(np.float32)

    def run(function):
        heads, pull = jax.vjp(lambda *qkv: function(*qkv, mask=MASKS[name]), *qkv)
        return heads, *pull(cotangent)

    ours, theirs = run(attend), run(jax.nn.dot_product_attention)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-6), ours, theirs)


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(("t", "s"), [(5, 6), (6, 5), (5, 5), (6, 6)])
def test_odd_lengths_are_padded_for_the_kernel(t, s, has_mask):
    """The kernel gets even ones; values and gradients are those without it."""
    draw, shapes, plain = np.random.default_rng(0), [], jax.nn.dot_product_attention
    query, cotangent = draw.normal(size=(2, 2, t, 3, 8)).astype(np.float32)
    key, value = draw.normal(size=(2, 2, s, 3, 8)).astype(np.float32)
    mask = jnp.asarray(draw.random((2, 1, t, s)) < 0.7).at[..., 0].set(True)
    mask = mask if has_mask else None

    def kernel(*qkv, mask, implementation):
        shapes.extend(each.shape[1] for each in qkv)
        return plain(*qkv, mask=mask)

    with mock.patch.object(jax.nn, "dot_product_attention", kernel):
        ours, pull = jax.vjp(
            lambda *qkv: fused_attention(*qkv, mask), query, key, value
        )
    theirs, their_pull = jax.vjp(lambda *qkv: plain(*qkv, mask=mask), query, key, value)
    assert not any(length % 2 for length in shapes)
    pairs = (ours, *pull(cotangent)), (theirs, *their_pull(cotangent))
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-6), *pairs)


def test_no_query_of_the_kernel_is_without_keys():
    """The others see what they saw. cuDNN's gradient of such a query is NaN."""
    seen = []

    def kernel(query, key, value, *, mask, implementation):
        seen.append(np.asarray(mask))
        return query

    mask = MASKS["padding"]
    with mock.patch.object(jax.nn, "dot_product_attention", kernel):
        fused_attention(*[jnp.zeros((2, 6, 3, 8))] * 3, mask)
    is_seeing = np.asarray(mask.any(-1, keepdims=True))
    assert not is_seeing.all()
    np.testing.assert_array_equal(seen[0], np.where(is_seeing, mask, True))


HALF = {"layers": 2, "dtype": "bfloat16", "activation_dtype": "bfloat16"}
ALLOWED = {**HALF, "fused_attention": True}


@pytest.mark.parametrize(
    ("config", "sizes", "calls"),
    [
        (ALLOWED, {}, 6),
        (ALLOWED, {"data": 2, "fsdp": 2}, 6),
        (ALLOWED, {"tensor": 2}, 6),
        (ALLOWED, None, 6),
        (HALF, {}, 0),
        ({**ALLOWED, "dtype": "float32", "activation_dtype": None}, {}, 0),
    ],
    ids=str,
)
def test_a_program_for_cuda_has_the_kernel_if_it_is_allowed_and_fits(
    monkeypatch, config, sizes, calls
):
    """In three attentions of each of two layers; a source has five pieces.

    A machine without a GPU makes the program of the gradient. JAX has no public way to
    lower for a kernel that is not installed.
    """
    version = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(cudnn, "cuda_versions", version)
    model = model_of(**config)
    batch = Batch(*(np.tile(each, (2, 1)) for each in BATCH))
    gradient = jax.grad(lambda params, batch: model.logits(params, batch).var())
    params = shapes_of(model)
    if sizes is None:  # no mesh, one device
        context = contextlib.nullcontext()
        cards = [AbstractDevice("NVIDIA H200", None, "gpu")]
        monkeypatch.setattr(jax, "devices", lambda: cards)
        monkeypatch.setattr(jax, "device_count", lambda: 1)
    else:
        context = compiling_for(mesh_of(**sizes))
    with context:
        traced = jax.jit(gradient).trace(params, batch)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__cudnn$fmhaScaleBiasSoftmax(") == calls
    assert text.count("custom_call @__cudnn$fmhaScaleBiasSoftmaxBackward(") == calls
    assert ("fmha_scale\\22: 0.35355" in text) == bool(calls)  # 1 / sqrt(8)


H200 = """
gpu_device_info {
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  cuda_compute_capability { major: 9 }
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 l2_cache_size: 52428800
  device_memory_size: 141000000000 memory_bandwidth: 4800000000000
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""
EIGHT = {"data": 2, "fsdp": 2, "tensor": 2}
has_compiler = any(
    importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)
)


@pytest.fixture
def not_cached():
    """Write no compiled program to the cache: only a device can read it again."""
    key = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, key)
    jax.config.update(key, 1e9)
    yield
    jax.config.update(key, before)


@pytest.mark.skipif(not has_compiler, reason="pip install 'jax[cuda12]' compiles it")
@pytest.mark.parametrize(
    ("sizes", "in_shard_map"), [({}, False), (EIGHT, False), (EIGHT, True)], ids=str
)
def test_the_compiled_program_stores_no_scores(not_cached, sizes, in_shard_map):
    """Forward and backward for one H200 and for eight, without a GPU.

    Rows may be those of the device already, in a `shard_map` around attention.
    """
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="", target_config=H200, topology="1x1x8"
    )
    shape = tuple((dict.fromkeys(AXES, 1) | sizes).values())
    devices = np.array(topology.devices[: np.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, AXES, axis_types=(AxisType.Auto,) * 3)
    rows, b, t, s, h, k = ("data", "fsdp"), 8, 128, 96, 4, 64

    def array(dtype, *sizes, axes):
        sharding = NamedSharding(mesh, P(*axes))
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)

    def heads(length):
        return array(jnp.bfloat16, b, length, h, k, axes=(rows, None, "tensor"))

    def gradients(query, key, value, cotangent, *segments):
        def attend(*qkv):
            return attend(*qkv, segment_mask(*segments), may_fuse=True)

        output, pull = jax.vjp(attend, query, key, value)
        return output, pull(cotangent)

    if in_shard_map:
        gradients = jax.shard_map(
            gradients, in_specs=P(rows), out_specs=P(rows), axis_names=set(rows),
            mesh=mesh,
        )  # fmt: skip
    segments = (array(jnp.int32, b, length, axes=(rows,)) for length in (t, s))
    with on_mesh(mesh):
        lowered = jax.jit(gradients).lower(
            heads(t), heads(s), heads(s), heads(t), *segments
        )
        text = lowered.compile().as_text()
    assert text.count('"__cudnn$fmhaScaleBiasSoftmax"') == 1
    assert text.count('"__cudnn$fmhaScaleBiasSoftmaxBackward"') == 1
    own = f"{b // shape[0] // shape[1]},{h // shape[2]}"
    assert f"bf16[{own},{t},{k}]" in text
    assert f"[{own},{t},{s}]" not in text
    assert not re.search("all-(gather|reduce|to-all)|collective-permute", text)
