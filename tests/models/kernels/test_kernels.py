"""Each kernel has the values and the gradients of the plain formula beside it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import AbstractDevice

from jaxformer.models import attention, layers
from jaxformer.models.kernels import attention as attention_kernel
from jaxformer.models.kernels.attention import attend
from jaxformer.models.kernels.dropout import drop, random_bits
from jaxformer.models.kernels.elementwise import copies, look_up, relu
from jaxformer.models.kernels.linear import multiply
from jaxformer.models.kernels.norm import layer_norm, mean_and_variance
from jaxformer.models.kernels.recurrence import loop, product_of_output
from jaxformer.models.local_attention import self_attention_mask
from jaxformer.models.masks import causal_mask, segment_mask
from jaxformer.models.recurrent.cells import gate

DRAW = np.random.default_rng(0)
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 2, 2]])
PACKED = segment_mask(SEGMENTS, SEGMENTS)  # a query of padding sees no key
WINDOW = self_attention_mask(SEGMENTS, window=3, is_causal=True)


def draw(*shape):
    return jnp.asarray(DRAW.standard_normal(shape), jnp.float32)


def assert_equal(kernel, formula, *inputs):
    """In values, and in the gradients of all inputs for one of the outputs."""
    found, pull = jax.vjp(kernel, *inputs)
    expected, pull_formula = jax.vjp(formula, *inputs)
    gradient = jax.tree.map(lambda leaf: draw(*leaf.shape), expected)
    close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    jax.tree.map(close, found, expected)
    jax.tree.map(close, pull(gradient), pull_formula(gradient))


@pytest.mark.parametrize("device", ["cpu", "TPU v5p"])
@pytest.mark.parametrize("mask", [None, causal_mask(6), PACKED, WINDOW], ids=str)
def test_attention(mask, device, monkeypatch):
    device = AbstractDevice(device, num_cores=1, platform="")
    monkeypatch.setattr(attention_kernel, "device_of_program", lambda: device)
    monkeypatch.setattr(attention_kernel, "LARGE", 1)
    heads = [draw(2, 6, 3, size) for size in (4, 4, 5)]
    formula = attention.dot_product_attention
    real = (SEGMENTS != 0)[:, :, None, None] if mask is WINDOW else 1.0
    assert_equal(
        lambda *given: attend(*given, mask) * real,
        lambda *given: formula(*given, mask) * real, *heads,
    )  # fmt: skip


def test_relu():
    assert_equal(relu, lambda x: jnp.maximum(x, 0), draw(40))


def test_copies():
    assert_equal(lambda x: copies(x, 3), lambda x: (x, x, x), draw(4, 2))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_dropout(platform, branches_of):
    """The gradient has the mask of the values."""
    branches_of(platform)
    seeds = jnp.uint32(3), jnp.uint32(5)
    keep = random_bits(seeds, (8, 16), 2) >= np.uint32(0.3 * 2**32)
    assert_equal(
        lambda x: drop(x, seeds, 2, 0.3),
        lambda x: jnp.where(keep, x / 0.7, 0.0), draw(8, 16),
    )  # fmt: skip


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_layer_norm(platform, branches_of):
    branches_of(platform)
    plain = partial(layers.layer_norm, epsilon=0.1)
    given = 3 * draw(2, 3, 8) + 1, draw(8), draw(8)
    assert_equal(lambda *given: layer_norm(*given, 0.1), plain, *given)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_moments_over_the_first_axis(platform, branches_of):
    branches_of(platform)
    x = draw(16, 3)
    for found, formula in zip(mean_and_variance(x), (jnp.mean, jnp.var), strict=True):
        np.testing.assert_allclose(found, formula(x, axis=0, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_layer_norm_of_bfloat16_is_computed_in_float32(platform, branches_of):
    branches_of(platform)
    x = (1000 + jax.random.normal(jax.random.key(0), (4, 512))).astype(jnp.bfloat16)
    out = layer_norm(x, jnp.ones(512), jnp.zeros(512), epsilon=1e-6)
    assert out.dtype == jnp.bfloat16
    expected = scipy.stats.zscore(np.asarray(x, np.float64), axis=-1)
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=0.02)


def test_rows_of_a_table():
    """The table that is returned takes the gradient of the rows beside its own."""
    ids = jnp.array([[0, 2, 2], [3, 0, 1]])
    assert_equal(
        lambda table: look_up(table, ids, "float32"),
        lambda table: (table[ids], table), draw(5, 4),
    )  # fmt: skip


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("gates", [4, 3, 1])
def test_the_loop_of_a_recurrent_layer(gates, is_reverse):
    """An LSTM, a GRU and a tanh cell, with states that begin anew."""
    length, rows, width = 5, 2, 3
    is_start = jnp.asarray(DRAW.random((length, rows, 1)) < 0.4)
    bias = draw(width) if gates == 3 else None

    def plain(recurrent, bias, x, start):
        state = (jnp.zeros((rows, width)),) * (2 if gates == 4 else 1)
        found = [None] * length
        for t in reversed(range(length)) if is_reverse else range(length):
            state = tuple(jnp.where(is_start[t], start[t], each) for each in state)
            state = gate(x[t], product_of_output(recurrent, state), state, bias)
            found[t] = state[0]
        return jnp.stack(found)

    given = (
        draw(width, gates * width), bias, draw(length, rows, gates * width),
        draw(length, rows, width),
    )  # fmt: skip
    assert_equal(
        lambda recurrent, bias, x, start: loop(
            gate, recurrent, bias, x, (is_start, start), is_reverse
        ),
        plain, *given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("of_x", "of_matrix", "factors", "bound"),
    [
        ("float32", "float32", "float32", 1e-6),
        ("float32", "float32", "bfloat16", 1e-6),  # of CPUs: sums in float32
        ("float32", "bfloat16", "bfloat16", 2**-8),  # parameters gathered in bfloat16
        ("bfloat16", "float32", "bfloat16", 2**-8),
    ],
)
def test_the_product_and_its_gradients_are_the_plain_ones(
    of_x, of_matrix, factors, bound
):
    """Of factors rounded to their type; results have the types of what they are of."""
    draw = np.random.default_rng(0)

    def rounded(*shape):
        return jnp.asarray(draw.standard_normal(shape), factors).astype("float32")

    x, matrix, gradient = rounded(3, 5, 4), rounded(4, 6), rounded(3, 5, 6)
    given = x.astype(of_x), matrix.astype(of_matrix)
    y, pull = jax.vjp(lambda *given: multiply(*given, factors), *given)
    found = y, *pull(gradient.astype(of_x))
    expected, pull_plain = jax.vjp(jnp.matmul, x, matrix)
    for ours, theirs, like in zip(
        found, (expected, *pull_plain(gradient)), (given[0], *given), strict=True
    ):
        assert ours.dtype == like.dtype
        ours = np.asarray(ours, np.float32)
        np.testing.assert_allclose(ours, theirs, rtol=bound, atol=bound)
