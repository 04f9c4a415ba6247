"""cuDNN's kernel for equation 1: when it is used, and that it computes the same."""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from jaxformer.models import attention
from jaxformer.models.attention import dot_product_attention
from jaxformer.models.masks import causal_mask, segment_mask
from tests.models.test_transformer import BATCH
from tests.models.tiny import model_of, params_of


def pretend_gpus(monkeypatch, capability=(9, 0), devices=1):
    monkeypatch.setattr(attention, "cuda_capability", lambda: capability)
    monkeypatch.setattr(jax, "device_count", lambda: devices)


@pytest.mark.parametrize(
    ("fits", "sizes"),
    [
        *((True, sizes) for sizes in (
            {}, {"dtypes": ("float16",) * 3}, {"d_k": 128, "d_v": 128},
            {"d_k": 8, "d_v": 8}, {"capability": (8, 0)}, {"capability": (12, 1)},
        )),
        *((False, sizes) for sizes in (
            {"capability": None}, {"capability": (7, 5)}, {"devices": 2}, {"t": 15},
            {"dtypes": ("float32",) * 3}, {"d_k": 136, "d_v": 136}, {"s": 31},
            {"dtypes": ("bfloat16", "bfloat16", "float16")}, {"d_k": 20, "d_v": 20},
            {"d_v": 32},
        )),
    ],
    ids=str,
)  # fmt: skip
def test_what_fits(monkeypatch, fits, sizes):
    defaults = {
        "t": 16, "s": 32, "d_k": 64, "d_v": 64, "dtypes": ("bfloat16",) * 3,
        "capability": (9, 0), "devices": 1,
    }  # fmt: skip
    t, s, d_k, d_v, dtypes, capability, devices = (defaults | sizes).values()
    shapes = (2, t, 4, d_k), (2, s, 4, d_k), (2, s, 4, d_v)
    qkv = map(jax.ShapeDtypeStruct, shapes, map(jnp.dtype, dtypes))
    pretend_gpus(monkeypatch, capability, devices)
    assert attention.fused_attention_fits(*qkv) == fits


def test_the_capability_is_that_of_a_cuda_device():
    assert attention.cuda_capability() is None
    client = SimpleNamespace(platform_version="PJRT C API\ncuda 12090")
    card = SimpleNamespace(platform="gpu", client=client, compute_capability="12.0")
    with mock.patch.object(jax, "local_devices", return_value=[card]):
        assert attention.cuda_capability() == (12, 0)
        client.platform_version = "rocm 6.2"
        assert attention.cuda_capability() is None


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

    ours, theirs = run(dot_product_attention), run(jax.nn.dot_product_attention)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-6), ours, theirs)


def test_a_program_for_cuda_has_the_kernel_if_it_is_allowed_and_fits(monkeypatch):
    """In the decoder of each of two layers; sources of five pieces do not fit.

    A machine without a GPU makes the program of the gradient. JAX has no public way to
    lower for a kernel that is not installed.
    """
    version = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(cudnn, "cuda_versions", version)

    def lowered_for_cuda(config, devices):
        pretend_gpus(monkeypatch, devices=devices)
        model = model_of(**config)
        gradient = jax.grad(lambda params: model.logits(params, BATCH).var())
        traced = jax.jit(gradient).trace(params_of(model))
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    half = {"layers": 2, "dtype": "bfloat16"}
    allowed = {**half, "fused_attention": True}
    text = lowered_for_cuda(allowed, 1)
    assert text.count("custom_call @__cudnn$fmhaScaleBiasSoftmax(") == 2
    assert text.count("custom_call @__cudnn$fmhaScaleBiasSoftmaxBackward(") == 2
    assert "fmha_scale\\22: 0.35355" in text  # 1 / sqrt(8)
    for config, devices in ((half, 1), (allowed, 2), ({"layers": 2}, 1)):
        assert "cudnn" not in lowered_for_cuda(config, devices)
