"""Section 3.2: masks as literal matrices, equation 1 by hand, heads, packing."""

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


def test_causal_mask_is_lower_triangular():
    expected = [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    np.testing.assert_array_equal(causal_mask(3)[0, 0], expected)


def test_segment_mask_of_a_padded_row_hides_padding_only():
    mask = segment_mask(jnp.array([[1, 1]]), jnp.array([[1, 1, 0]]))
    np.testing.assert_array_equal(mask[0, 0], [[1, 1, 0], [1, 1, 0]])


def test_segment_mask_of_a_packed_row_is_block_diagonal():
    mask = segment_mask(jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2, 0]]))
    expected = [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
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


def test_division_by_sqrt_d_k_keeps_score_variance_at_one():
    query, key = (
        jax.random.normal(jax.random.key(seed), (1, 200, 1, 256)) for seed in (1, 2)
    )
    weights = attention_weights(query, key, None)
    log_weights = jnp.log(weights[0, 0])  # scores up to a constant of each row
    assert np.var(log_weights, axis=-1).mean() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("d_k", "d_v"), [(4, 4), (2, 6)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_each_head_attends_by_its_own_projection(d_k, d_v, has_bias):
    module = MultiHeadAttention(2, d_k, d_v, jnp.dtype("float32"), has_bias, 1.0)
    x = jax.random.normal(jax.random.key(0), (1, 5, 8))
    mask = causal_mask(5)
    params = nn.unbox(module.init(jax.random.key(1), x, x, mask))
    kernel, bias = {}, {}
    for name, leaf in params["params"].items():
        assert ("bias" in leaf) == has_bias
        kernel[name] = np.asarray(leaf["kernel"])
        shape = (8,) if name == "output" else kernel[name].shape[1:]
        bias[name] = np.linspace(-1, 1, np.prod(shape)).reshape(shape) * has_bias
        if has_bias:
            leaf["bias"] = jnp.asarray(bias[name], jnp.float32)
    out = module.apply(params, x, x, mask)

    heads = []
    for head in range(2):
        q, k, v = (
            np.asarray(x[0]) @ kernel[name][:, head] + bias[name][head]
            for name in ("query", "key", "value")
        )
        scores = np.where(mask[0, 0], q @ k.T / np.sqrt(d_k), -np.inf)
        weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
        heads.append(weights @ v @ kernel["output"][head])
    np.testing.assert_allclose(out[0], sum(heads) + bias["output"], atol=1e-5)
