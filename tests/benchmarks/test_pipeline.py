"""The benchmark of the input pipeline: what it counts."""

import numpy as np
import pytest

from benchmarks import pipeline
from jaxformer.corpus.store import TokenizedCorpus
from jaxformer.text.ragged import Ragged


@pytest.mark.parametrize("layout", pipeline.LAYOUTS)
def test_tokens_of_an_epoch_are_those_of_the_corpus(layout, monkeypatch):
    """Padding is no token; a longer plan repeats the lengths."""
    lengths = np.arange(1, 51)
    side = Ragged.one(np.ones(lengths.sum(), np.uint16), lengths)
    corpus = TokenizedCorpus(side, side)
    plan = pipeline.plan_of(corpus, layout, 256)
    monkeypatch.setattr(pipeline, "opened", lambda *_: (corpus, plan))
    work = "folder", layout, 256, "python", plan.microbatches_per_epoch, 0
    assert pipeline.count_tokens(*work) == lengths.sum()
    assert len(pipeline.plan_of(corpus, layout, 256, 130).classes) == 130
