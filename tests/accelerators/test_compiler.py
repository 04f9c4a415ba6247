"""The programs of a tiny run, compiled for accelerators that are not here.

Needs libtpu, without a TPU, and for GPUs the compiler of jaxformer[cuda].
"""

import functools
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from jaxformer.accelerators.chips import parse_topology
from jaxformer.accelerators.estimate import (
    Work,
    compile_programs,
    estimate,
    estimate_decoder,
)
from jaxformer.config.sections import MeshConfig
from jaxformer.models.architectures import make_model
from jaxformer.runs.config_files import parse_config, read_config_file

pytestmark = pytest.mark.slow


def needs(module):
    """Skip a test where this compiler is not installed."""
    is_missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(is_missing, reason=f"needs {module}")


TPU, GPU = needs("libtpu"), needs("jax_cuda13_plugin")
V, D, F, ROWS, LENGTH = 1032, 256, 512, 16, 128
LARGE = (32, 512, 512)  # whose scores do not fit the memory on a chip of a v5p
SIZES = {
    "encoder_layers": 1, "decoder_layers": 1, "d_model": D, "d_ff": F, "num_heads": 4,
}  # fmt: skip
KERNELS = 3 * 4 * D * D + 2 * 2 * D * F  # three attentions, two feed-forward layers
PARAMETERS = V * D + KERNELS + 2 * (F + D) + 5 * 2 * D  # biases and five norms
V5E, V5P = parse_topology("v5e:2x2"), parse_topology("v5p:2x2x1")
DATA, FSDP, BOTH, TENSOR = (4, 1, 1), (1, 4, 1), (2, 2, 1), (2, 1, 2)


@functools.cache
def figures(topology, sizes):
    """Of an update on a mesh, and of a step of the decoder."""
    config = parse_config(read_config_file("wmt_base"))
    config = replace(
        config,
        model=replace(config.model, **SIZES),
        mesh=MeshConfig(**dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))),
    )
    model = make_model(config.model, vocab_size=V, rematerialise=False)
    shape = (ROWS, LENGTH, LENGTH) if topology is V5E else LARGE
    work = Work(config, V, V, shape, 1, model.flops(*shape), math.prod(shape[:2]))
    decode = (topology, sizes) == (V5E, DATA)
    answer = compile_programs(topology, work, decode=decode)
    step = answer.sentences, answer.decoder
    decoder = answer.decoder and estimate_decoder(topology, *step)
    return estimate(topology, work, answer), decoder


@TPU
@pytest.mark.parametrize(
    ("topology", "sizes", "share"),
    [
        (V5E, DATA, 0.06), (V5E, FSDP, 0.06), (V5E, BOTH, 0.057), (V5E, TENSOR, 0.043),
        (V5P, DATA, 0.116),
    ],
    ids=["data=4", "fsdp=4", "data=2,fsdp=2", "data=2,tensor=2", "v5p"],
)  # fmt: skip
def test_an_update_is_lean_on_every_mesh(topology, sizes, share):
    """Parameters are gathered once, and gradients are summed once.

    A device sends 3/4 of each: kernels in bfloat16, the rest in float32; with tensor
    also activations. Aligning shares to tiles may add 1 %. The bounds of `share`, that
    of the peak, are just below what was found.
    """
    found, _ = figures(topology, sizes)
    *_, tensor = sizes
    assert found["has_float64"] is False
    assert found["fits"] is True
    assert found["share_of_peak"] > share
    largest = {}  # array, by kind
    for each in found["collectives"]:
        kind = each["kind"]
        largest[kind] = max(largest.get(kind, 0), each["largest"])
    # Shares of the embedding are no whole tiles of the chip, so parts of them move.
    allowed = {"all-reduce", "all-gather", "reduce-scatter", "collective-permute"}
    assert largest.keys() <= allowed
    if tensor == 1:
        assert found["collective_bytes"] < 1.01 * 3 / 4 * (8 * PARAMETERS - 2 * KERNELS)
        assert largest["all-reduce"] <= F  # vectors: a matrix is scattered
    # What `tensor` splits stays split, first of all the embedding.
    assert largest["all-gather"] == V * D // tensor


@TPU
def test_a_step_of_the_decoder_is_estimated():
    _, found = figures(V5E, DATA)
    assert found["has_float64"] is False
    assert found["sentences"] == 64
    ratio = found["estimated_seconds_per_step"] / found["seconds_to_read_memory"]
    assert 1 < ratio < 10


COMMAND = (
    "--mode=check", "--config=demo",
    "--config.model.encoder_layers=1", "--config.model.decoder_layers=1",
)  # fmt: skip


@pytest.mark.parametrize(
    "topology", [pytest.param("v5e:1x1", marks=TPU), pytest.param("h100", marks=GPU)]
)
def test_the_command_needs_no_network(topology):
    """It runs in a namespace without one, and says that nothing was run."""
    isolate = ["unshare", "--net", "--map-root-user"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*isolate, "true"], capture_output=True).returncode
    ):
        pytest.skip("this machine makes no network namespaces")
    done = subprocess.run(
        [*isolate, sys.executable, "-m", "jaxformer.main", *COMMAND,
         f"--topology={topology}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nothing was run" in done.stderr
    assert "libtpu" not in done.stderr  # nor the noise of the library
    found = json.loads(done.stdout)
    assert found["topology"] == topology
    assert found["collective_bytes"] == 0
    assert 0 < found["share_of_peak"] < 1
    assert found["decoder"]["estimated_seconds_per_step"] > 0
    if found["is_lower_bound"]:
        kinds = found["kinds"]
        assert kinds["all"]["kernels"] == sum(found["kernels"].values())
        assert kinds["products"]["bytes"] > 0
