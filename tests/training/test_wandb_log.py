"""The numbers of a run in Weights & Biases, and when it fails."""

import logging
import sys
from types import SimpleNamespace

import pytest

from jaxformer.system.errors import InputError
from jaxformer.training import wandb_log
from jaxformer.training.wandb_log import WandbLog

CONFIG = {"model": {"d_model": 32}, "training": {"freeze": ("encoder",)}}
LINES = [(10, 1.8e9, {"train/loss": 3.0}), (20, 1.8e9 + 5, {"train/loss": 1.5})]


def track(workdir):
    with WandbLog(workdir, "a-run", CONFIG) as opened:
        for line in LINES:
            opened.write(*line)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the package
def test_it_writes_an_offline_run(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    track(tmp_path)
    wandb.teardown()  # its service writes on after `finish`; at exit it is waited for
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    assert b"train/loss" in content
    assert b"d_model" in content


class StandIn:
    """A package that fails when it is opened, or at a later call."""

    def __init__(self, fails=None):
        self.fails, self.calls, self.begun = fails, [], []
        self.Settings = SimpleNamespace

    def init(self, *, id, resume, **_):
        self.begun.append((id, resume))
        self.called("init")
        return self

    def called(self, name):
        self.calls.append(name)
        if name == self.fails:
            raise ConnectionError("no route")

    def log(self, values, step):
        self.called("log")

    def finish(self):
        self.called("finish")


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_a_failure_is_named_once_and_never_stops_a_run(
    fails, tmp_path, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "wandb", stand_in := StandIn(fails))
    with caplog.at_level(logging.WARNING):
        track(tmp_path)
    assert stand_in.calls[-1] == fails
    (message,) = caplog.messages
    assert "the tracker wandb failed and is left out: ConnectionError" in message


def test_a_package_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install wandb, or leave it out"):
        wandb_log.require_installed(["wandb"])


def test_a_resumed_run_continues_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", stand_in := StandIn())
    track(tmp_path)
    track(tmp_path)
    assert stand_in.begun == [("a-run", "allow")] * 2
    assert stand_in.calls == ["init", "log", "log", "finish"] * 2
