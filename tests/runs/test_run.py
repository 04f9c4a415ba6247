"""Which parameters of a run are read."""

from types import SimpleNamespace

import pytest

from jaxformer.runs import run
from jaxformer.runs.workdir import Workdir
from tests.training.saved import make_state, open_checkpoints
from tests.training.setups import assert_same


@pytest.mark.parametrize(
    ("which", "fill"),
    [(None, 2), ("best", 2), ("latest", 1), ("1", 1), ("average:1", 1)],
)
def test_the_best_are_the_moving_average_which_validation_scored(
    tmp_path, monkeypatch, which, fill
):
    training = {"ema_decay": 0.9, "average": 5, "patience": None, "steps": 1}
    config = SimpleNamespace(training=SimpleNamespace(**training, best_by="bleu"))
    state = make_state(1)._replace(ema=make_state(2).params)
    with open_checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(1, state)
    monkeypatch.setattr(run, "read_scores", lambda *_: {1: 30.0})
    this = SimpleNamespace(workdir=Workdir(tmp_path), config=config)
    assert_same(run.read_parameters(this, which), make_state(fill).params)
