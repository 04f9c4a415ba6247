"""Section 3.2: masks as literal matrices, and equation 1 by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.attention import attention_weights, dot_product_attention
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
