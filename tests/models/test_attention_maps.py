"""Attention weights by layer and head."""

import copy
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.models import local_attention
from tests.models.test_transformer import BATCH
from tests.models.tiny import model_of, params_of

COUNTS = np.array([[1], [2], [3], [4]])  # of keys that the decoder's queries see
LAYERS = {"encoder": 3, "decoder": 2, "cross": 2}
MODEL = model_of(encoder_layers=3, decoder_layers=2, d_v=4)


@pytest.fixture(scope="module")
def maps_and_params():
    return jax.jit(MODEL.attention), params_of(MODEL)


def test_each_row_sums_to_one_over_what_it_may_see(maps_and_params):
    maps_of, params = maps_and_params
    maps = jax.tree.map(np.asarray, maps_of(params, BATCH))
    assert maps.encoder.shape == (3, 2, 2, 5, 5)
    assert maps.decoder.shape == (2, 2, 2, 4, 4)
    assert maps.cross.shape == (2, 2, 2, 4, 5)
    for kind in maps:
        np.testing.assert_allclose(kind[:, 0].sum(axis=-1), 1.0, rtol=1e-5)
    assert (maps.decoder * np.triu(np.ones((4, 4)), k=1) == 0).all()
    assert (maps.encoder[:, 0] > 0).all()
    for second in (maps.encoder[:, 1, :, :3], maps.cross[:, 1]):  # of three pieces
        np.testing.assert_allclose(second.sum(axis=-1), 1.0, rtol=1e-5)
        assert (second[..., 3:] == 0).all()


@pytest.mark.parametrize("block", [local_attention.SMALLEST_BLOCK, 1])
def test_a_head_sees_its_window(block):
    """Whether attention is masked or in blocks; cross-attention sees everything."""
    model = model_of(layers=2, attention_window=2)
    sides = jnp.tile(BATCH.source, (1, 3)), jnp.tile(BATCH.target, (1, 3))
    batch = Batch(*sides, *map(jnp.ones_like, sides))
    with mock.patch.object(local_attention, "SMALLEST_BLOCK", block):
        maps = jax.jit(lambda: model.attention(params_of(model), batch))()
    for kind in ("encoder", "decoder"):
        own = getattr(maps, kind)
        band = np.tril(np.triu(np.ones(own.shape[-2:]), -1), 1)
        expected = np.tril(band) if kind == "decoder" else band
        is_seen = np.asarray(own > 0)
        np.testing.assert_array_equal(is_seen, np.broadcast_to(expected, is_seen.shape))
        np.testing.assert_allclose(own.sum(axis=-1), 1.0, rtol=1e-5)
    assert (maps.cross > 0).all()


@pytest.mark.parametrize("layer", range(2))
@pytest.mark.parametrize(
    ("kind", "stack", "attention", "expected"),
    [
        ("encoder", "encoder", "self_attention", np.full((5, 5), 0.2)),
        ("cross", "decoder", "cross_attention", np.full((4, 5), 0.2)),
        ("decoder", "decoder", "self_attention", np.tril(np.ones((4, 4))) / COUNTS),
    ],
    ids=["encoder", "cross", "decoder"],
)
def test_queries_of_zero_attend_evenly(
    maps_and_params, layer, kind, stack, attention, expected
):
    """Only in that layer of that kind, so each map is where its name says."""
    maps_of, params = maps_and_params
    params = copy.deepcopy(params)
    params[stack][f"layer_{layer}"][attention]["query"]["kernel"] *= 0
    maps = maps_of(params, BATCH)
    is_even = {
        name: [
            bool(np.allclose(each[0], expected if name == kind else -1, atol=1e-6))
            for each in found
        ]
        for name, found in maps._asdict().items()
    }
    own = [n == layer for n in range(LAYERS[kind])]
    assert is_even == {name: [False] * n for name, n in LAYERS.items()} | {kind: own}
