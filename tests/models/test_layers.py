"""Sections 3.1, 3.3 and 3.5: positions, layer norm, feed-forward, sub-layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.layers import (
    FeedForward,
    Sublayer,
    dropout,
    layer_norm,
    residual,
    sinusoidal_positions,
)
from jaxformer.models.positions import position_table, rotate, rotations


def test_positions_of_other_programs():
    """Sines first; wavelengths from 1 to 10000 times 2 pi; fairseq begins at 2."""
    angle = np.arange(5)[:, None] / np.array([[1.0, 100.0, 10000.0]])
    rows = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    found = position_table("tensor2tensor", 5, 6), position_table("fairseq", 3, 6)
    np.testing.assert_allclose(found[0], rows, atol=1e-7)
    np.testing.assert_allclose(found[1], rows[2:], atol=1e-7)


def test_positions_interleave_sines_and_cosines():
    rows = [[np.sin(p), np.cos(p), np.sin(p / 100), np.cos(p / 100)] for p in range(3)]
    np.testing.assert_allclose(sinusoidal_positions(3, 4), rows, atol=1e-7)


def test_rotation_is_a_product_of_complex_numbers():
    """Su et al. 2021, section 3.2: i and i + K / 2 are a complex number."""
    draw, positions = np.random.default_rng(0), np.array([[0, 1, 500], [7, 7, 3]])
    x = draw.normal(size=(2, 3, 2, 6))
    turns = [each[:, :, None] for each in rotations(positions, 501, 6)]
    found = np.asarray(rotate(jnp.float32(x), *turns, axis=3))
    angles = positions[..., None] * 10000.0 ** (-2 * np.arange(3) / 6)
    expected = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angles)[:, :, None]
    np.testing.assert_allclose(found[..., :3], expected.real, atol=1e-5)
    np.testing.assert_allclose(found[..., 3:], expected.imag, atol=1e-5)


def test_scores_of_rotated_queries_and_keys_depend_on_the_distance_alone():
    query, key = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)

    def score(at, other):
        sides = zip((query, key), (at, other), strict=True)
        return np.dot(*(
            rotate(x, *rotations(jnp.int32(p), 64, 8), axis=0) for x, p in sides
        ))  # fmt: skip

    for distance in (-5, 0, 9):
        scores = [score(p + distance, p) for p in (5, 12, 40)]
        np.testing.assert_allclose(scores, scores[0], atol=1e-5)
    assert abs(score(9, 5) - score(5, 5)) > 0.1


@pytest.fixture(params=["cpu", "tpu"])
def platform(request):
    """Trace the operations for CPUs, and those for TPUs."""
    if request.param == "tpu":
        request.getfixturevalue("branches_of_tpu")


@pytest.mark.usefixtures("platform")
def test_layer_norm_by_hand():
    x = jnp.array([[1.0, 3.0]])  # mean 2; the variance is 1, with epsilon 4
    out = layer_norm(x, jnp.array([4.0, 4.0]), jnp.array([0.5, 0.0]), epsilon=3.0)
    np.testing.assert_allclose(out, [[-1.5, 2.0]], atol=1e-5)


HIGH, LOW = 2.5 / (1 + np.exp(-2.5)), -1.5 / (1 + np.exp(1.5))  # swish of 2.5, -1.5


@pytest.mark.parametrize(
    ("activation", "outputs"),
    [
        ("relu", [2.5 * 2 + 1, 2.5 * 3 + 1]),
        ("swish", [2 * HIGH + 3 * LOW + 1, 2 * LOW + 3 * HIGH + 1]),
    ],
)
def test_equation_2_by_hand(activation, outputs):
    """With d_model = 1, where the hidden layer is x + 0.5 and 0.5 - x."""
    params = {
        "hidden": {"kernel": jnp.array([[1.0, -1.0]]), "bias": jnp.array([0.5, 0.5])},
        "output": {"kernel": jnp.array([[2.0], [3.0]]), "bias": jnp.array([1.0])},
    }
    module = FeedForward(1, 2, activation, jnp.dtype("float32"), 1.0)
    out = module.apply({"params": params}, jnp.array([[[2.0], [-2.0]]]))
    np.testing.assert_allclose(out[0, :, 0], outputs, rtol=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_sublayer_normalises_first_or_last(norm_first):
    module = Sublayer(dropout=0.5, norm_first=norm_first, epsilon=1e-6)
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    learned = {"scale": jnp.full(4, 2.0), "bias": jnp.arange(4.0)}
    out = module.apply({"params": {"norm": learned}}, x, jnp.tanh)
    norm = functools.partial(layer_norm, **learned, epsilon=1e-6)
    expected = x + jnp.tanh(norm(x)) if norm_first else norm(x + jnp.tanh(x))
    np.testing.assert_allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_function_is_dropped_and_never_the_residual(norm_first):
    how = {"norm": lambda x: x, "norm_first": norm_first}
    drop = functools.partial(dropout, rate=0.5, key=jax.random.key(1))
    out = residual(jnp.full((100, 16), 7.0), jnp.ones_like, drop=drop, **how)
    assert set(np.unique(out)) == {7.0, 9.0}  # x, or x + 1 / (1 - 0.5)
