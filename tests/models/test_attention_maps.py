"""Attention weights by layer and head."""

import copy
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.models import local_attention
from jaxformer.models.masks import causal_mask, segment_mask
from tests.models.test_transformer import BATCH
from tests.models.tiny import model_of, params_of

MODEL = model_of(encoder_layers=3, decoder_layers=2, d_v=4)
SOURCE, TARGET = BATCH.source_segments, BATCH.target_segments
QUERIES = {"self_attention": ("encoder", "decoder"), "cross_attention": ("decoder",)}
MASKS = {
    "encoder": segment_mask(SOURCE, SOURCE),
    "decoder": segment_mask(TARGET, TARGET) & causal_mask(4),
    "cross": segment_mask(TARGET, SOURCE),
}


@pytest.mark.parametrize("layer", [0, 1])
def test_queries_of_zero_attend_evenly_to_what_they_may_see(layer):
    """Those of one layer, so each map is where its name says."""
    params = copy.deepcopy(params_of(MODEL))
    for name, stacks in QUERIES.items():
        for stack in stacks:
            params[stack][f"layer_{layer}"][name]["query"]["kernel"] *= 0
    maps = jax.jit(MODEL.attention)(params, BATCH)
    for (kind, mask), count in zip(MASKS.items(), (3, 2, 2), strict=True):
        found = np.asarray(getattr(maps, kind))
        assert found.shape == (count, 2, 2, *mask.shape[2:])
        np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-5)
        is_real = mask.any(axis=-1, keepdims=True)  # queries of padding see all alike
        assert (found[:, np.broadcast_to(is_real & ~mask, found.shape[1:])] == 0).all()
        even = mask / np.maximum(mask.sum(axis=-1, keepdims=True), 1)
        is_even = [np.allclose(each * is_real, even, atol=1e-6) for each in found]
        assert is_even == [n == layer for n in range(count)]


def test_weights_sum_to_one_and_projected_keys_and_ssru_have_none():
    for changes in (
        {"positions": "relative", "max_positions": 1},
        {"attention_window": 2, "encoder_global_positions": 1},
        {"encoder_projected_keys": 3},
        {"decoder_self_attention": "ssru"},
    ):
        model = model_of(**changes)
        maps = jax.jit(model.attention)(params_of(model), BATCH)
        layers = [
            0 if key in changes else 1
            for key in ("encoder_projected_keys", "decoder_self_attention")
        ]
        assert maps.encoder.shape == (layers[0], 2, 2, 5, 5)
        assert maps.decoder.shape == (layers[1], 2, 2, 4, 4)
        for each in maps:
            np.testing.assert_allclose(each.sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("block", [local_attention.SMALLEST_BLOCK, 1])
def test_a_head_sees_its_window(block):
    """Whether attention is masked or in blocks; cross-attention sees everything."""
    model = model_of(layers=2, attention_window=2)
    sides = jnp.tile(BATCH.source, (1, 3)), jnp.tile(BATCH.target, (1, 3))
    batch = Batch(*sides, *map(jnp.ones_like, sides))
    with mock.patch.object(local_attention, "SMALLEST_BLOCK", block):
        maps = jax.jit(lambda: model.attention(params_of(model), batch))()
    for own, below in ((maps.encoder, 1), (maps.decoder, 0)):
        band = np.tri(own.shape[-1], k=below) - np.tri(own.shape[-1], k=-2)
        np.testing.assert_array_equal(own > 0, np.broadcast_to(band > 0, own.shape))
        np.testing.assert_allclose(own.sum(axis=-1), 1.0, rtol=1e-5)
    assert (maps.cross > 0).all()
