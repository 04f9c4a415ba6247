"""Longformer's attention against a mask made by hand, and its blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.models.global_attention import GlobalAttention
from jaxformer.models.local_attention import Neighbourhood, self_attention_mask

SEES = [  # a window of 2 and one global position; the last token is padding
    [1, 1, 1, 1, 0],
    [1, 1, 1, 0, 0],
    [1, 1, 1, 1, 0],
    [1, 0, 1, 1, 0],
    [0, 0, 0, 0, 0],
]


def module_of(first: int) -> GlobalAttention:
    return GlobalAttention(2, 4, 6, jnp.dtype("float32"), False, 1.0, first=first)


def test_the_first_positions_see_all_and_are_seen_by_all():
    mask = self_attention_mask(
        jnp.array([[1, 1, 1, 1, 0]]), window=2, is_causal=False, first=1
    )
    np.testing.assert_array_equal(mask[0, 0], SEES)


def test_outputs_are_those_of_each_positions_own_projections():
    """In float64, with a loop over queries and heads."""
    draw, mask = np.random.default_rng(0), np.array(SEES, bool)
    x = draw.normal(size=(1, 5, 8))
    module = module_of(1)
    given = (*[jnp.float32(x)] * 3, jnp.asarray(mask)[None, None])
    params = nn.unbox(jax.jit(module.init)(jax.random.key(1), *given))["params"]
    found = jax.jit(module.apply)({"params": params}, *given)
    kernels = {name: np.float64(leaf["kernel"]) for name, leaf in params.items()}
    for i in range(4):
        expected = np.zeros(8)
        prefix = "global_" if i == 0 else ""
        for head in range(2):
            query, key, value = (
                x[0] @ kernels[f"{prefix}{name}"][:, head]
                for name in ("query", "key", "value")
            )
            weights = np.exp(query[i] @ key.T / 2) * mask[i]
            mixed = weights / weights.sum() @ value
            expected += mixed @ kernels["output"][head]
        np.testing.assert_allclose(found[0, i], expected, atol=1e-5)


@pytest.mark.parametrize(("length", "window", "first"), [(97, 64, 3), (100, 4, 40)])
def test_blocks_have_the_values_and_gradients_of_the_mask(length, window, first):
    draw, module = np.random.default_rng(length), module_of(first)
    segments = np.ones((2, length), np.int32)
    segments[1, length // 2 :] = 0
    near = Neighbourhood(segments, window // 2, False, first)
    x = draw.normal(size=(2, length, 8)).astype(np.float32)
    cotangent = (
        draw.normal(size=x.shape).astype(np.float32) * (segments != 0)[..., None]
    )
    params = nn.unbox(module.init(jax.random.key(0), x, x, x, near.as_mask()))

    @jax.jit
    def run(mask):
        outputs, pull = jax.vjp(lambda p, x: module.apply(p, x, x, x, mask), params, x)
        return outputs * (segments != 0)[..., None], pull(cotangent)

    (found, gradients), (wanted, others) = run(near), run(near.as_mask())
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for ours, theirs in zip(*map(jax.tree.leaves, (gradients, others)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-5)
