"""Checkpoints are restored bit for bit onto any devices; failures are one sentence."""

import functools
import logging
import re
from collections import namedtuple
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.runs.resume import forget_lost_best
from jaxformer.system.errors import InputError
from tests.training.saved import (
    ABSTRACT,
    abstract,
    continue_run,
    make_state,
    open_checkpoints,
    save_all,
    truncate,
)
from tests.training.setups import assert_same


def shardings_of(tree):
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_save_that_does_not_begin_removes_no_other(tmp_path, monkeypatch, error):
    save_all(tmp_path, 1, keep=1)
    fail = mock.Mock(side_effect=error)
    monkeypatch.setattr("jaxformer.training.checkpoint.Writer.save_state", fail)
    with pytest.raises(error), open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(2, make_state(2))
    assert open_checkpoints(tmp_path).steps() == [1]


def test_what_eight_devices_saved_is_read_onto_one_and_onto_another_mesh(tmp_path):
    """The state is donated after `save` and overwritten."""
    nines = functools.partial(jax.tree.map, lambda x: x * 0 + 9)
    overwrite = jax.jit(nines, donate_argnums=0)
    state = jax.tree.map(np.array, make_state(5))
    spread = abstract(state, (8, 1, 1), "data")
    placed = jax.device_put(state, shardings_of(spread))
    assert len(placed.params["embedding"].sharding.device_set) == 8
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(5, placed)
        jax.block_until_ready(overwrite(placed))
        for wanted in (ABSTRACT, abstract(state, (1, 2, 4), "tensor", "fsdp")):
            restored, step = checkpoints.restore_latest(wanted)
            assert step == 5
            assert_same(restored, state)
            assert shardings_of(restored) == shardings_of(wanted)
    reader = open_checkpoints(tmp_path)
    parameters = reader.restore_parameters(None)
    assert isinstance(parameters["embedding"], np.ndarray)
    assert_same(parameters, state.params)
    assert_same(reader.restore_parameters(5, field="seed"), state.seed)


def test_a_checkpoint_from_before_a_field_is_read(tmp_path):
    """One that only some models have, such as the baseline of hard attention."""
    state = make_state(3)
    fields = [name for name in state._fields if name != "baseline"]
    earlier = namedtuple("TrainState", fields)(*(getattr(state, n) for n in fields))
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, earlier)
        restored, _ = checkpoints.restore_latest(ABSTRACT)
    assert_same(restored, state)
    hard = state._replace(baseline=jnp.float32(0))
    with pytest.raises(InputError, match="baseline is absent in the checkpoint"):
        open_checkpoints(tmp_path).restore_latest(abstract(hard))


def test_average_is_the_mean_of_the_last_checkpoints(tmp_path, caplog):
    """If one of them is damaged, it is refused by name, and so are others in turn."""
    caplog.set_level(logging.INFO)
    save_all(tmp_path, 10, 20, 30, 40, 60)
    reader = open_checkpoints(tmp_path)
    for count, mean in ((3, (30 + 40 + 60) / 3), (100, 32), (1, 60)):
        average = reader.average(count)
        bias = average["encoder"]["layer_0"]["bias"]
        np.testing.assert_allclose(bias, np.full(4, mean, np.float32), rtol=1e-6)
    assert_same(average, make_state(60).params)
    assert caplog.messages[:3] == [
        "averaged 3 checkpoints: steps 30, 40, 60",
        "averaged 5 checkpoints of the 100 asked for: steps 10, 20, 30, 40, 60",
        "using 1 checkpoint: step 60",
    ]
    truncate(tmp_path / "40")
    assert_same(reader.average(1), make_state(60).params)
    with pytest.raises(InputError, match=r"40 is damaged .* step \(10, 20, 30, 60\)"):
        reader.average(2)


def test_an_average_leaves_out_the_imported_model(tmp_path, caplog):
    save_all(tmp_path, 0)
    assert_same(open_checkpoints(tmp_path).average(5), make_state(0).params)
    assert "on schedule" not in caplog.text
    save_all(tmp_path, -5)  # stopped before the first checkpoint on schedule
    assert_same(open_checkpoints(tmp_path).average(5), make_state(5).params)
    assert "no checkpoint on schedule yet: using step 5" in caplog.text
    save_all(tmp_path, 20, 40)
    bias = open_checkpoints(tmp_path).average(5)["encoder"]["layer_0"]["bias"]
    np.testing.assert_allclose(bias, np.full(4, 30, np.float32))


@pytest.mark.parametrize(
    ("saves", "last", "steps", "scheduled"),
    [
        ((10, 20, -25), None, [10, 20, 25], [10, 20]),  # stopped
        ((10, 20, -25, -27), None, [10, 20, 27], [10, 20]),  # stopped twice
        ((10, 20, -25, 30), None, [20, 30], [20, 30]),
        ((10, 20, -25), 25, [20, 25], [20, 25]),  # finished
        ((-5,), None, [5], []),
        ((-5, 10), None, [10], [10]),
    ],
)
def test_only_checkpoints_on_schedule_count(
    tmp_path, caplog, saves, last, steps, scheduled
):
    """For `keep`, the best one and averages; the newest of all is the latest."""
    ends = [abs(step) for step in saves if step >= 0 or -step == last]
    scores = {step: step / 2 for step in ends}  # no stop is evaluated
    save_all(tmp_path, *saves, keep=2, scores=scores, last=last)
    reader = open_checkpoints(tmp_path, scores=scores, last=last)
    assert (reader.steps(), reader.scheduled_steps()) == (steps, scheduled)
    assert reader.best_step() == max(scheduled, default=None)
    assert_same(reader.restore_parameters(None), make_state(steps[-1]).params)
    fallback = "no checkpoint on schedule yet: using step 5"
    reader.average(9)
    used = scheduled or steps
    assert re.search(rf"asked for: steps? {', '.join(map(str, used))}\n$", caplog.text)
    assert (fallback in caplog.text) == (not scheduled)


def test_the_end_of_a_run_that_is_extended_no_longer_counts(tmp_path):
    save_all(tmp_path, 10, -15, keep=2, last=15)
    with open_checkpoints(tmp_path, keep=2, last=30) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT)[1] == 15
        assert checkpoints.scheduled_steps() == [10]
        checkpoints.save(20, make_state(20))
    assert open_checkpoints(tmp_path, last=30).steps() == [10, 20]


def test_the_end_of_a_run_that_is_extended_stays_if_it_is_the_best(tmp_path):
    scores = {10: 3.0, 15: 9.0, 20: 4.0}
    save_all(tmp_path, 10, -15, keep=1, scores=scores, last=15)
    with continue_run(tmp_path, 1, scores, 30) as checkpoints:
        checkpoints.save(20, make_state(20))
    reader = open_checkpoints(tmp_path, scores=scores, last=30)
    assert (reader.steps(), reader.best_step()) == ([15, 20], 15)


def test_patience_counts_from_the_best_step_that_is_left(caplog):
    scores = {10: 9.0, 20: 5.0, 25: 7.0, 30: 7.0, 40: 3.0}
    forget_lost_best(SimpleNamespace(scores=scores, best_step=lambda: 30), "nll")
    assert scores == {20: 5.0, 30: 7.0, 40: 3.0}
    assert "of step 10, the best by nll, is gone; the best that is left is step 30" in (
        caplog.text
    )
    forget_lost_best(SimpleNamespace(scores=scores, best_step=lambda: None), "nll")
    assert scores == {}
    assert "of step 30, the best by nll, is gone; the best that is left is none" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("keep", "runs", "kept", "best"),
    [
        (2, [{1: 10.0, 2: 30.0, 3: None, 4: 20.0, 5: None, 6: 5.0}], [2, 5, 6], 2),
        (1, [{1: 30.0, 2: 3.0}, {3: 4.0, 4: None}], [1, 4], 1),  # of an earlier run
        (1, [{1: 30.0, 2: 3.0}, {5: 30.0}], [1, 5], 1),  # of equals, as patience does
    ],
)
def test_the_last_and_the_best_are_kept(tmp_path, keep, runs, kept, best):
    """Steps get their scores after they are saved, as in training."""
    scores = {7: 99.0}  # of a checkpoint that was removed
    assert open_checkpoints(tmp_path, scores=scores).best_step() is None
    for bleu_by_step in runs:
        with continue_run(tmp_path, keep, scores) as checkpoints:
            for step, bleu in bleu_by_step.items():
                checkpoints.save(step, make_state(step))
                scores |= {} if bleu is None else {step: bleu}
    reader = open_checkpoints(tmp_path, scores=scores)
    assert (reader.steps(), reader.best_step()) == (kept, best)
    assert reader.latest_step() == kept[-1]


def test_checkpoints_after_a_step_are_dropped_damaged_ones_too(tmp_path):
    save_all(tmp_path, 10, 20, 30)
    truncate(tmp_path / "30")
    with open_checkpoints(tmp_path, 3, {10: 5.0, 30: 50.0}) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT)[1] == 20
        checkpoints.drop_after(10)
        assert (checkpoints.steps(), checkpoints.best_step()) == ([10], 10)
        for step in (20, 30):
            checkpoints.save(step, make_state(step + 1))
        checkpoints.drop_after(30)
    reader = open_checkpoints(tmp_path)
    assert reader.steps() == [10, 20, 30]
    for step, fill in ((10, 10), (20, 21), (30, 31)):
        assert_same(reader.restore_parameters(step), make_state(fill).params)


def test_the_newest_readable_one_before_a_step_is_restored(tmp_path):
    """If every checkpoint is damaged, restoring raises InputError."""
    save_all(tmp_path, 10, 20, 30)
    truncate(tmp_path / "20")
    reader = open_checkpoints(tmp_path)
    assert reader.restore_latest(ABSTRACT)[1] == 30
    assert_same(reader.restore_latest(ABSTRACT, before=30), (make_state(10), 10))
    assert reader.restore_latest(ABSTRACT, before=10) is None
    truncate(tmp_path / "10")
    for before in (30, 30, np.inf):
        with pytest.raises(InputError, match="none of the checkpoints"):
            reader.restore_latest(ABSTRACT, before=before)
        truncate(tmp_path / "30")


def test_an_incomplete_checkpoint_of_a_killed_run_is_ignored_and_removed(tmp_path):
    save_all(tmp_path, 1, 2)
    unfinished = tmp_path / "3.orbax-checkpoint-tmp"
    (tmp_path / "2").rename(unfinished)
    (link := tmp_path / "1.orbax-checkpoint-tmp").symlink_to("1")
    assert open_checkpoints(tmp_path).steps() == [1]
    with continue_run(tmp_path, 2) as checkpoints:
        assert checkpoints.latest_step() == 1
        checkpoints.save(3, make_state(3))
    assert not unfinished.exists()
    assert not link.is_symlink()
    assert open_checkpoints(tmp_path).steps() == [1, 3]


def test_what_does_not_exist_is_refused_by_name(tmp_path):
    nothing = open_checkpoints(tmp_path / "nothing")
    assert (nothing.latest_step(), nothing.best_step()) == (None, None)
    assert nothing.restore_latest(ABSTRACT) is None
    save_all(tmp_path / "run", 1, 2)
    reader = open_checkpoints(tmp_path / "run")
    for message, read in {
        r"no checkpoint in .*nothing": lambda: nothing.restore_parameters(None),
        r"no checkpoint in": lambda: nothing.average(1),
        r"run/3; there are steps 1, 2": lambda: reader.restore_parameters(3),
        r"run/1 has no ema": lambda: reader.restore_parameters(1, field="ema"),
    }.items():
        with pytest.raises(InputError, match=message):
            read()
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: make_state(1, width=8).params, r"embedding is \(16, 4\) .*, 8"),
        (lambda p: {**p, "b": p["embedding"]}, "b is absent in .* the c"),
        (lambda p: {"encoder": p["encoder"]}, "absent in the config"),
    ],
)
def test_another_tree_or_shape_is_refused_by_name_and_is_no_damage(
    tmp_path, change, message
):
    save_all(tmp_path, 1)
    reader, state = open_checkpoints(tmp_path), make_state(1)
    other = abstract(state._replace(params=change(state.params)))
    with pytest.raises(InputError, match=rf"does not fit this .*: params/.*{message}"):
        reader.restore_latest(other)
    assert reader.steps() == [1]
