"""Section 3.2: masks as literal matrices, equation 1 by hand, heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.models.attention import (
    MultiHeadAttention,
    attention_weights,
    dot_product_attention,
)
from jaxformer.models.masks import causal_mask, segment_mask


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (causal_mask(3), [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (segment_mask(np.array([[1, 1]]), np.array([[1, 1, 0]])), [[1, 1, 0]] * 2),
        (
            segment_mask(np.array([[1, 1, 2, 0]]), np.array([[1, 2, 2, 0]])),
            [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]],
        ),
    ],
    ids=["causal", "padded", "packed"],
)
def test_masks_hide_the_future_padding_and_other_sentences(mask, expected):
    np.testing.assert_array_equal(mask[0, 0], expected)


def test_equation_1_by_hand():
    # d_k = 4, so scores are halved: q.k = (4 ln 3, 0) gives weights 9/10 and 1/10.
    query = jnp.array([[2.0 * np.log(3), 0, 0, 0]]).reshape(1, 1, 1, 4)
    key = jnp.array([[2.0, 0, 0, 0], [0, 5.0, 0, 0]]).reshape(1, 2, 1, 4)
    value = jnp.array([[10.0], [20.0]]).reshape(1, 2, 1, 1)
    weights = attention_weights(query, key, None)
    np.testing.assert_allclose(weights[0, 0, 0], [0.9, 0.1], rtol=1e-6)
    out = dot_product_attention(query, key, value)
    np.testing.assert_allclose(out[0, 0, 0, 0], 0.9 * 10 + 0.1 * 20, rtol=1e-6)


def test_masked_keys_get_no_weight_and_a_row_without_keys_stays_finite():
    query = key = value = jax.random.normal(jax.random.key(0), (1, 3, 1, 4))
    mask = jnp.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)[None, None]
    weights = attention_weights(query, key, mask)
    assert weights[0, 0, 0, 1] == 0.0
    np.testing.assert_allclose(weights.sum(-1), np.ones((1, 1, 3)), rtol=1e-6)
    assert np.isfinite(dot_product_attention(query, key, value, mask)).all()


@pytest.mark.parametrize(("d_k", "d_v"), [(4, 4), (2, 6)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_each_head_attends_by_its_own_projection(d_k, d_v, has_bias):
    module = MultiHeadAttention(2, d_k, d_v, jnp.dtype("float32"), has_bias, 1.0)
    x, mask = jax.random.normal(jax.random.key(0), (1, 5, 8)), causal_mask(5)
    params = nn.unbox(module.init(jax.random.key(1), x, x, mask)["params"])
    for leaf in params.values() if has_bias else ():
        leaf["bias"] = jnp.linspace(-1, 1, leaf["bias"].size).reshape(
            leaf["bias"].shape
        )
    expected = np.zeros((5, 8)) + params["output"].get("bias", np.zeros(8))[None]
    for head in range(2):
        query, key, value = (
            x[0] @ each["kernel"][:, head]
            + each.get("bias", np.zeros((2, 1)))[head][None]
            for each in (params["query"], params["key"], params["value"])
        )
        scores = np.where(mask[0, 0], query @ key.T / np.sqrt(d_k), -np.inf)
        weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
        expected += weights @ value @ params["output"]["kernel"][head]
    out = module.apply({"params": params}, x, x, mask)
    np.testing.assert_allclose(out[0], expected, atol=1e-5)
