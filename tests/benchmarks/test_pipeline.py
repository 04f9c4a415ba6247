"""The benchmark of the input pipeline: what it counts."""

import numpy as np
import pytest

from benchmarks import pipeline
from jaxformer.corpus.store import TokenizedCorpus
from jaxformer.text.ragged import Ragged


@pytest.mark.parametrize("layout", pipeline.LAYOUTS)
def test_tokens_of_an_epoch_are_those_of_the_corpus(layout):
    """Padding is no token."""
    lengths = np.arange(1, 51)
    side = Ragged.one(np.ones(lengths.sum(), np.uint16), lengths)
    corpus = TokenizedCorpus(side, side)
    plan = pipeline.plan_of(corpus, layout, 256)
    count = plan.microbatches_per_epoch
    found = pipeline.count_tokens(corpus, plan, "python", count)
    assert found == lengths.sum()
