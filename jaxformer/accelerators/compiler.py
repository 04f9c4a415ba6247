"""Compile the programs of a run for a topology that this machine does not have.

`jaxformer.accelerators.estimate` starts this module as a process of its own, with the
compiler's environment, so that the calling process stays on its own devices. It reads
pickled arguments of `compile_run` and writes its result. Nothing is executed.
"""

import math
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from jaxformer.accelerators.chips import KNOWN, Topology
from jaxformer.accelerators.estimate import (
    UNKNOWN,
    Compiled,
    Exchange,
    ProgramFacts,
    Work,
)
from jaxformer.accelerators.hlo import Program
from jaxformer.accelerators.kernels import GpuProgram
from jaxformer.config.sections import Config
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.shapes import Shapes
from jaxformer.decoding.slots import Scorer, SlotPrograms
from jaxformer.models.architectures import make_model
from jaxformer.models.sequence_model import Model
from jaxformer.system.errors import InputError
from jaxformer.training import sharding
from jaxformer.training.memory import abstract_batch, memory_of
from jaxformer.training.setup import TrainingSetup, make_training_setup

DECODED = 64  # tokens of a source, and of a translation at most, in the decoder's step
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def devices_of(topology: Topology) -> list[jax.Device]:
    """Describe the devices of a topology. Raises InputError if there is none such."""
    if topology.chip.is_tpu:
        options = {"platform": "tpu", "topology_name": topology.name}
        if topology.devices == 1:
            options["chips_per_host_bounds"] = [1, 1, 1]
    else:
        options = {
            "platform": "cuda",
            "topology_name": "",
            "target_config": topology.chip.target_config,
            "topology": f"1x1x{topology.devices}",
        }
    try:
        return list(topologies.get_topology_desc(**options).devices)
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise InputError(
            f"the compiler has no topology {topology.name} ({error}); {KNOWN}"
        ) from error


def train_programs(
    setup: TrainingSetup, shape: tuple[int, int, int], many: bool
) -> dict[str, jax.stages.Lowered]:
    """Lower an update or, if it has `many` microbatches, the programs that make it."""
    batch, lower = abstract_batch(setup.mesh, shape), setup.train_step.lower
    with sharding.on_mesh(setup.mesh):
        state = sharding.abstract_state(setup.mesh, setup.init)
        if not many:
            return {"update": lower(state, batch, accumulate=False)}
        return {
            "microbatch": lower(state, batch, accumulate=True),
            "optimizer": lower(state, None, accumulate=True),
        }


def decoder_program(
    config: Config, model: Model, device: jax.Device
) -> tuple[int, jax.stages.Lowered]:
    """Lower the engine's steps on one device; returns also the number of sentences."""
    mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1, devices=[device])
    scorer, rows = Scorer([model]), sharding.batch_sharding(mesh)
    options = SearchOptions(
        beam_size=config.decoding.beam_size, alpha=config.decoding.alpha
    )
    programs = SlotPrograms(scorer, options, rows)
    sentences = Shapes(config.decoding.batch_tokens, 1).most_slots(DECODED)

    def array(dtype: jnp.dtype, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows if shape else None)

    def placed(function: Callable, *arguments: object) -> object:
        found = jax.eval_shape(function, *arguments)
        return jax.tree.map(lambda leaf: array(leaf.dtype, *leaf.shape), found)

    with jax.set_mesh(mesh):
        params = sharding.abstract_state(mesh, lambda: model.init(jax.random.key(0)))
        weights = placed(scorer.weights, [params])
        lengths = array(jnp.int32, sentences)
        requests = Requests(
            max_lengths=lengths, min_lengths=lengths, unscored=lengths,
            prefixes=array(jnp.int32, sentences, DECODED),
            seeds=array(jnp.uint32, sentences),
        )  # fmt: skip
        source = array(jnp.int32, sentences, DECODED)
        memory = placed(programs.encode, weights, source)
        state = placed(lambda *given: programs.begin(*given, DECODED), memory, requests)
        number = array(jnp.int32)
        return sentences, programs.advance.lower(weights, state, number, number)


def read_program(lowered: jax.stages.Lowered, topology: Topology) -> ProgramFacts:
    """Compile a program and return what its text and its compiler say of it."""
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        used = re.search(r"([\d.]+)([KMGT])\b", str(error))  # what the chip has is next
        if "RESOURCE_EXHAUSTED" not in str(error) or used is None:
            raise
        needed = int(float(used[1]) * _UNITS[used[2]])
        return ProgramFacts(needed, UNKNOWN, {}, {}, Counter(), False)
    memory, text = memory_of(compiled), compiled.as_text()
    chip, devices = topology.chip, topology.devices
    program = Program(text, chip.clock) if chip.is_tpu else GpuProgram(text, chip)
    exchanged = {}
    for each in program.collectives():
        key = each.kind, "+".join(sorted({dtype for dtype, _ in each.arrays}))
        exchanged[key] = exchanged.get(key, Exchange()).plus(
            each.times, round(each.sent(devices)), max(map(math.prod, each.shapes))
        )
    return ProgramFacts(
        needed=sum(memory),
        memory=memory,
        parts=program.parts(),
        collectives=exchanged,
        kernels=program.kernels(),
        has_float64="f64[" in text,
    )


def compile_run(topology: Topology, work: Work, decode: bool) -> Compiled:
    """Compile the programs of a run; with `decode` also a step of the search."""
    config = work.config
    model = make_model(
        config.model,
        vocab_size=work.vocab_size,
        source_vocab_size=work.source_vocab_size,
        rematerialise=config.training.rematerialise,
        activation_dtype=config.model.dtype,
    )
    devices = devices_of(topology)
    setup = make_training_setup(config, model, devices)
    mesh = setup.mesh.shape
    blocks = mesh["data"] * mesh["fsdp"]
    rows, *lengths = work.shape
    shape = (-(-rows // blocks) * blocks, *lengths)  # filled up to divide evenly
    lowered = train_programs(setup, shape, work.microbatches > 1)
    programs = {name: read_program(each, topology) for name, each in lowered.items()}
    found = Compiled(dict(mesh), shape, programs)
    if decode:
        sentences, step = decoder_program(config, model, devices[0])
        decoder = read_program(step, topology)
        found = found._replace(decoder=decoder, sentences=sentences)
    return found


def main() -> None:
    """Answer the request on standard input, also with an InputError."""
    try:
        found = compile_run(*pickle.load(sys.stdin.buffer))
    except InputError as error:
        found = error
    pickle.dump(found, sys.stdout.buffer)


if __name__ == "__main__":
    main()
