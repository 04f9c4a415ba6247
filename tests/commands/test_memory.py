"""The largest microbatch that --mode=check promises fits, and no more would."""

from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jaxformer.commands.runs import Run, make_learner, make_model

from configs import multi30k
from jaxformer.commands import memory
from jaxformer.data.plan import Shape
from jaxformer.workdir import Workdir

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
    assert bytes_of(found) <= budget
    assert found in compiled[:-1]
    assert len(compiled) - 1 <= 2 + memory.GUESSES
    if not bend:
        assert found == (budget - 500) // 50 // 2 * 2
    assert bytes_of(2 * found) > budget


def test_no_row_fits_and_a_whole_update_does():
    def bytes_of(rows):
        return 100 * rows

    assert memory.largest_fitting(bytes_of, 199, unit=2, most=10) is None
    assert memory.largest_fitting(bytes_of, 10**6, unit=2, most=10) == 10
    assert memory.largest_fitting(bytes_of, 10**6, unit=2, most=2) == 2


def test_budget_is_given_or_what_a_device_has(monkeypatch, tmp_path):
    assert memory.device_budget(1.5) == 3 * 2**29
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  900 kB\nMemAvailable:    80 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(memory, "MEMORY_INFO", info)
    assert memory.device_budget(None) == 80 * 1024 // jax.local_device_count()
    monkeypatch.setattr(memory, "MEMORY_INFO", tmp_path / "none")
    assert memory.device_budget(None) is None
    accelerator = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 77})
    monkeypatch.setattr(jax, "local_devices", lambda: [accelerator])
    assert memory.device_budget(None) == 77


@pytest.fixture(scope="module")
def tiny():
    """A run of one layer on all eight devices, and a plan of one shape."""
    config = multi30k.get_config().to_dict()
    config["model"] |= {
        "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32,
        "num_heads": 2, "d_k": 8, "d_v": 8,
    }  # fmt: skip
    config["batches"]["row_multiple"] = UNIT
    config["training"] |= {"tokens_per_update": 10**6, "tokens_per_microbatch": 1024}
    run = Run(
        Workdir(Path()), config, SimpleNamespace(vocab_size=40), make_model(config, 40)
    )
    return run, SimpleNamespace(shapes=(Shape(UNIT, LENGTH, LENGTH),))


@pytest.mark.slow
def test_what_is_reported_fits_and_twice_as_much_does_not(tiny):
    run, plan = tiny
    budget = 2**20
    found = memory.largest_microbatch(run, plan, budget)
    assert found["tokens"] % (UNIT * LENGTH) == 0
    assert not found["is_whole_update"]

    def bytes_of(tokens):
        shape = Shape(tokens // LENGTH, LENGTH, LENGTH)
        return memory.program_memory(make_learner(run), shape, accumulate=True).total

    assert found["bytes"] <= budget
    assert bytes_of(2 * found["tokens"]) > budget


def test_flags_to_set_are_said(tiny, monkeypatch, caplog):
    run, plan = tiny

    def bytes_of(learner, shape, *, accumulate):
        each = 10 if "rematerialise=True" in str(learner) else 30
        return memory.Memory(1000, each * shape.rows, 0)

    monkeypatch.setattr(memory, "program_memory", bytes_of)
    repr_of = {True: "rematerialise=True", False: "rematerialise=False"}
    monkeypatch.setattr(
        memory, "make_learner", lambda run: repr_of[run.model.rematerialise]
    )
    with caplog.at_level("INFO", logger="jaxformer"):
        found = memory.largest_microbatches(run, plan, 1000 + 30 * 80)
    assert found["plain"]["tokens"] == 80 * LENGTH
    assert found["rematerialised"]["tokens"] == 240 * LENGTH
    flags = "--config.training.tokens_per_microbatch={} --config.training.rematerialise"
    assert flags.format(80 * LENGTH) + "=False" in caplog.text
    assert flags.format(240 * LENGTH) + "=True" in caplog.text
