"""The fault script: what it reads of a run, and what it compares."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import faults
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import encode
from jaxformer.training.step import TrainState


def write_metrics(workdir, *losses):
    line = {"kind": "train", "step": 1, "time": 100.0, "tokens_per_second": 7.0}
    lines = [encode({**line, "loss": loss}) for loss in losses]
    (workdir / "metrics.jsonl").write_text("".join(lines))


def write_run(workdir, *, moment=0.5, loss=2.5):
    """Write what a run of one step leaves."""
    scalar = jnp.int32(1)
    moments = {"mu": {"bias": jnp.float32([0.25, moment])}}
    params = {"bias": jnp.zeros((2,), jnp.float32)}
    state = TrainState(
        scalar, scalar, jnp.uint32(0), params, [moments], params, scalar, scalar, scalar
    )
    with Checkpoints(workdir / "checkpoints", keep=1, scores={}) as checkpoints:
        checkpoints.save(1, state)
    write_metrics(workdir, loss)
    return workdir


@pytest.mark.nightly
def test_a_run_that_is_killed_and_stopped_equals_an_undisturbed_one(capsys):
    """Its parameters, their average, its result, checkpoints and log, bit for bit."""
    assert faults.main(["--kills=3"]) == 0, capsys.readouterr()


def test_what_differs_is_named(tmp_path):
    """A leaf by one bit, a metric, what one side lacks, a step that is there twice."""
    same, again, other = (tmp_path / name for name in ("same", "again", "other"))
    left = faults.remains(write_run(same), {})
    assert faults.differences(left, faults.remains(write_run(again), {})) == []
    moment = float(np.nextafter(np.float32(0.5), np.float32(1)))
    right = faults.remains(write_run(other, moment=moment, loss=2.75), {})
    del right["seed"]
    names = ["opt_state/0/mu/bias", "seed", "train 1 loss"]
    assert faults.differences(left, right) == names
    write_metrics(again, 2.5, 2.5)
    assert faults.differences(left, faults.remains(again, {})) == ["lines of metrics"]
