"""The bytes and the operations of a train step, and the largest microbatch."""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxformer.batch import Batch
from jaxformer.corpus.plan import Shape
from jaxformer.runs.run import largest_shape
from jaxformer.system.errors import InputError
from jaxformer.training import memory
from jaxformer.training.sharding import (
    abstract_state,
    born_sharded,
    on_mesh,
    put_batch,
)
from tests.models.tiny import model_of
from tests.training.setups import (
    init_of,
    mesh_of,
    optimizer_of,
    random_batch,
    step_of,
)

SIZES = {  # matrices that outweigh the rest
    "vocab_size": 512, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 32,
    "d_v": 32,
}  # fmt: skip
CONVOLUTIONAL = {"architecture": "convolutional", "vocab_size": 512, "d_model": 128}


def setup_of(model, sizes):
    """A mesh, with the first state and the update of a model."""
    optimizer, _ = optimizer_of(d_model=model.d_model)
    return SimpleNamespace(
        mesh=mesh_of(sizes),
        init=init_of(model, optimizer),
        train_step=step_of(model, optimizer),
    )


def lower(model, shape, *, accumulate):
    """The lowered train step of one device, for a shape of microbatches."""
    setup = setup_of(model, (1, 1, 1))
    rows, *lengths = shape
    sides = [jax.ShapeDtypeStruct((rows, length), jnp.int32) for length in lengths]
    state = abstract_state(setup.mesh, setup.init)
    return setup.train_step.lower(state, Batch(*sides * 2), accumulate=accumulate)


@pytest.mark.parametrize("budget", [1_000, 5_000, 123_456, 10**6])
@pytest.mark.parametrize("bend", [0.0, 0.002, -0.0004])
def test_the_most_rows_that_fit_are_found_with_few_programs(budget, bend):
    """Also where bytes are not quite affine in rows."""
    compiled = {}

    def bytes_of(rows):
        compiled[rows] = int(500 + 50 * rows + bend * rows * rows)
        return compiled[rows]

    rows, size = memory.largest_fitting(bytes_of, budget, unit=2, most=20_000)
    assert compiled[rows] == size <= budget
    assert len(compiled) <= 2 + memory.GUESSES
    assert budget < bytes_of(2 * rows)
    if not bend:
        assert rows == (budget - 500) // 50 // 2 * 2


@pytest.mark.parametrize(
    ("budget", "most", "rows"), [(199, 10, None), (10**6, 10, 10), (10**6, 2, 2)]
)
def test_no_row_fits_or_a_whole_update_does(budget, most, rows):
    found = memory.largest_fitting(lambda n: 100 * n, budget, unit=2, most=most)
    assert found == (rows, rows and 100 * rows)


def test_budget_is_given_or_what_a_device_has(monkeypatch, tmp_path):
    assert memory.device_budget(1.5) == 3 * 2**29
    info = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "MEMORY_INFO", info)
    assert memory.device_budget(None) is None
    info.write_text("MemTotal:  900 kB\nMemAvailable:    80 kB\nHugePages_Total: 0\n")
    assert memory.device_budget(0.0) == 80 * 1024 // jax.local_device_count()
    accelerator = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 77})
    monkeypatch.setattr(jax, "local_devices", lambda: [accelerator])
    assert memory.device_budget(None) == 77


def test_a_state_or_an_update_that_no_device_holds_is_refused(monkeypatch):
    setup, shape = setup_of(model_of(**SIZES), (1, 8, 1)), (8, 24, 32)
    state = abstract_state(setup.mesh, setup.init)
    held = sum(leaf.size for leaf in jax.tree.leaves(state)) * 4 // 8  # of a device
    whole = sum(memory.step_memory(setup, shape, accumulate=False))
    assert whole > 1.1 * held
    for budget, refused in (
        (None, ""),
        (whole, ""),
        (whole - 1, "training.tokens_per_microbatch"),
        (0.9 * held, "mesh.fsdp"),
    ):
        monkeypatch.setattr(memory, "device_budget", lambda gib, size=budget: size)
        problem = refused and pytest.raises(InputError, match=re.escape(refused))
        with problem or nullcontext():
            memory.require_memory(state)
            memory.require_update_memory(setup, shape, accumulate=False)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 1)])
def test_training_uses_the_programs_whose_memory_was_measured(sizes):
    model, compiled = model_of(), []
    setup = setup_of(model, sizes)
    setup.train_step = step_of(model, optimizer_of(d_model=16)[0], mesh=setup.mesh)
    monitoring = jax.monitoring

    def note(event, _, *, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(fun_name)

    monitoring.register_event_duration_secs_listener(note)
    try:
        with on_mesh(setup.mesh):
            for accumulate in (False, True):
                memory.step_memory(setup, (8, 8, 8), accumulate=accumulate)
            state = born_sharded(setup.mesh, setup.init)
            batch = put_batch(setup.mesh, random_batch(8, 8))
            for count in (1, 2):
                state, _ = setup.train_step(state, (batch,) * count)
    finally:
        monitoring.unregister_event_duration_listener(note)
    assert [compiled.count(f"jit({name})") for name in ("update", "accumulate")] == [
        1,
        1,
    ]


def test_the_heap_is_larger_for_several_shapes_on_cpus(monkeypatch):
    assert [memory.heap_share(shapes) for shapes in (1, 2, 8)] == [1, 1.5, 1.5]
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert memory.heap_share(8) == 1


@pytest.mark.parametrize(("rows", "filled"), [(8, 8), (13, 16), (1, 8)])
def test_rows_that_do_not_divide_over_the_devices_are_filled_up(rows, filled):
    """Of a backend that does not report memory."""
    asked = []

    def lower(state, batch, *, accumulate):
        asked.append(([array.shape for array in batch], accumulate))
        program = SimpleNamespace(memory_analysis=lambda: None)
        return SimpleNamespace(compile=lambda: program)

    setup = SimpleNamespace(
        mesh=mesh_of((4, 2, 1)),
        init=lambda: {"x": jnp.zeros(2)},
        train_step=SimpleNamespace(lower=lower),
    )
    for accumulate in (False, True):
        assert memory.step_memory(setup, (rows, 6, 5), accumulate=accumulate) is None
        assert asked.pop() == ([(filled, 6), (filled, 5)] * 2, accumulate)


@pytest.mark.slow
def test_the_microbatch_found_fits_and_twice_as_much_does_not():
    """For one layer on all eight devices."""
    setup, shape = setup_of(model_of(40, dropout=0.1), (8, 1, 1)), (8, 32, 32)
    budget, sizes = 2**20, {"unit": 8, "tokens_per_update": 10**6}
    found = memory.largest_microbatch(setup, shape, budget, **sizes)
    assert found.tokens % (8 * 32) == 0
    assert found.bytes <= budget
    assert not found.is_whole_update
    rows, most = found.tokens // 32, 10**6 // 32 // 8 * 8
    assert 0 <= -(-most // rows) * rows - most < 8 * -(-most // rows)  # equal parts
    twice = (2 * found.tokens // 32, 32, 32)
    assert sum(memory.step_memory(setup, twice, accumulate=True)) > budget


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (Shape(8, 24, 32), SIZES),
        (Shape(1, 512, 256), SIZES | {"attention_window": 16}),
        (Shape(8, 24, 32), CONVOLUTIONAL),
        (Shape(8, 24, 32), CONVOLUTIONAL | {"separable": True}),
        (Shape(8, 32, 32), SIZES | {"positions": "relative", "max_positions": 16}),
        (Shape(8, 64, 32), SIZES | {"encoder_projected_keys": 16}),
        (
            Shape(1, 512, 256),
            SIZES | {"attention_window": 16, "encoder_global_positions": 64},
        ),
        (
            Shape(1, 24, 256),
            SIZES | {"decoder_self_attention": "ssru", "num_heads": 16},
        ),
    ],
)
def test_operations_are_those_that_xla_counts(shape, changes):
    """At 256 target positions the loop over the logits runs once, as XLA assumes."""
    model = model_of(**changes)
    counted = lower(model, shape, accumulate=False).cost_analysis()["flops"]
    assert model.flops(*shape) == pytest.approx(counted, rel=0.1)


def test_accumulating_holds_gradients_beside_the_state():
    lowered = lower(model_of(**SIZES), Shape(8, 24, 32), accumulate=True)
    total, state, *others = lowered.args_info[0]
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.params)]
    assert [leaf.shape for leaf in jax.tree.leaves(total.grads)] == shapes
    assert all(leaf.donated for leaf in jax.tree.leaves(total))
    assert not any(leaf.donated for leaf in jax.tree.leaves((state, others)))


def test_the_largest_shape_has_the_longest_rows():
    """Of equal positions: attention grows with the square of a row."""
    shapes = (Shape(64, 32, 32), Shape(16, 128, 128), Shape(32, 64, 64))
    assert (
        largest_shape(model_of(**SIZES), SimpleNamespace(shapes=shapes, later=()))
        == shapes[1]
    )
