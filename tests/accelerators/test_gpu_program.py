"""The program of an update, compiled for an H100 that is not here.

Needs jax's plugin for CUDA and cuDNN, without a GPU: see docs/accelerators.md.
"""

import importlib.util

import pytest

from jaxformer.accelerators.chips import parse_topology
from jaxformer.accelerators.estimate import Work, compile_programs, estimate
from jaxformer.models.architectures import make_model
from jaxformer.runs.config_files import parse_config, read_config_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("jax_cuda13_plugin") is None,
        reason="needs jax_cuda13_plugin",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("nvidia") is None
        or importlib.util.find_spec("nvidia.cudnn") is None,
        reason="needs nvidia-cudnn-cu13",
    ),
]
V, SHAPE = 37000, (96, 256, 256)
H100 = parse_topology("h100")


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("wmt_base", 22), pytest.param("wmt_big", 40, marks=pytest.mark.nightly)],
)
def test_an_update_is_lean(name, gigabytes):
    """Bytes that are moved outside products and attention, and kernels, are few."""
    config = parse_config(read_config_file(name))
    model = make_model(config.model, vocab_size=V, rematerialise=False)
    tokens = SHAPE[0] * SHAPE[2]
    work = Work(config, V, V, SHAPE, 1, model.flops(*SHAPE), tokens)
    figures = estimate(H100, work, compile_programs(H100, work, decode=False))
    assert figures["has_float64"] is False
    assert figures["kinds"]["others"]["bytes"] <= gigabytes * 1e9
    assert figures["kinds"]["all"]["kernels"] <= 900
    assert figures["kinds"]["attention"]["kernels"] == 36
    of_xla = [name for name in figures["kernels"] if "triton_nested_gemm" in name]
    assert not of_xla  # products
