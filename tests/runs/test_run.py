"""Which parameters of a run are read."""

from types import SimpleNamespace

import pytest

from jaxformer.runs import run
from jaxformer.runs.workdir import Workdir
from jaxformer.training.checkpoint_files import RemovedError
from tests.training.saved import make_state, open_checkpoints, save_all
from tests.training.setups import assert_same


@pytest.mark.parametrize(
    ("which", "fill"),
    [(None, 2), ("best", 2), ("latest", 1), ("1", 1), ("average:1", 1)],
)
def test_the_best_are_the_moving_average_which_validation_scored(tmp_path, which, fill):
    training = {"ema_decay": 0.9, "average": 5, "patience": None, "steps": 1}
    config = SimpleNamespace(training=SimpleNamespace(**training, best_by="bleu"))
    state = make_state(1)._replace(ema=make_state(2).params)
    with open_checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(1, state)
    this = SimpleNamespace(
        workdir=Workdir(tmp_path), config=config, record=None, export=None
    )
    this.scores = lambda: {1: 30.0}
    assert_same(run.read_parameters(this, which), make_state(fill).params)


def test_a_checkpoint_that_is_always_removed_ends_the_search(tmp_path, monkeypatch):
    def fail(*_):
        raise RemovedError("removed")

    save_all(tmp_path / "checkpoints", 1)
    training = {"ema_decay": None, "patience": None, "steps": 1}
    config = SimpleNamespace(training=SimpleNamespace(**training))
    monkeypatch.setattr(run, "_read_choice", fail)
    this = SimpleNamespace(
        workdir=Workdir(tmp_path), config=config, record=None, export=None
    )
    with pytest.raises(RemovedError):
        run.read_parameters(this, "latest")
