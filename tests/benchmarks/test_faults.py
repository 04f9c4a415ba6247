"""The fault script: what it reads of a run, what it compares, and a short run of it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.step import TrainState

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faults.py"


def load():
    """benchmarks/faults.py, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("faults", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["faults"] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        spec.loader.exec_module(module)
    return module


faults = load()
LINE = {"kind": "train", "time": 100.0, "loss": 2.5, "tokens_per_second": 7.0}


def write_metrics(workdir: Path, *lines: dict | str) -> Path:
    """Write a metrics.jsonl; text is written as it is."""
    file = workdir / "metrics.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(texts))
    return file


def write_run(workdir: Path, *, moment: float = 0.5, loss: float = 2.5) -> Path:
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
    assert faults.announced_step(stderr) == step


def test_newest_step_is_the_last_whole_line_of_this_life(tmp_path):
    lines = [{**LINE, "step": step} for step in (7, 8)]
    assert faults.newest_step(tmp_path / "metrics.jsonl", 0.0) is None
    file = write_metrics(tmp_path, *lines, {**LINE, "step": 8, "kind": "final"}, "")
    assert faults.newest_step(file, 99.0) == 8
    assert faults.newest_step(file, 101.0) is None  # an earlier life wrote it
    file = write_metrics(tmp_path, *lines, '{"step": 9, "ki')
    assert faults.newest_step(file, 99.0) == 8


def test_a_leaf_and_a_metric_that_differ_are_named(tmp_path):
    same, again, other = (tmp_path / name for name in ("same", "again", "other"))
    left = faults.remains(write_run(same))
    assert faults.differences(left, faults.remains(write_run(again))) == []
    moment = float(np.nextafter(np.float32(0.5), np.float32(1)))
    right = faults.remains(write_run(other, moment=moment, loss=2.75))
    names = ["opt_state/0/mu/bias", "train 1 loss"]
    assert faults.differences(left, right) == names
    del right["seed"]
    assert faults.differences(left, right) == [names[0], "seed", names[1]]


def test_a_step_that_was_logged_twice_is_a_difference(tmp_path):
    left = faults.remains(write_run(tmp_path))
    write_metrics(tmp_path, *[{**LINE, "step": 1}] * 2)
    right = faults.remains(tmp_path)
    assert faults.differences(left, right) == ["lines of metrics"]


def test_summary_counts_by_kind_and_phase():
    kills = [
        faults.Kill(faults.KILL, faults.START, made=12, resumed=9),  # makes no step
        faults.Kill(faults.KILL, faults.TRAIN, made=15, resumed=12),
        faults.Kill(faults.SAVE, faults.SAVING, made=22, resumed=16),
    ]
    kinds = faults.summary(kills)
    assert kinds[faults.TERM]["kills"] == 0
    killed = kinds[faults.KILL]
    lost = [killed[f"lost_{name}"] for name in ("min", "median", "max", "allowed")]
    assert lost == [0, 1.5, 3, 8]
    assert (killed["start-up"], killed["training"], killed["saving"]) == (1, 1, 0)
    assert kinds[faults.SAVE]["lost_max"] == 6


def test_a_folder_in_use_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        faults.main([f"--workdir={tmp_path}"])
    assert "exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_kill_loses_nothing(tmp_path):
    """One kill of the whole script; most of the time goes into starting the run."""
    command = [sys.executable, SCRIPT, "--kills=1", f"--workdir={tmp_path / 'runs'}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["bit_equal"]
    assert outcome["within_bounds"]
    kinds = outcome["kinds"].values()
    assert sum(kind["kills"] for kind in kinds) == 1
    assert sum(kind["resumes"] for kind in kinds) == 1
