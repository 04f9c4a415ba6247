"""What the loop does at which step, and that a stop leaves no trace in the result."""

import contextlib
import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.errors import InputError
from jaxformer.model.transformer import Transformer, TransformerConfig
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.loop import TrainingConfig, train
from jaxformer.training.loss import LossSums
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import (
    abstract_state,
    born_sharded,
    make_mesh,
    on_mesh,
    put_batch,
)
from jaxformer.training.step import TrainState, TrainStep, init_state

VALUES = {
    "steps": 10,
    "seed": 0,
    "tokens_per_update": 64,
    "tokens_per_microbatch": 64,
    "label_smoothing": 0.1,
    "initial_embeddings": "",
    "ema_decay": None,
    "log_every": 3,
    "eval_every": 4,
    "save_every": 2,
    "keep": 5,
    "average": 5,
}


class Recorder:
    """Stands for the log, the checkpoints, the evaluation and the update at once."""

    def __init__(self):
        self.calls = []
        self.paused = False

    def step(self, state, update):
        """Count the update; its sums are its number, so that windows can be told."""
        number = float(state.step + 1)
        sums = LossSums(number, 2 * number, 0.0, 1.0)
        return state._replace(step=state.step + 1, params=f"params {update}"), sums, 0.5

    def train(self, step, sums, *, learning_rate, gradient_norm):
        assert gradient_norm == 0.5
        self.calls.append(("log", step, sums["loss"], sums["tokens"], learning_rate))

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
        self.calls.append(("log scores", step, scores["bleu"]))

    def save(self, step, state, scores):
        assert int(state.step) == step
        self.calls.append(("save", step, None if scores is None else scores["bleu"]))

    def wait(self):
        self.calls.append(("wait",))


def run(*, start=0, ema=None, **changes):
    """Train with everything recorded; returns the calls and the last state."""
    recorder = Recorder()
    state = train(
        TrainState(start, start, 0, None, None, ema),
        recorder.step,
        iter(range(start + 1, 100)),
        config=TrainingConfig(**{**VALUES, **changes}),
        schedule=lambda count: 100.0 + count,
        evaluate=recorder.evaluate,
        checkpoints=recorder,
        log=recorder,
    )
    return recorder.calls, state


def test_what_happens_at_which_step():
    calls, state = run()
    assert calls == [
        ("save", 2, None),
        ("log", 3, 1 + 2 + 3, 3, 102),  # the rate of update 3 is that of count 2
        ("evaluate", 4, "params 4"),
        ("log scores", 4, 2.0),
        ("save", 4, 2.0),
        ("log", 6, 4 + 5 + 6, 3, 105),
        ("save", 6, None),
        ("evaluate", 8, "params 8"),
        ("log scores", 8, 4.0),
        ("save", 8, 4.0),
        ("log", 9, 7 + 8 + 9, 3, 108),
        ("log", 10, 10, 1, 109),
        ("save", 10, None),
        ("wait",),
    ]
    assert state.params == "params 10"


def test_the_last_update_is_logged_and_saved_whatever_its_number():
    calls, _ = run(steps=5)
    assert calls[-3:] == [("log", 5, 4 + 5, 2, 104), ("save", 5, None), ("wait",)]


def test_a_resumed_run_keeps_the_rhythm_and_takes_only_the_updates_left():
    calls, state = run(start=7)
    assert [call[:2] for call in calls if call[0] == "log"] == [("log", 9), ("log", 10)]
    assert [call[1] for call in calls if call[0] == "save"] == [8, 10]
    assert (state.step, state.params) == (10, "params 10")


def test_a_finished_run_makes_no_update():
    calls, state = run(start=10)
    assert calls == [("wait",)]
    assert state.step == 10


def test_the_moving_average_is_what_is_evaluated_if_there_is_one():
    calls, _ = run(ema="average", ema_decay=0.9)
    assert {call[2] for call in calls if call[0] == "evaluate"} == {"average"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eval_every": 5, "save_every": 2}, ["eval_every=5", "save_every=2"]),
        ({"eval_every": 2, "save_every": 4}, ["eval_every=2", "save_every=4"]),
        ({"keep": 4, "average": 5}, ["average=5", "keep=4"]),
        ({"label_smoothing": 1.0}, ["label_smoothing=1.0"]),
        ({"label_smoothing": -0.1}, ["label_smoothing=-0.1"]),
    ],
)
def test_numbers_that_make_no_run_are_refused_by_name(changes, words):
    with pytest.raises(InputError) as refusal:
        TrainingConfig(**{**VALUES, **changes})
    for word in words:
        assert f"training.{word}" in str(refusal.value)


# --- stop and resume, with the real update -------------------------------------------

STEPS, STOP = 4, 2
MODEL = Transformer(
    TransformerConfig(
        vocab_size=16,
        num_layers=1,
        d_model=8,
        d_ff=8,
        num_heads=2,
        d_k=4,
        d_v=4,
        dropout=0.3,
        positions="sinusoidal",
        max_positions=16,
        norm_first=False,
        dtype="float32",
    )
)
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


def run_until(steps, *, directory, mesh, step):
    """What `--mode=train` does: resume what is there, or begin, and train to `steps`.

    Returns the last state as numpy arrays and the losses of the updates made.
    """
    init = functools.partial(init_state, MODEL, OPTIMIZER, seed=1, ema=True)
    losses = []

    def log(step, sums, **rates):
        losses.append(float(sums["loss"]))

    with on_mesh(mesh), Checkpoints(directory, keep=5) as checkpoints:
        found = checkpoints.restore_latest(abstract_state(mesh, init))
        state = born_sharded(mesh, init) if found is None else found[0]
        updates = list(batches())[int(state.position) :]
        state = train(
            state,
            step,
            ((put_batch(mesh, batch),) for batch in updates),
            config=TrainingConfig(**{**CONFIG, "steps": steps}),
            schedule=SCHEDULE,
            evaluate=lambda step, params: {"bleu": 0.0},
            checkpoints=checkpoints,
            log=SimpleNamespace(
                train=log, pause=contextlib.nullcontext, evaluation=lambda *_: None
            ),
        )
        return jax.device_get(state), losses


@pytest.mark.slow
def test_stop_and_resume_equals_uninterrupted_bit_for_bit_with_dropout_on(tmp_path):
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    step = TrainStep(MODEL, OPTIMIZER, label_smoothing=0.1, ema_decay=0.9)
    continue_to = functools.partial(run_until, mesh=mesh, step=step)
    whole, losses = continue_to(STEPS, directory=tmp_path / "whole")
    _, first = continue_to(STOP, directory=tmp_path / "stopped")
    resumed, second = continue_to(STEPS, directory=tmp_path / "stopped")
    assert (len(first), len(second)) == (STOP, STEPS - STOP)
    assert first + second == losses
    assert int(resumed.step) == int(resumed.position) == STEPS
    assert jax.tree.structure(resumed) == jax.tree.structure(whole)
    for got, expected in zip(
        jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True
    ):
        assert got.dtype == expected.dtype
        assert got.tobytes() == expected.tobytes()
