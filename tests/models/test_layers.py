"""Sections 3.1, 3.3 and 3.5: positions, layer norm, feed-forward, sub-layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.models.layers import (
    FeedForward,
    Sublayer,
    layer_norm,
    sinusoidal_positions,
)


def test_positions_interleave_sines_and_cosines():
    rows = [[np.sin(p), np.cos(p), np.sin(p / 100), np.cos(p / 100)] for p in range(3)]
    np.testing.assert_allclose(sinusoidal_positions(3, 4), rows, atol=1e-7)


def test_wavelengths_run_from_two_pi_to_almost_10000_two_pi():
    table = sinusoidal_positions(30_000, 512)
    # The last pair of columns has wavelength 2 pi 10000^(510/512) = 60,611 positions.
    quarter = round(2 * np.pi * 10000 ** (510 / 512) / 4)
    assert table[quarter, -2] == pytest.approx(1.0, abs=1e-6)
    assert table[quarter, -1] == pytest.approx(0.0, abs=1e-3)


def test_layer_norm_by_hand():
    x = jnp.array([[1.0, 3.0]])  # mean 2, standard deviation 1
    out = layer_norm(x, jnp.array([2.0, 2.0]), jnp.array([0.5, 0.0]), epsilon=1e-6)
    np.testing.assert_allclose(out, [[-1.5, 2.0]], atol=1e-5)
    out = layer_norm(x, jnp.ones(2), jnp.zeros(2), epsilon=3.0)
    np.testing.assert_allclose(out, [[-0.5, 0.5]], atol=1e-6)  # of variance 1 + 3


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    x = (1000 + jax.random.normal(jax.random.key(0), (4, 512))).astype(jnp.bfloat16)
    out = layer_norm(x, jnp.ones(512), jnp.zeros(512), epsilon=1e-6)
    wide = np.asarray(x, np.float64)
    deviation = np.sqrt(wide.var(-1, keepdims=True) + 1e-6)
    expected = (wide - wide.mean(-1, keepdims=True)) / deviation
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=0.02)


def feed_forward(d_ff, activation):
    """Equation 2 with d_model = 1."""
    return FeedForward(1, d_ff, activation, jnp.dtype("float32"), 1.0)


def test_equation_2_by_hand():
    params = {
        "hidden": {"kernel": jnp.array([[1.0, -1.0]]), "bias": jnp.array([0.5, 0.5])},
        "output": {"kernel": jnp.array([[2.0], [3.0]]), "bias": jnp.array([1.0])},
    }
    x = jnp.array([[[2.0], [-2.0]]])
    out = feed_forward(2, "relu").apply({"params": params}, x)
    # max(0, 2.5) * 2 + max(0, -1.5) * 3 + 1 = 6; max(0, -1.5) * 2 + 2.5 * 3 + 1 = 8.5
    np.testing.assert_allclose(out[0, :, 0], [6.0, 8.5])


def test_swish_replaces_the_maximum():
    one = {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)}
    params, x = {"hidden": one, "output": one}, jnp.array([[[np.log(3.0)], [0.0]]])
    out = feed_forward(1, "swish").apply({"params": params}, x)
    np.testing.assert_allclose(out[0, :, 0], [0.75 * np.log(3), 0.0], rtol=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_sublayer_normalises_first_or_last(norm_first):
    module = Sublayer(dropout=0.5, norm_first=norm_first, epsilon=1e-6)
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    params = nn.unbox(module.init(jax.random.key(1), x, jnp.tanh))
    out = module.apply(params, x, jnp.tanh)
    learned = {"scale": jnp.ones(4), "bias": jnp.zeros(4)}
    norm = functools.partial(layer_norm, **learned, epsilon=1e-6)
    expected = x + jnp.tanh(norm(x)) if norm_first else norm(x + jnp.tanh(x))
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_sublayer_drops_the_function_and_never_the_residual():
    module = Sublayer(dropout=0.5, norm_first=True, epsilon=1e-6)
    x = jnp.full((1, 100, 16), 7.0)
    params = nn.unbox(module.init(jax.random.key(1), x, jnp.ones_like))
    rngs = {"dropout": jax.random.key(2)}
    out = module.apply(params, x, jnp.ones_like, rngs=rngs)
    assert set(np.unique(out)) == {7.0, 9.0}  # x, or x + 1 / (1 - 0.5)
