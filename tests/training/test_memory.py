"""The bytes and the operations of a train step, and the largest microbatch."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.config_files import parse_config
from jaxformer.configs import multi30k
from jaxformer.data.plan import Shape
from jaxformer.estimates import largest_shape
from jaxformer.models.architectures import make_model
from jaxformer.run import Run, make_training_setup
from jaxformer.training import memory
from jaxformer.workdir import Workdir
from tests.models.tiny import model_of
from tests.training.setups import init_of, optimizer_of, step_of

LENGTH, UNIT = 32, 8


@pytest.mark.parametrize("budget", [1_000, 5_000, 123_456, 10**6])
@pytest.mark.parametrize("bend", [0.0, 0.002, -0.0004])
def test_the_most_rows_that_fit_are_found_with_few_programs(budget, bend):
    """Also where bytes are not quite affine in rows."""
    compiled = []

    def bytes_of(rows):
        compiled.append(rows)
        return int(500 + 50 * rows + bend * rows * rows)

    found = memory.largest_fitting(bytes_of, budget, unit=2, most=20_000)
    assert found in compiled
    assert len(compiled) <= 2 + memory.GUESSES
    assert bytes_of(found) <= budget < bytes_of(2 * found)
    if not bend:
        assert found == (budget - 500) // 50 // 2 * 2


@pytest.mark.parametrize(
    ("budget", "most", "found"), [(199, 10, None), (10**6, 10, 10), (10**6, 2, 2)]
)
def test_no_row_fits_or_a_whole_update_does(budget, most, found):
    def bytes_of(rows):
        return 100 * rows

    assert memory.largest_fitting(bytes_of, budget, unit=2, most=most) == found


def test_budget_is_given_or_what_a_device_has(monkeypatch, tmp_path):
    assert memory.device_budget(1.5) == 3 * 2**29
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  900 kB\nMemAvailable:    80 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(memory, "MEMORY_INFO", info)
    for gib in (None, 0.0):
        assert memory.device_budget(gib) == 80 * 1024 // jax.local_device_count()
    monkeypatch.setattr(memory, "MEMORY_INFO", tmp_path / "none")
    assert memory.device_budget(None) is None
    accelerator = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 77})
    monkeypatch.setattr(jax, "local_devices", lambda: [accelerator])
    assert memory.device_budget(None) == 77


@pytest.mark.parametrize(("rows", "filled"), [(8, 8), (13, 16), (1, 8)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_rows_that_do_not_divide_over_the_devices_are_filled_up(
    rows, filled, accumulate, caplog
):
    """Of a backend that does not report memory."""
    asked = []

    def lower(state, batch, *, accumulate):
        asked.append(([array.shape for array in batch], accumulate))
        program = SimpleNamespace(memory_analysis=lambda: None)
        return SimpleNamespace(compile=lambda: program)

    setup = SimpleNamespace(
        mesh=jax.make_mesh((4, 2, 1), ("data", "fsdp", "tensor")),
        init=lambda: {"x": jnp.zeros(2)},
        train_step=SimpleNamespace(lower=lower),
    )
    with caplog.at_level("INFO", logger="jaxformer"):
        found = memory.step_memory(setup, (rows, 6, 5), accumulate=accumulate)
    assert found is None
    assert asked == [([(filled, 6), (filled, 5)] * 2, accumulate)]
    assert f"compiling the train step for {rows} x 6 x 5" in caplog.text


@pytest.mark.slow
def test_the_microbatch_found_fits_and_twice_as_much_does_not():
    """For one layer on all eight devices."""
    config = multi30k.get_config().to_dict()
    config["model"] |= {
        "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32,
        "num_heads": 2, "d_k": 8, "d_v": 8,
    }  # fmt: skip
    config = parse_config(config)
    model = make_model(config.model, vocab_size=40, rematerialise=False)
    setup = make_training_setup(Run(Workdir(Path()), config, None, model))
    budget = 2**20
    found = memory.largest_microbatch(
        setup, (UNIT, LENGTH, LENGTH), budget, unit=UNIT, tokens_per_update=10**6
    )
    assert found["tokens"] % (UNIT * LENGTH) == 0
    assert found["bytes"] <= budget
    assert not found["is_whole_update"]
    shape = (2 * found["tokens"] // LENGTH, LENGTH, LENGTH)
    assert memory.step_memory(setup, shape, accumulate=True).total > budget


# --- operations ----------------------------------------------------------------------

SIZES = {  # matrices that outweigh the rest
    "vocab_size": 512, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 32,
    "d_v": 32,
}  # fmt: skip


def lower(model, shape, *, accumulate):
    """Lower the train step for a shape of microbatches; returns the state, too."""
    optimizer, _ = optimizer_of(d_model=128)
    state = jax.eval_shape(lambda: nn.unbox(init_of(model, optimizer)()))
    rows, *lengths = shape
    sides = [jax.ShapeDtypeStruct((rows, length), jnp.int32) for length in lengths]
    batch = Batch(*sides, *sides)
    lowered = step_of(model, optimizer).lower(state, batch, accumulate=accumulate)
    return state, lowered


@pytest.mark.parametrize(
    ("shape", "window"), [(Shape(8, 24, 32), None), (Shape(1, 512, 256), 16)]
)
def test_operations_are_those_that_xla_counts(shape, window):
    """At 256 target positions the loop over the logits runs once, as XLA assumes."""
    model = model_of(**SIZES, attention_window=window)
    _, lowered = lower(model, shape, accumulate=False)
    counted = lowered.cost_analysis()["flops"]
    assert model.flops(*shape) == pytest.approx(counted, rel=0.1)


def test_accumulating_holds_gradients_beside_the_state():
    state, lowered = lower(model_of(**SIZES), Shape(8, 24, 32), accumulate=True)
    total, *others = lowered.args_info[0]
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.params)]
    assert [leaf.shape for leaf in jax.tree.leaves(total.grads)] == shapes
    assert all(leaf.donated for leaf in jax.tree.leaves(total))
    assert not any(leaf.donated for leaf in jax.tree.leaves(others))


def test_the_largest_shape_has_the_longest_rows():
    """Of equal positions: attention grows with the square of a row."""
    shapes = (Shape(64, 32, 32), Shape(16, 128, 128), Shape(32, 64, 64))
    assert largest_shape(model_of(**SIZES), SimpleNamespace(shapes=shapes)) == shapes[1]
