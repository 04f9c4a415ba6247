"""Which programs are lowered, here for the CPU, and what is read of a compiled one."""

from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from jaxformer.accelerators.chips import parse_topology
from jaxformer.accelerators.compiler import (
    decoder_program,
    read_program,
    train_programs,
)
from jaxformer.config.sections import MeshConfig
from jaxformer.models.architectures import make_model
from jaxformer.runs.config_files import parse_config, read_config_file
from jaxformer.training.setup import make_training_setup
from tests.accelerators.answers import too_large

V5E = parse_topology("v5e:2x2")
CONFIG = parse_config(read_config_file("demo"))
SIZES = {
    "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 16,
    "num_heads": 2, "d_k": 8, "d_v": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    config = replace(CONFIG.model, **SIZES)
    return make_model(
        config, vocab_size=40, rematerialise=False, activation_dtype=config.dtype
    )


@pytest.mark.parametrize(
    ("many", "names"), [(False, {"update"}), (True, {"microbatch", "optimizer"})]
)
def test_an_update_of_several_microbatches_is_two_programs(model, many, names):
    config = replace(CONFIG, mesh=MeshConfig(data=2, fsdp=2, tensor=1))
    setup = make_training_setup(config, model, jax.devices()[:4])
    programs = train_programs(setup, (4, 8, 8), many)
    assert programs.keys() == names
    for program in programs.values():
        assert "num_partitions = 4" in program.as_text()


def test_a_step_of_the_decoder_is_that_of_one_device(model):
    """The demo decodes 4,096 tokens at a time: 64 sources of 64 tokens."""
    sentences, lowered = decoder_program(CONFIG, model, jax.devices()[0])
    assert sentences == 64
    assert "64x64xi32" in lowered.as_text()


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of "
         "15.75G hbm. Exceeded hbm capacity by 4.75G.", 20.5 * 2**30),
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for "
         "HLO temporaries (1.5T) exceeds available HBM (15.75G).", 1.5 * 2**40),
    ],
)  # fmt: skip
def test_a_program_that_does_not_fit_is_an_answer(message, needed):
    error = jax.errors.JaxRuntimeError(message)
    lowered = mock.Mock(compile=mock.Mock(side_effect=error))
    assert read_program(lowered, V5E) == too_large(needed)


def test_other_errors_of_a_compiler_are_raised():
    error = jax.errors.JaxRuntimeError("INTERNAL: 20.50G")
    lowered = mock.Mock(compile=mock.Mock(side_effect=error))
    with pytest.raises(jax.errors.JaxRuntimeError):
        read_program(lowered, V5E)


def test_memory_and_float64_are_read():
    numbers = jax.ShapeDtypeStruct((1024,), jnp.float32)
    found = read_program(jax.jit(lambda x: x + 1).lower(numbers), V5E)
    assert found.memory[::2] == (4096, 4096)
    assert found.has_float64 is False
    with jax.enable_x64(True):
        double = jax.ShapeDtypeStruct((2,), jnp.float64)
        lowered = jax.jit(lambda x: x * x).lower(double)
    assert read_program(lowered, V5E).has_float64 is True
