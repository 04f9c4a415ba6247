"""The training benchmark: its work is what it says, and its batches hold the text."""

import math

import numpy as np
import pytest

from benchmarks.models import SIZES
from benchmarks.peers import batches
from benchmarks.peers.products import products
from jaxformer.data.ragged import Ragged
from jaxformer.data.store import TokenizedCorpus
from jaxformer.tokens import PAD


@pytest.mark.parametrize("name", ["base", "small", "lstm", "convs2s", "tiny"])
def test_products_are_those_that_a_run_counts(name):
    sizes = SIZES[name]
    counted = sum(2 * n * math.prod(product) for product, n in products(sizes).items())
    shape = (sizes.rows, sizes.source, sizes.target)
    assert counted == sizes.model().flops(*shape)


def ragged(*sequences):
    return Ragged.of(sequences)


@pytest.mark.parametrize("make", [batches.planned, batches.sorted_by_length])
def test_an_epoch_has_every_pair_once_within_the_budget(make):
    draw = np.random.default_rng(0)
    sides = [
        ragged(*(draw.integers(4, 60, draw.integers(1, 20)) for _ in range(100)))
        for _ in range(2)
    ]
    batching = dict(layout="buckets", row_length=32, max_shapes=4, row_multiple=1)
    text = batches.Text(TokenizedCorpus(*sides), 64, batching)
    epoch = make(text, 64)
    assert [each for part in batches.parts(epoch, 3, 0) for each in part] == epoch
    assert [len(part) for part in batches.parts(epoch, 3, 2)] == [2, 2, 2]
    for side in ("source", "target"):
        ids = [getattr(batch, side) for batch in epoch]
        found = np.sort(np.concatenate([each[each != PAD] for each in ids]))
        assert (found == np.sort(getattr(text.corpus, side).tokens)).all()
        assert max(each.size for each in ids) <= 64
    size = sum(batch.source.size + batch.target.size for batch in epoch)
    tokens = sum(len(side.tokens) for side in sides)
    assert batches.real_token_share(epoch) == pytest.approx(tokens / size)
    shapes = {(*batch.source.shape, batch.target.shape[1]) for batch in epoch}
    assert len(batches.by_shape(epoch)) == len(shapes)
