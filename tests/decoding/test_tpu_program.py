"""The programs of decoding, compiled for TPUs that are not here; nothing is run.

Needs libtpu, without a TPU: `pip install 'jaxformer[tpu]'`.
"""

import dataclasses
import functools
import importlib.util
import math
import os
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.models import Sizes
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.search import SearchState
from jaxformer.decoding.slots import Scorer, SlotPrograms
from jaxformer.training.sharding import AXES, abstract_state, batch_sharding

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs libtpu"
    ),
]
CLOCK, MEMORY_RATE = 1.5e9, 819e9  # of a v5e: cycles and bytes a second
SLOTS, LENGTH = 64, 64  # of each device; source tokens, and steps of the ring
BASE = Sizes(dtype="bfloat16")
HOST = ["infeed", "outfeed", "send", "recv"]


@pytest.fixture(scope="module", autouse=True)
def _environment():
    """Several processes may load libtpu; it asks no service, and keeps no programs."""
    environment = {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    with mock.patch.dict(os.environ, environment):
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        yield
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


def split_by_tensor(leaf):
    """A parameter as in training, but whole on each device of `data`."""
    spec = PartitionSpec(
        *(axis if axis == "tensor" else None for axis in leaf.sharding.spec)
    )
    sharding = NamedSharding(leaf.sharding.mesh, spec)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


class Programs:
    """The programs of a search and their arguments, on devices of a v5e:2x4."""

    def __init__(self, sizes: Sizes, beam_size: int, mesh=(1, 1, 1)) -> None:
        topology = topologies.get_topology_desc("v5e:2x4", "tpu")
        devices = np.array(topology.devices[: math.prod(mesh)]).reshape(mesh)
        mesh = Mesh(devices, AXES, axis_types=(AxisType.Auto,) * 3)
        self.rows, self.whole = (
            batch_sharding(mesh),
            NamedSharding(mesh, PartitionSpec()),
        )
        self.slots = SLOTS * mesh.shape["data"]
        options = SearchOptions(beam_size=beam_size, alpha=0.6)
        model = sizes.model(activation_dtype=sizes.dtype)
        scorer = Scorer([model])
        self.programs = SlotPrograms(scorer, options, self.rows)
        init = functools.partial(model.init, jax.random.key(0))
        params = jax.tree.map(split_by_tensor, abstract_state(mesh, init))
        arrange = jax.jit(scorer.weights).lower([params]).compile()
        self.weights = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding
            ),
            arrange.out_info, arrange.output_shardings,
        )  # fmt: skip
        memory, requests = self.encoded(self.slots)
        state = jax.eval_shape(
            lambda *given: self.programs.begin(*given, LENGTH), memory, requests
        )
        self.state = jax.tree.map(lambda x: self.array(x.dtype, *x.shape), state)

    def array(self, dtype, *shape):
        where = self.rows if shape else self.whole
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    def encoded(self, rows: int):
        """The memory and the requests of `rows` sources."""
        lengths = self.array(jnp.int32, rows)
        tokens = self.array(jnp.int32, rows, LENGTH)
        seeds = self.array(jnp.uint32, rows)
        memory = jax.eval_shape(self.programs.encode, self.weights, tokens)
        memory = jax.tree.map(lambda x: self.array(x.dtype, *x.shape), memory)
        return memory, Requests(lengths, lengths, tokens, lengths, seeds)

    def advance(self) -> str:
        number = self.array(jnp.int32)
        lower = self.programs.advance.lower
        return lower(self.weights, self.state, number, number).compile().as_text()

    def insert(self) -> str:
        rows = self.slots // 8
        lower, indices = self.programs.insert.lower, self.array(jnp.int32, rows)
        return lower(self.state, indices, *self.encoded(rows)).compile().as_text()

    def encode(self) -> str:
        tokens = self.array(jnp.int32, self.slots // 8, LENGTH)
        return self.programs.encode.lower(self.weights, tokens).compile().as_text()

    def least_seconds(self) -> float:
        """The time to read once what a step must read."""
        (weights,), (memory, cache) = self.weights, self.state.cache
        layers = [layer | {"cross_memory": None} for layer in weights.layers]
        read = jax.tree.leaves((layers, weights.embedding, memory, cache))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in read) / MEMORY_RATE


def instructions(text: str) -> list[tuple[str, int]]:
    """The opcode of each instruction and the size of its largest result, in numbers."""
    lines = re.findall(r"^ +(?:ROOT )?%[\w.\-]+ = (.*?) ([a-z][\w\-]*)\(", text, re.M)
    return [
        (
            opcode,
            max(
                math.prod(map(int, filter(None, dims.split(","))))
                for dims in re.findall(r"\[([\d,]*)\]", result) or [""]
            ),
        )
        for result, opcode in lines
    ]


def step_of(text: str) -> str:
    """The computation of one step: the body of the program's loop."""
    body = re.search(r" while\(.*body=%?([\w.\-]+)", text)[1]
    return re.search(rf"^%?{re.escape(body)} \(.*?^}}", text, re.M | re.S)[0]


def assert_all_on_device(text: str) -> None:
    opcodes = {opcode for opcode, _ in instructions(text)}
    assert {"fusion", "parameter"} <= opcodes
    assert not opcodes & {name + end for name in HOST for end in ("", "-start")}
    assert "MoveToHost" not in text


def assert_not_copied(text: str, state: SearchState) -> None:
    """No array of the cache is copied or transposed."""
    found = instructions(text)
    moved = {size for opcode, size in found if opcode in ("copy", "transpose")}
    leaves = jax.tree.leaves(state.cache)
    assert not moved & {leaf.size for leaf in leaves if leaf.dtype == jnp.bfloat16}


@pytest.mark.parametrize(("beam_size", "most"), [(4, 1.35), (1, 1.5)])
def test_a_step_is_near_the_time_to_read_its_memory(beam_size, most):
    """By the compiler's cycles, without waits for memory; `most` is just above them.

    Of a greedy search, libtpu 0.0.50 copies the values into on-chip memory before the
    loop, and back after it.
    """
    programs = Programs(BASE, beam_size)
    text = programs.advance()
    step = step_of(text)
    assert_all_on_device(text)
    assert_not_copied(step, programs.state)
    assert " conditional(" not in text  # which `sum` would count twice
    # libtpu 0.0.42 has no estimate for writing a step's keys and values.
    others = re.sub(r'^.*/dynamic_update_slice".*$', "", step, flags=re.M)
    cycles = sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', others)))
    assert 1 < cycles / CLOCK / programs.least_seconds() < most


def test_inserting_copies_nothing_large():
    programs = Programs(dataclasses.replace(BASE, layers=2), 4)
    for text in (programs.encode(), programs.insert()):
        assert_all_on_device(text)
        assert_not_copied(text, programs.state)


def test_a_step_with_split_parameters_gathers_no_table():
    """Rows are split over `data`, parameters over `tensor` as in training."""
    sizes = dataclasses.replace(BASE, layers=1)
    text = Programs(sizes, 4, mesh=(2, 1, 4)).advance()
    assert "all-reduce" in text
    assert f"bf16[{sizes.vocabulary // 4},{sizes.d_model}]" in text
    assert f"[{sizes.vocabulary},{sizes.d_model}]" not in text
