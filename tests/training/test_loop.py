"""What the loop does at which step, and that a stop leaves no trace in the result."""

import contextlib
import functools
import itertools
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.loop import DivergedError, TrainingConfig, train
from jaxformer.training.loss import LossSums
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import (
    abstract_state,
    born_sharded,
    make_mesh,
    on_mesh,
    put_batch,
)
from jaxformer.training.step import Report, TrainState, TrainStep, init_state
from tests.models.tiny import model_of

VALUES = {
    "steps": 10,
    "seed": 0,
    "tokens_per_update": 64,
    "tokens_per_microbatch": 64,
    "rematerialise": False,
    "label_smoothing": 0.1,
    "initial_embeddings": "",
    "max_bad_steps": 3,
    "on_divergence": "stop",
    "ema_decay": None,
    "log_every": 3,
    "eval_every": 4,
    "save_every": 2,
    "keep": 5,
    "average": 5,
}


class Recorder:
    """Stands for the log, the checkpoints, the evaluation and the update at once.

    `bad` are the updates to skip, and the run stands still after `max_bad_steps` of
    them in a row, as after real ones. It is asked to stop at step `stop`.
    """

    def __init__(self, *, start, stop, bad, max_bad_steps):
        self.calls = []
        self.paused = False
        self.asked_at = start
        self.stop = stop
        self.bad = bad
        self.max_bad_steps = max_bad_steps

    def step(self, state, update):
        """Count the update; its sums are its number, so that windows can be told."""
        nothing = Report(LossSums(0.0, 0.0, 0.0, 0.0), math.nan)
        if state.bad_steps >= self.max_bad_steps:
            return state, nothing
        state = state._replace(step=state.step + 1)
        if update in self.bad:
            bad, skipped = state.bad_steps + 1, state.skipped + 1
            return state._replace(bad_steps=bad, skipped=skipped), nothing
        sums = LossSums(float(update), 2.0 * update, 0.0, 1.0)
        return state._replace(params=f"params {update}", bad_steps=0), Report(sums, 0.5)

    def is_asked_to_stop(self):
        """Several processes agree on the step by asking once at each."""
        self.asked_at += 1
        return self.asked_at - 1 == self.stop

    def train(self, step, sums, *, learning_rate, gradient_norm, skipped_updates):
        assert math.isnan(gradient_norm) if step in self.bad else gradient_norm == 0.5
        self.calls.append(("log", step, sums["loss"], sums["tokens"], learning_rate))
        if self.bad:
            self.calls.append(("skipped", skipped_updates))

    @contextlib.contextmanager
    def pause(self):
        self.paused = True
        yield
        self.paused = False

    def evaluate(self, step, params):
        assert self.paused
        self.calls.append(("evaluate", step, params))
        return {"bleu": step / 2}

    def evaluation(self, step, scores):
        assert not self.paused
        self.calls.append(("log scores", step, scores["bleu"]))

    def save(self, step, state):
        assert int(state.step) == step
        self.calls.append(("save", step))

    def wait(self):
        self.calls.append(("wait",))


def run(*, start=0, ema=None, stop=None, bad=(), scores=None, **changes):
    """Train with everything recorded; returns the calls and the last state.

    A run that diverges returns the calls and the state of the error. `scores` are those
    known at the start: if none are given, of all evaluations until then.
    """
    config = TrainingConfig(**{**VALUES, **changes})
    if scores is None:
        scores = {
            step: 1.0 for step in range(start + 1) if step % config.eval_every == 0
        }
    recorder = Recorder(
        start=start, stop=stop, bad=bad, max_bad_steps=config.max_bad_steps
    )
    try:
        state = train(
            TrainState(start, start, 0, f"params {start}", None, ema, 0, 0),
            recorder.step,
            iter(range(start + 1, 100)),
            config=config,
            schedule=lambda count: 100.0 + count,
            evaluate=recorder.evaluate,
            checkpoints=recorder,
            log=recorder,
            scores=scores,
            is_asked_to_stop=recorder.is_asked_to_stop,
        )
    except DivergedError as divergence:
        return recorder.calls, divergence.state
    last = config.steps if stop is None else stop + 1
    assert recorder.asked_at == max(last, start)
    return recorder.calls, state


def test_what_happens_at_which_step():
    """A step is saved before it is evaluated: that may take long, and be cut short."""
    calls, state = run()
    assert calls == [
        ("save", 2),
        ("log", 3, 1 + 2 + 3, 3, 102),  # the rate of update 3 is that of count 2
        ("save", 4),
        ("evaluate", 4, "params 4"),
        ("log scores", 4, 2.0),
        ("log", 6, 4 + 5 + 6, 3, 105),
        ("save", 6),
        ("save", 8),
        ("evaluate", 8, "params 8"),
        ("log scores", 8, 4.0),
        ("log", 9, 7 + 8 + 9, 3, 108),
        ("log", 10, 10, 1, 109),
        ("save", 10),
        ("wait",),
    ]
    assert state.params == "params 10"


def test_an_evaluation_is_known_to_whoever_ranks_the_checkpoints():
    scores = {}
    run(scores=scores)
    assert scores == {4: 2.0, 8: 4.0}


def test_the_last_update_is_logged_and_saved_whatever_its_number():
    calls, _ = run(steps=5)
    assert calls[-3:] == [("log", 5, 4 + 5, 2, 104), ("save", 5), ("wait",)]


def test_the_last_update_is_evaluated_if_its_number_says_so():
    calls, _ = run(steps=4)
    assert calls[-5:] == [
        ("log", 4, 4, 1, 103),
        ("save", 4),
        ("evaluate", 4, "params 4"),
        ("log scores", 4, 2.0),
        ("wait",),
    ]


def test_a_resumed_run_keeps_the_rhythm_and_takes_only_the_updates_left():
    calls, state = run(start=7)
    assert [call[:2] for call in calls if call[0] == "log"] == [("log", 9), ("log", 10)]
    assert [call[1] for call in calls if call[0] == "save"] == [8, 10]
    assert (state.step, state.params) == (10, "params 10")


def test_a_finished_run_makes_no_update():
    calls, state = run(start=10)
    assert calls == [("wait",)]
    assert state.step == 10


@pytest.mark.parametrize("steps", [8, 10])
def test_an_evaluation_that_was_cut_short_is_made_up_for_and_not_saved_again(steps):
    calls, _ = run(start=8, steps=steps, scores={4: 2.0})
    assert calls[:2] == [("evaluate", 8, "params 8"), ("log scores", 8, 4.0)]
    assert calls[2:] == run(start=8, steps=steps, scores={4: 2.0, 8: 4.0})[0]
    assert not [call for call in calls[2:] if call[1:2] == (8,)]


@pytest.mark.parametrize("stop", [4, 5])
def test_a_run_that_is_asked_to_stop_saves_and_leaves_the_rest_for_later(stop):
    whole, scores = run()[0], {}
    calls, state = run(stop=stop, scores=scores)
    assert calls[-3:] == [
        ("log", stop, sum(range(4, stop + 1)), stop - 3, 99 + stop),
        ("save", stop),
        ("wait",),
    ]
    assert (state.step, state.params) == (stop, f"params {stop}")
    later, last = run(start=stop, scores=scores)
    assert last.params == "params 10"

    def evaluations(calls):
        return [call for call in calls if call[0] in ("evaluate", "log scores")]

    assert evaluations(calls + later) == evaluations(whole)
    saved = [call[1] for call in calls + later if call[0] == "save"]
    assert saved == sorted({2, 4, 6, 8, 10, stop})


@pytest.mark.parametrize("start", [0, 7])
def test_a_run_that_is_asked_to_stop_at_once_has_nothing_to_save(start):
    calls, state = run(start=start, stop=start)
    assert calls == [("wait",)]
    assert state.step == start


def test_skipped_updates_count_as_steps_but_not_for_the_rate_and_the_sums():
    calls, state = run(steps=6, bad={2, 6})
    assert calls == [
        ("save", 2),
        ("log", 3, 1 + 3, 2, 101),  # the second update that counts
        ("skipped", 1),
        ("save", 4),
        ("evaluate", 4, "params 4"),
        ("log scores", 4, 2.0),
        ("log", 6, 4 + 5, 2, 103),
        ("skipped", 2),
        ("save", 6),
        ("wait",),
    ]
    assert (state.step, state.params, state.bad_steps) == (6, "params 5", 1)


def test_a_run_that_diverges_ends_before_it_logs_or_saves_that():
    calls, state = run(bad=range(3, 99), max_bad_steps=2)
    assert calls == [("save", 2), ("log", 3, 1 + 2, 2, 101), ("skipped", 1)]
    assert (state.step, state.params, state.bad_steps) == (4, "params 2", 2)


def test_a_divergence_is_noticed_with_the_next_report_and_says_where_it_was():
    calls, state = run(
        bad=range(3, 99), max_bad_steps=2, log_every=8, save_every=9, eval_every=9
    )
    assert calls == []
    assert (state.step, state.bad_steps) == (4, 2)


def test_a_divergence_is_noticed_when_the_run_is_asked_to_stop():
    calls, state = run(bad=range(5, 99), max_bad_steps=1, stop=5)
    assert calls[-1] == ("log scores", 4, 2.0)  # nothing of step 5
    assert (state.step, state.bad_steps) == (5, 1)


def test_the_moving_average_is_what_is_evaluated_if_there_is_one():
    calls, _ = run(ema="average", ema_decay=0.9)
    assert {call[2] for call in calls if call[0] == "evaluate"} == {"average"}


# --- stop and resume, with the real update -------------------------------------------

STEPS, STOP = 4, 2
MODEL = model_of(16, d_model=8, d_ff=8, d_k=4, d_v=4, dropout=0.3)
OPTIMIZER, SCHEDULE = make_optimizer(
    d_model=8,
    warmup_steps=4,
    learning_rate_scale=1.0,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-9,
    clip_norm=1.0,
)
CONFIG = {**VALUES, "ema_decay": 0.9, "log_every": 1, "eval_every": 2}


def batches():
    """The updates of a run from its beginning; every one is different."""
    for seed in range(STEPS):
        rng = np.random.default_rng(seed)
        source, target = rng.integers(3, 16, (2, 8, 5), dtype=np.int32)
        segments = np.ones((8, 5), np.int32)
        yield Batch(source, target, segments, segments)


def run_until(stop, *, directory, mesh, step):
    """What `--mode=train` does: resume what is there, or begin, and train.

    It is asked to stop when it has come to step `stop`, and ends at STEPS anyhow.
    Returns the last state as numpy arrays and the losses of the updates made.
    """
    init = functools.partial(init_state, MODEL, OPTIMIZER, seed=1, ema=True)
    losses = []

    def log(step, sums, **rates):
        losses.append(float(sums["loss"]))

    with on_mesh(mesh), Checkpoints(directory, keep=5, scores={}) as checkpoints:
        found = checkpoints.restore_latest(abstract_state(mesh, init))
        state = born_sharded(mesh, init) if found is None else found[0]
        updates = list(batches())[int(state.data_position) :]
        steps_to_come = itertools.count(int(state.step))
        state = train(
            state,
            step,
            ((put_batch(mesh, batch),) for batch in updates),
            config=TrainingConfig(**{**CONFIG, "steps": STEPS}),
            schedule=SCHEDULE,
            evaluate=lambda step, params: {"bleu": 0.0},
            checkpoints=checkpoints,
            log=SimpleNamespace(
                train=log, pause=contextlib.nullcontext, evaluation=lambda *_: None
            ),
            scores={},
            is_asked_to_stop=lambda: next(steps_to_come) == stop,
        )
        return jax.device_get(state), losses


@pytest.mark.slow
def test_stop_and_resume_equals_uninterrupted_bit_for_bit_with_dropout_on(tmp_path):
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    step = TrainStep(
        MODEL, OPTIMIZER, label_smoothing=0.1, ema_decay=0.9, max_bad_steps=3
    )
    continue_to = functools.partial(run_until, mesh=mesh, step=step)
    whole, losses = continue_to(STEPS, directory=tmp_path / "whole")
    _, first = continue_to(STOP, directory=tmp_path / "stopped")
    resumed, second = continue_to(STEPS, directory=tmp_path / "stopped")
    assert (len(first), len(second)) == (STOP, STEPS - STOP)
    assert first + second == losses
    assert int(resumed.step) == int(resumed.data_position) == STEPS
    assert jax.tree.structure(resumed) == jax.tree.structure(whole)
    for got, expected in zip(
        jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True
    ):
        assert got.dtype == expected.dtype
        assert got.tobytes() == expected.tobytes()
