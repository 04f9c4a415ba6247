"""Runs whose words are split anew in each epoch."""

import pytest

from jaxformer.corpus.prepared import open_prepared
from jaxformer.runs.run import open_run, plan_training


@pytest.mark.usefixtures("quick_check")
def test_a_check_counts_the_updates_of_sampled_pairs(command, toy, tmp_path):
    sampling = "--config.data.subword_sampling=0.5"
    assert command("prepare", *toy.flags, sampling, workdir=tmp_path).code == 0
    run, prepared = open_run(tmp_path), open_prepared(tmp_path)
    usual = plan_training(run, prepared._replace(subwords=None)).updates_per_epoch
    found = command("check", workdir=tmp_path).result["updates_per_epoch"]
    assert found == plan_training(run, prepared).updates_per_epoch > 1.2 * usual
