"""The fault script: what it reads of a run, what it compares, and what it sums up."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import faults, lives
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.step import TrainState

LINE = {"kind": "train", "time": 100.0, "loss": 2.5, "tokens_per_second": 7.0}


def write_metrics(workdir, *lines, torn=""):
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text + torn)


def write_run(workdir, *, moment=0.5, loss=2.5):
    """Write what a run of one step leaves."""
    scalar = jnp.int32(1)
    moments = {"mu": {"bias": jnp.float32([0.25, moment])}}
    params = {"bias": jnp.zeros((2,), jnp.float32)}
    state = TrainState(
        scalar, scalar, jnp.uint32(0), params, [moments], params, scalar, scalar
    )
    with Checkpoints(workdir / "checkpoints", keep=1, scores={}) as checkpoints:
        checkpoints.save(1, state)
    write_metrics(workdir, {**LINE, "step": 1, "loss": loss})
    return workdir


@pytest.mark.parametrize(
    ("stderr", "step"),
    [
        ("", None),
        ("corpus: training a vocabulary\nstep 7/424: loss 5.9\n", None),
        ("training: en-de, 27 parameters, step 0 of 424, on 1 x cpu\n", 0),
        ("corpus\ngoing on: en-de, 27 parameters, step 1,234 of 2,000, on", 1234),
    ],
)
def test_step_that_a_run_begins_with(stderr, step):
    assert lives.announced_step(stderr) == step


def test_newest_step_is_the_last_whole_line_of_this_life(tmp_path):
    lines = [{**LINE, "step": step} for step in (7, 8)]
    assert lives.newest_step(tmp_path, 0.0) is None
    write_metrics(tmp_path, *lines, {**LINE, "step": 9, "kind": "final"})
    assert lives.newest_step(tmp_path, 99.0) == 8
    assert lives.newest_step(tmp_path, 101.0) is None  # an earlier life wrote it
    write_metrics(tmp_path, *lines, torn='{"step": 9, "ki')
    assert lives.newest_step(tmp_path, 99.0) == 8


def test_what_differs_is_named(tmp_path):
    """A leaf by one bit, a metric, what one side lacks, a step that is there twice."""
    same, again, other = (tmp_path / name for name in ("same", "again", "other"))
    left = faults.remains(write_run(same))
    assert faults.differences(left, faults.remains(write_run(again))) == []
    moment = float(np.nextafter(np.float32(0.5), np.float32(1)))
    right = faults.remains(write_run(other, moment=moment, loss=2.75))
    del right["seed"]
    names = ["opt_state/0/mu/bias", "seed", "train 1 loss"]
    assert faults.differences(left, right) == names
    write_metrics(again, *[{**LINE, "step": 1}] * 2)
    assert faults.differences(left, faults.remains(again)) == ["lines of metrics"]


def test_summary_counts_by_kind_and_phase():
    killed = [
        faults.Kill(faults.KILL, faults.START, made=12, resumed=9),  # makes no step
        faults.Kill(faults.KILL, lives.TRAIN, made=15, resumed=12),
        faults.Kill(faults.SAVE, faults.SAVING, made=22, resumed=16),
    ]
    kinds = faults.summary(killed)
    assert kinds[faults.TERM]["kills"] == 0
    killed = list(kinds[faults.KILL].values())
    assert killed == [2, 2, 0, 1.5, 3, 8, 1, 0, 1, 0]
    assert kinds[faults.SAVE]["lost_max"] == 6
