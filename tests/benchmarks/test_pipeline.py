"""The benchmark of the input pipeline: what it counts, and that it runs."""

import json

import numpy as np
import pytest

from benchmarks import harness, pipeline
from jaxformer.data.store import Ragged, TokenizedCorpus


@pytest.mark.parametrize("layout", pipeline.LAYOUTS)
def test_tokens_of_an_epoch_are_those_of_the_corpus(layout, monkeypatch):
    """Padding is no token; a longer plan repeats the lengths."""
    lengths = np.arange(1, 51)
    side = Ragged(np.ones(lengths.sum(), np.uint16), np.cumsum([0, *lengths]))
    corpus = TokenizedCorpus(side, side)
    plan = pipeline.plan_of(corpus, layout, 256)
    monkeypatch.setattr(pipeline, "opened", lambda *_: (corpus, plan))
    work = "folder", layout, 256, "python", plan.microbatches_per_epoch, 0
    assert pipeline.count_tokens(*work) == lengths.sum()
    assert len(pipeline.plan_of(corpus, layout, 256, 130).classes) == 130


@pytest.mark.slow
def test_script_runs(capsys, monkeypatch):
    """The plain executor alone; the goals are of the slowest."""
    monkeypatch.setattr(harness, "PAUSE", 0)
    monkeypatch.setattr(pipeline, "MICROBATCHES", (256,))
    monkeypatch.setattr(harness, "has", lambda name: False)
    monkeypatch.setattr(pipeline, "step_rate", lambda *_: 10.0)
    sizes = {"pairs": 300, "vocabulary": 200, "microbatches": 3, "plan_pairs": 20}
    amounts = {name: (None, size) for name, size in sizes.items()}
    monkeypatch.setattr(pipeline, "AMOUNTS", amounts)
    assert pipeline.main(["--quick"]) == 0
    outcome = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = outcome["rates"]
    assert found.keys() == {"packed, 256", "buckets, 256"}
    alone = [each["python, 1 process, 1 core"]["per_second"] for each in found.values()]
    assert outcome["least_times_step"] == pytest.approx(min(alone) / 10)
    assert outcome["planning"]["a run, packed"]["per_second"] > 0
