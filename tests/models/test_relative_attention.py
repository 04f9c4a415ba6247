"""Relative positions against equations 3 and 4 of Shaw et al. (2018)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.masks import causal_mask, segment_mask
from jaxformer.models.relative_attention import relative_mix, relative_weights

SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1] * 8])
MASKS = {
    "all": np.ones((1, 1, 8, 8), bool),
    "packed": np.asarray(segment_mask(SEGMENTS, SEGMENTS)),
    "causal": np.asarray(causal_mask(8)),
}
SEES_ALL = np.ones((1, 1, 1, 1), bool)


def draw(reach):
    """query, key, value, a^K, a^V and a cotangent; K is 4, U is 6."""
    rng = np.random.default_rng(reach)
    tables = ((2 * reach + 1, size) for size in (4, 6))
    shapes = (2, 8, 3, 4), (2, 8, 3, 4), (2, 8, 3, 6), *tables, (2, 8, 3, 6)
    return [rng.normal(size=shape) for shape in shapes]


def by_definition(query, key, value, of_key, of_value, mask, numpy=np):
    """Both sums, with a vector for each pair of tokens."""
    reach, index = len(of_key) // 2, np.arange(8)
    clipped = np.clip(index[None] - index[:, None], -reach, reach) + reach  # [i, j]
    keys = key[:, None] + of_key[clipped][None, :, :, None]  # [B, i, j, H, K]
    scores = numpy.einsum("bihk,bijhk->bhij", query, keys) / 2  # sqrt(d_k)
    weights = numpy.where(mask, numpy.exp(scores), 0)
    weights = weights / numpy.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    values = value[:, None] + of_value[clipped][None, :, :, None]
    return numpy.einsum("bhij,bijhu->bihu", weights, values)


def ours(query, key, value, of_key, of_value, mask):
    weights = relative_weights(query, key, of_key, mask)
    return relative_mix(weights, value, of_value)


@jax.jit
def values_and_gradients(mask, cotangent, *inputs):
    """Ours, and the gradients by definition."""
    heads, pull = jax.vjp(lambda *xs: ours(*xs, mask), *inputs)
    _, slow = jax.vjp(lambda *xs: by_definition(*xs, mask, numpy=jnp), *inputs)
    return heads, pull(cotangent), slow(cotangent)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("reach", [1, 3, 7, 20])
def test_values_and_gradients_are_those_of_both_equations(reach, name):
    *inputs, cotangent = draw(reach)
    sees = MASKS[name].any(axis=-1).swapaxes(1, 2)[..., None]  # [B or 1, T, 1, 1]
    cotangent = (cotangent * sees).astype(np.float32)
    expected = by_definition(*inputs, MASKS[name])
    inputs = [each.astype(np.float32) for each in inputs]
    mask = np.broadcast_to(MASKS[name], (2, 1, 8, 8))  # one program for all masks
    heads, gradients, slow = values_and_gradients(mask, cotangent, *inputs)
    np.testing.assert_allclose(heads * sees, expected * sees, atol=1e-5)
    for found, wanted in zip(gradients, slow, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_no_array_has_a_vector_for_each_pair_of_tokens():
    shapes = (1, 64, 2, 32), (1, 64, 2, 32), (1, 64, 2, 32), (9, 32), (9, 32)
    inputs = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]

    def loss(*inputs):
        return ours(*inputs, SEES_ALL).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=range(5)))(*inputs).jaxpr
    sizes = [x.aval.size for each in jaxpr.eqns for x in each.outvars]
    assert max(sizes) <= 2 * 2 * 64 * 64  # heads, twice the scores


def test_bfloat16_sums_weights_in_float32():
    *inputs, _ = draw(3)
    narrow = [jnp.asarray(each, "bfloat16") for each in inputs]
    heads = ours(*narrow, SEES_ALL)
    assert heads.dtype == jnp.bfloat16
    exact = ours(*(each.astype("float32") for each in narrow), SEES_ALL)
    np.testing.assert_allclose(heads, exact, atol=0.06)
