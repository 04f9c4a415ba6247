"""The training benchmark: its work is what it says, and its batches hold the text."""

import math

import jax
import numpy as np
import pytest

from benchmarks.models import SIZES
from benchmarks.peers import batches
from benchmarks.peers.products import products
from jaxformer.corpus.store import TokenizedCorpus
from jaxformer.models.sequence_model import parameter_count
from jaxformer.text.ragged import Ragged
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


def test_the_peer_with_fused_attention_has_our_parameters_and_the_usual_masks():
    torch = pytest.importorskip("torch")
    from benchmarks.peers.torch_sdpa import Transformer

    sizes = SIZES["tiny"]
    peer = Transformer(sizes, 8).eval()
    ours = parameter_count(jax.eval_shape(sizes.model().init, jax.random.key(0)))
    assert sum(each.numel() for each in peer.parameters()) == ours
    batch = sizes.batch()
    source, target = (
        torch.from_numpy(ids).long() for ids in (batch.source, batch.target)
    )
    none = torch.zeros_like(source, dtype=torch.bool)
    with torch.no_grad():
        logits = peer(source, target, None, None)
        torch.testing.assert_close(peer(source, target, none, none), logits)
        later = target.clone()
        later[:, 5:] = 7  # what comes later changes nothing before
        torch.testing.assert_close(
            peer(source, later, None, None)[:, :5], logits[:, :5]
        )
        ends, other = none.clone(), source.clone()
        ends[:, 6:], other[:, 6:] = True, 9
        found = [peer(ids, target, ends, None) for ids in (source, other)]
        assert not torch.allclose(found[0], logits)
        torch.testing.assert_close(*found)
