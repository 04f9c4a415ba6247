"""The numbers of a run in the trackers' own files, and trackers that fail."""

import contextlib
import logging
import sqlite3

import pytest

from jaxformer.system.errors import InputError
from jaxformer.training import trackers
from jaxformer.training.trackers import Trackers

CONFIG = {"model": {"d_model": 32}, "training": {"freeze": ("encoder",)}}
LINES = [(10, 1.8e9, {"train/loss": 3.0}), (20, 1.8e9 + 5, {"train/loss": 1.5})]


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """The trackers' offline modes, with files in the test's folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")


def track(workdir, *names, lines=LINES, config=CONFIG):
    workdir.mkdir(exist_ok=True)
    with Trackers(names, workdir, config) as opened:
        for line in lines:
            opened.write(*line)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages
def test_mlflow_has_one_run_of_a_resumed_training(tmp_path):
    from mlflow import MlflowClient

    changed = {"model": {"d_model": 48}, "training": CONFIG["training"]}
    for lines, config in ((LINES[:1], CONFIG), (LINES[1:], changed)):
        track(tmp_path / "run", "mlflow", lines=lines, config=config)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("jaxformer").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.data.params == {"model.d_model": "32", "training.freeze": "('encoder',)"}
    assert run.data.tags["model.d_model"] == "48"  # MLflow lets no parameter change
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(10, 3.0), (20, 1.5)]
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio_has_one_run_of_a_resumed_training(tmp_path, capfd):
    for lines in (LINES[:1], LINES[1:]):
        track(tmp_path / "run", "trackio", lines=lines)
    (file,) = (tmp_path / "trackio").glob("*.db")
    with contextlib.closing(sqlite3.connect(file)) as database:
        rows = database.execute(
            "SELECT run_name, step, metrics FROM metrics"
        ).fetchall()
    assert [row[1] for row in rows] == [10, 20]
    assert len({row[0] for row in rows}) == 1
    assert b"1.5" in rows[1][2]
    assert capfd.readouterr().out == ""  # standard output is for the result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_an_offline_run(tmp_path):
    import wandb

    track(tmp_path / "run", "wandb")
    wandb.teardown()  # its service writes on after `finish`; at exit it is waited for
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    assert b"train/loss" in content
    assert b"d_model" in content


class Broken:
    """A tracker that fails when it is opened, or at a later call."""

    def __init__(self, fails):
        self.fails, self.calls = fails, []

    def __call__(self, *_):
        self.called("open")
        return self

    def called(self, name):
        self.calls.append(name)
        if name == self.fails:
            raise ConnectionError("no route")

    def write(self, *_):
        self.called("write")

    def close(self):
        self.called("close")


@pytest.mark.parametrize("fails", ["open", "write", "close"])
def test_a_tracker_that_fails_is_named_once_and_never_stops_a_run(
    fails, tmp_path, monkeypatch, caplog
):
    broken, whole = Broken(fails), Broken(None)
    monkeypatch.setattr(trackers, "KINDS", {"wandb": broken, "mlflow": whole})
    with caplog.at_level(logging.WARNING):
        track(tmp_path / "run", "wandb", "mlflow")
    assert whole.calls == ["open", "write", "write", "close"]
    assert broken.calls[-1] == fails
    (message,) = caplog.messages
    assert "the tracker wandb failed and is left out: ConnectionError" in message


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", {"wandb": 1}.get)
    trackers.require_installed(["wandb"])
    with pytest.raises(InputError, match="pip install mlflow, or leave it out"):
        trackers.require_installed(["wandb", "mlflow"])


@pytest.mark.parametrize("content", [b"", b"\xff", b"3", b"[1]"])
def test_a_damaged_file_of_names_is_replaced(content, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "KINDS", {"wandb": Broken(None)})
    (tmp_path / "trackers.json").write_bytes(content)
    track(tmp_path, "wandb")
    made = (tmp_path / "trackers.json").read_bytes()
    assert made != content
    track(tmp_path, "wandb")
    assert (tmp_path / "trackers.json").read_bytes() == made
