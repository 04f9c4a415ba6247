"""Runs whose words are split anew in each epoch."""

import json

import pytest

from jaxformer.corpus.prepared import open_prepared
from jaxformer.runs.run import open_run, plan_training
from tests.commands.runs import config_flags, last_state, losses
from tests.training.setups import assert_same

CORPORA = [{"name": "a", "weight": 1.5}, {"name": "b", "weight": [[0, 0.3], [7, 0.2]]}]


def test_a_stopped_run_ends_as_an_undisturbed_one(command, toy, tmp_path):
    """Of two stages, by Adafactor; it stops within epochs."""
    flags = (
        *toy.flags,
        *config_flags("data", subword_sampling=0.2, corpora=json.dumps(CORPORA)),
        *config_flags("optimizer", algorithm="adafactor", weight_decay=0.1),
        *config_flags("optimizer", schedule="constant", peak_learning_rate=1e-3),
        *config_flags("training", save_every=4, eval_every=96, average=1, log_every=1),
    )
    for name, ends in {"whole": [12], "parts": [9, 12]}.items():
        for steps in ends:
            until = f"--config.training.steps={steps}"
            answer = command("train", *flags, until, workdir=tmp_path / name)
            assert answer.code == 0, answer.err
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    states = (
        last_state(tmp_path / name, "params", "opt_state")
        for name in ("whole", "parts")
    )
    assert_same(*states)
    whole, parts = (
        command("translate", workdir=tmp_path / name, stdin=toy.dev).lines
        for name in ("whole", "parts")
    )
    assert whole == parts


@pytest.mark.usefixtures("quick_check")
def test_a_check_counts_the_updates_of_sampled_pairs(command, toy, tmp_path):
    sampling = "--config.data.subword_sampling=0.5"
    assert command("prepare", *toy.flags, sampling, workdir=tmp_path).code == 0
    run, prepared = open_run(tmp_path), open_prepared(tmp_path)
    usual = plan_training(run, prepared._replace(subwords=None)).updates_per_epoch
    found = command("check", workdir=tmp_path).result["updates_per_epoch"]
    assert found == plan_training(run, prepared).updates_per_epoch > 1.2 * usual
