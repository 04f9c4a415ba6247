"""What the loop does at which step; an interrupted run ends as an undisturbed one."""

import contextlib
import math
import operator
from types import SimpleNamespace
from unittest import mock

import pytest

from jaxformer.training.loop import DivergedError, is_over, train
from jaxformer.training.loss import LossSums
from jaxformer.training.step import Report, TrainState

NOTHING = LossSums(0.0, 0.0, 0.0, 0.0)
CONFIG = {
    "steps": 10, "log_every": 3, "eval_every": 4, "save_every": 2, "best_by": "bleu",
    "patience": None,
}  # fmt: skip


class Pending(float):
    """The gradient norm of an update in flight."""

    is_ready = False

    def block_until_ready(self):
        self.is_ready = True


class Recorder:
    """Stands for the log, the checkpoints, the evaluation and the update at once.

    `bad` are the updates to skip, and the state stays as it is after `most_bad` of
    them in a row, as after real ones. It is asked to stop at step `stop`.
    """

    def __init__(self, start, scores, stop, bad, most_bad):
        self.calls, self.asked_at, self.scores = [], start, scores
        self.stop, self.bad, self.most_bad = stop, bad, most_bad
        self.start, self.norms = start, []

    def step(self, state, update):
        """Count the update; its sums are its number, so that windows differ."""
        assert sum(not norm.is_ready for norm in self.norms) <= 1  # others in flight
        self.norms.append(Pending(math.nan if update in self.bad else 0.5))
        nothing = Report(NOTHING, self.norms[-1])
        if state.bad_steps >= self.most_bad:
            return state, nothing
        state = state._replace(step=state.step + 1)
        if update in self.bad:
            bad, skipped = state.bad_steps + 1, state.skipped + 1
            return state._replace(bad_steps=bad, skipped=skipped), nothing
        sums = LossSums(float(update), 2.0 * update, 0.0, 1.0)
        window = LossSums(*map(operator.add, state.window, sums))
        state = state._replace(params=f"P{update}", bad_steps=0, window=window)
        return state, Report(sums, self.norms[-1])

    def made(self, step):
        assert all(norm.is_ready for norm in self.norms[:-1])
        assert step == self.start + max(len(self.norms) - 1, 0)

    def is_asked_to_stop(self):
        """Several processes agree on the step by asking once at each."""
        self.asked_at += 1
        return self.asked_at - 1 == self.stop

    def train(self, step, sums, *, learning_rate, gradient_norm, skipped_updates):
        assert math.isnan(gradient_norm) if step in self.bad else gradient_norm == 0.5
        loss, tokens = sums["loss"], sums["tokens"]
        self.calls.append(f"log {step}: {loss:g}/{tokens:g} at {learning_rate:g}")
        if self.bad:
            self.calls.append(f"{skipped_updates} skipped")

    @contextlib.contextmanager
    def pause(self):
        self.calls.append("pause")
        yield
        self.calls.append("continue")

    def evaluate(self, step, params):
        self.calls.append(f"evaluate {params}")
        return {"bleu": step / 2, "nll": step / 2}

    def record(self, step, kind, scores):
        self.calls.append(f"{kind} {step}: {scores['bleu']:g}")

    def save(self, step, state, *, scheduled):
        assert int(state.step) == step
        window = state.window.loss
        unlogged = f" with {window:g}" if window else ""
        self.calls.append(f"save {step}{'' if scheduled else ' only'}{unlogged}")

    def wait(self):
        self.calls.append("wait")


def run(
    *,
    start=0,
    ema=None,
    window=NOTHING,
    stop=None,
    bad=(),
    most_bad=3,
    scores=None,
    **changes,
):
    """Train with everything recorded; the last call is the last step and parameters.

    `window` is that of the state at the start. `scores` are those known at the start:
    if none are given, of all evaluations until then.
    """
    config = SimpleNamespace(**CONFIG | changes)
    if scores is None:
        scores = dict.fromkeys(range(0, start + 1, config.eval_every), 1.0)
    recorder = Recorder(start, scores, stop, bad, most_bad)
    try:
        with mock.patch("jaxformer.training.loop.MOST_BAD_STEPS", most_bad):
            state = train(
                TrainState(start, start, 0, f"P{start}", None, ema, 0, 0, window),
                recorder.step,
                iter(range(start + 1, 100)),
                config=config,
                schedule=lambda count: 100.0 + count,
                evaluate=recorder.evaluate,
                checkpoints=recorder,
                log=recorder,
                is_asked_to_stop=recorder.is_asked_to_stop,
            )
        last = state.step + (state.step < config.steps)
        assert recorder.asked_at == max(last, start)
    except DivergedError as divergence:
        state = divergence.state
        recorder.calls.append("diverged")
    return [*recorder.calls, f"{state.step} {state.params}"]


EVALUATED_AT_4 = "pause; evaluate P4; continue; eval 4: 2"
EVALUATED_AT_8 = "pause; evaluate P8; continue; eval 8: 4"
DIVERGES = {"bad": range(3, 99), "most_bad": 2}

# What train is given, and what it does in order. Lines of the log have the sum and
# number of the updates since the last one, and the rate, which for update n is that of
# count n - 1. "only": a checkpoint off schedule. "with": the saved sum of the updates
# not logged yet.
CASES = {
    "a step is saved before its evaluation, which may be interrupted": (
        {},
        f"save 2 with 3; log 3: 6/3 at 102; save 4 with 4; {EVALUATED_AT_4}; "
        f"log 6: 15/3 at 105; save 6; save 8 with 15; {EVALUATED_AT_8}; "
        "log 9: 24/3 at 108; log 10: 10/1 at 109; save 10; wait; 10 P10",
    ),
    "an evaluation with which patience is at its end is the last": (
        {"start": 3, "best_by": "nll", "patience": 1, "scores": {}},
        f"save 4 with 4; {EVALUATED_AT_4}; log 6: 15/3 at 105; save 6; "
        f"save 8 with 15; {EVALUATED_AT_8}; wait; 8 P8",
    ),
    "the last update is logged, saved and evaluated": (
        {"start": 3, "steps": 4},
        f"log 4: 4/1 at 103; save 4; {EVALUATED_AT_4}; wait; 4 P4",
    ),
    "the last update is logged and saved whatever its number": (
        {"start": 4, "steps": 5},
        "log 5: 5/1 at 104; save 5 only; wait; 5 P5",
    ),
    "a resumed run takes only the updates left, and logs whole windows": (
        {"start": 7, "window": LossSums(7.0, 0.0, 0.0, 1.0)},
        f"save 8 with 15; {EVALUATED_AT_8}; log 9: 24/3 at 108; log 10: 10/1 at 109; "
        "save 10; wait; 10 P10",
    ),
    "a finished run makes no update": ({"start": 10}, "wait; 10 P10"),
    "an interrupted evaluation is repeated, its step not saved again": (
        {"start": 8, "scores": {4: 2.0}},
        f"{EVALUATED_AT_8}; log 9: 9/1 at 108; log 10: 10/1 at 109; save 10; wait; "
        "10 P10",
    ),
    "a run that is asked to stop saves, and leaves the evaluation for later": (
        {"start": 2, "stop": 4},
        "log 3: 3/1 at 102; save 4 with 4; wait; 4 P4",
    ),
    "it saves at any step, and logs as it would have done": (
        {"start": 4, "stop": 5},
        "save 5 only with 5; wait; 5 P5",
    ),
    "a run that is asked to stop at once has nothing to save": (
        {"start": 7, "stop": 7},
        "wait; 7 P7",
    ),
    "skipped updates count as steps, but not for the rate and the sums": (
        {"steps": 6, "bad": {2, 6}},
        "save 2 with 1; log 3: 4/2 at 101; 1 skipped; save 4 with 4; "
        f"{EVALUATED_AT_4}; log 6: 9/2 at 103; 2 skipped; save 6; wait; 6 P5",
    ),
    "a run that diverges ends before it logs or saves": (
        DIVERGES,
        "save 2 with 3; log 3: 3/2 at 101; 1 skipped; diverged; 4 P2",
    ),
    "a divergence is noticed with the next log line": (
        {**DIVERGES, "log_every": 8, "save_every": 9, "eval_every": 9},
        "diverged; 4 P2",
    ),
    "a divergence is noticed when the run is asked to stop": (
        {"start": 4, "bad": range(5, 99), "most_bad": 1, "stop": 5},
        "diverged; 5 P4",
    ),
    "the moving average is evaluated if there is one": (
        {"start": 3, "steps": 4, "ema": "average"},
        "log 4: 4/1 at 103; save 4; pause; evaluate average; continue; eval 4: 2; "
        "wait; 4 P4",
    ),
}


@pytest.mark.parametrize(("given", "calls"), CASES.values(), ids=CASES)
def test_what_happens_at_which_step(given, calls):
    assert "; ".join(run(**given)) == calls


def test_scores_are_added_for_ranking_the_checkpoints():
    scores = {}
    run(scores=scores)
    assert scores == {4: 2.0, 8: 4.0}


@pytest.mark.parametrize(
    ("scores", "patience", "steps"),
    [
        ([1, 2, 3], 1, []),
        ([1, 3, 2, 2.5, 4], 2, [4]),
        ([1, 3, 2, 4, 4, 3], 2, [6]),  # an equal score is no better
        ([5, 4, 3, 2], 3, [4]),
        ([5, 4, 3, 2], None, []),
    ],
)
def test_patience_counts_the_evaluations_since_the_best(scores, patience, steps):
    """The first step at which a run is over; step 9 is its last update."""
    config = SimpleNamespace(steps=9, patience=patience)
    scores = dict(enumerate(scores, start=1))
    over = [step for step in range(1, 9) if is_over(step, scores, config)]
    assert over[:1] == steps
    assert is_over(9, scores, config)
