"""`training.trackers=profile`: which updates are traced, and what the trace holds."""

import gzip
import json
import logging
from contextlib import suppress
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxformer.training import profile
from jaxformer.training.profile import first_traced, profiled, traced_updates


def config_of(**changes):
    values = {"trackers": ("profile",), "save_every": 50, "steps": 100}
    return SimpleNamespace(**values | changes)


@pytest.mark.parametrize(
    ("made", "changes", "first"),
    [
        (0, {}, 10),
        (30, {}, 40),  # 40 to 49
        (31, {}, 50),  # after the checkpoint
        (40, {}, 50),
        (41, {}, 51),
        (4, {"save_every": 3}, 15),  # 15, 16, 17
    ],
)
def test_no_checkpoint_is_saved_during_a_trace(made, changes, first):
    config = config_of(**changes)
    assert first_traced(made, config) == first
    last = first + traced_updates(config) - 1
    assert first // config.save_every == last // config.save_every


@jax.jit
def counted(state, update):
    return state + update.sum()


@jax.jit
def evaluated(state):
    return state * 2


def train(folder, monkeypatch, *, updates, stops=False, **changes):
    """Make updates, each with an evaluation before the first and after the last."""
    monkeypatch.setattr(profile, "WARM_UP", 2)
    monkeypatch.setattr(profile, "TRACED", 3)
    state = jnp.float32(0)
    with profiled(counted, 0, config_of(**changes), folder) as step:
        evaluated(state)
        for _ in range(updates):
            state = step(state, jnp.ones(2))
        if not stops:
            evaluated(state)
    assert state == 2 * updates


def events_of(folder):
    """The traces' events by name."""
    names = {}
    for file in sorted(folder.rglob("*.trace.json.gz")):
        for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]:
            names.setdefault(event.get("name"), []).append(event)
    return names


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"updates": 8}, [3, 4, 5]),
        ({"updates": 4, "steps": 4}, [3, 4]),  # the run ends
        ({"updates": 3, "stops": True}, [3]),
    ],
    ids=str,
)
def test_the_trace_holds_the_updates_and_nothing_else(
    tmp_path, monkeypatch, caplog, options, steps
):
    with caplog.at_level(logging.INFO):
        train(tmp_path / "profile", monkeypatch, **options)
    events = events_of(tmp_path)
    assert [int(each["args"]["step_num"]) for each in events["update"]] == steps
    for call in events["PjitFunction(counted)"]:
        updates = [each for each in events["update"] if each["ts"] <= call["ts"]]
        assert call["ts"] <= updates[-1]["ts"] + updates[-1]["dur"]
    assert not [name for name in events if "evaluated" in str(name)]
    assert [file.suffix for file in tmp_path.rglob("*.xplane.*")] == [".pb"]
    (line,) = caplog.messages
    assert line.startswith(f"profile of updates {steps[0]} to {steps[-1]}: xprof ")
    assert str(tmp_path / "profile") in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trackers": ("wandb",)}, []),
        ({"steps": 2}, ["no profile: it would start after the last update"]),
    ],
    ids=str,
)
def test_without_a_trace_nothing_is_written(
    tmp_path, monkeypatch, caplog, changes, said
):
    train(tmp_path, monkeypatch, updates=2, **changes)
    assert caplog.messages == said
    assert not list(tmp_path.iterdir())


def test_of_several_processes_the_first_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    train(tmp_path, monkeypatch, updates=8)
    assert not list(tmp_path.iterdir())


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "profile").write_text("")
    train(tmp_path / "profile", monkeypatch, updates=8)
    (said,) = caplog.messages
    assert "profile cannot be written" in said
    (tmp_path / "profile").unlink()
    with suppress(RuntimeError):  # from jax 0.12 on, a trace that failed is none
        jax.profiler.stop_trace()  # of this process, for other tests
