"""Runs whose text has several versions."""

import numpy as np
import pytest

from jaxformer.corpus.prepared import open_prepared
from jaxformer.runs.run import open_run, plan_training
from jaxformer.system.errors import InputError


@pytest.mark.usefixtures("quick_check")
def test_a_check_states_the_disk_of_versions_and_their_tokens(command, toy, tmp_path):
    flags = ["--config.data.subword_sampling=0.5", "--config.data.versions=3"]
    answer = command("check", *toy.flags, *flags, workdir=tmp_path)
    files = [*(tmp_path / "corpus" / "train").glob("*.npy")]
    files = [file for file in files if "lengths" not in file.name]
    assert len(files) == 6
    ids = sum(np.load(file).nbytes for file in files)
    assert answer.result["bytes_of_ids"] == ids
    assert f"3 versions, {ids / 1e6:.1f} MB of ids on disk" in answer.err
    tokens = sum(np.load(file).size for file in files if "target" in file.name) / 3
    updates = answer.result["updates_per_epoch"]
    assert answer.result["tokens_per_update"] == pytest.approx(tokens / updates, abs=1)
    run, prepared = open_run(tmp_path), open_prepared(tmp_path)
    with pytest.raises(InputError, match="has 1 version of its text instead of 3"):
        plan_training(run, prepared._replace(later_versions=()))
