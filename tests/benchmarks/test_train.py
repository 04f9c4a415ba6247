"""The training benchmark: its work is what it says."""

import math

import jax
import pytest

from benchmarks.models import SIZES
from benchmarks.peers.products import products
from jaxformer.models.sequence_model import parameter_count


@pytest.mark.parametrize("name", ["base", "small", "tiny"])
def test_products_are_those_that_a_run_counts(name):
    sizes = SIZES[name]
    counted = sum(2 * n * math.prod(product) for product, n in products(sizes).items())
    shape = (sizes.rows, sizes.source, sizes.target)
    assert counted == sizes.model().flops(*shape)


def test_the_peer_with_fused_attention_has_our_parameters_and_the_usual_masks():
    torch = pytest.importorskip("torch")
    from benchmarks.peers.torch_models import Fused

    sizes = SIZES["tiny"]
    peer = Fused(sizes, 8).eval()
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
