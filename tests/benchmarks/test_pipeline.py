"""The benchmark of the input pipeline: what it counts, and that it runs."""

import gzip
import json

import numpy as np
import pytest

from benchmarks import harness, pipeline
from benchmarks.readers import Work, count_tokens, plan_of
from jaxformer.data.store import Ragged, TokenizedCorpus


@pytest.mark.parametrize("layout", pipeline.LAYOUTS)
def test_tokens_of_an_epoch_are_those_of_the_corpus(layout):
    """Padding is no token; a longer plan repeats the lengths."""
    lengths = np.arange(1, 51)
    side = Ragged(np.ones(lengths.sum(), np.uint16), np.cumsum([0, *lengths]))
    corpus = TokenizedCorpus(side, side)
    work = Work(layout, 256, "python", 0)
    plan = plan_of(corpus, work)
    whole = work._replace(microbatches=plan.microbatches_per_epoch)
    assert count_tokens(corpus, plan, whole) == lengths.sum()
    assert len(plan_of(corpus, work, 130).classes) == 130


def test_goals_are_of_the_slowest():
    def found(alone, both):
        rates = {"python, 1 process, 1 core": alone, "python, 2 processes": both}
        return {name: {"per_second": rate} for name, rate in rates.items()}

    rates = {"packed": found(9e4, 2e5), "buckets": found(8e4, 3e5)}
    assert pipeline.goals({"rates": rates, "step_rate": 4e3}) == {
        "least_times_step": 20, "extrapolated_cores": 16,
        "extrapolated_least_per_second": 1.6e6, "met": True,
    }  # fmt: skip
    assert not pipeline.goals({"rates": rates, "step_rate": 5e3})["met"]
    rates["packed"] = found(9e4, 1.2e5)
    assert not pipeline.goals({"rates": rates, "step_rate": 4e3})["met"]


def test_one_side_of_the_text_is_refused(capsys):
    with pytest.raises(SystemExit):
        pipeline.main(["--source=a"])
    assert "go together" in capsys.readouterr().err


def test_script_runs(tmp_path, capsys, monkeypatch):
    """On a text of two files, the plain executor alone."""
    monkeypatch.setattr(harness, "PAUSE", 0)
    monkeypatch.setattr(pipeline, "SIZES", (256,))
    for language in ("en", "de"):
        words = [f"{language} {a} und {b} sind {a} {b}" for a in "abc" for b in "xyz"]
        text = gzip.compress("\n".join(words).encode())
        (tmp_path / f"text.{language}.gz").write_bytes(text)
    code = pipeline.main(
        [
            "--quick", "--executors=python", "--step_rate=10", "--microbatches=3",
            "--plan_pairs=20", "--vocabulary=40", f"--source={tmp_path}/*.en.gz",
            f"--target={tmp_path}/*.de.gz",
        ]
    )  # fmt: skip
    *_, last = capsys.readouterr().out.splitlines()
    outcome = json.loads(last)
    assert code == 0
    assert outcome["corpus"]["pairs"] == 9
    assert outcome["rates"].keys() == {"packed, 256", "buckets, 256"}
    for found in outcome["rates"].values():
        assert "python, 1 process, 1 core" in found
        assert all(each["per_second"] > 0 for each in found.values())
    assert outcome["planning"]["packed"]["pairs"] == 20
