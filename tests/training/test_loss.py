"""The loss against its definition in float64, and its kernel against autodiff.

Bounds are for float32: sums of some hundred terms of order one, so a relative 1e-5.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.training import loss_kernel
from jaxformer.training.loss import LossSums, loss_sums
from jaxformer.training.loss_kernel import projected_loss_sums

VOCABULARY, WIDTH = 11, 8


def example(rows=3, length=6):
    """Decoder output, embedding and bias, targets, and segments, some 0."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, length, WIDTH)).astype(np.float32)
    embedding = rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    bias = rng.normal(size=VOCABULARY).astype(np.float32)
    target = rng.integers(0, VOCABULARY, (rows, length), np.int32)
    segments = rng.integers(0, 3, (rows, length), np.int32)
    segments[0, 0] = 1  # never all padding
    return x, embedding, bias, target, segments


@functools.partial(jax.jit, static_argnums=3)
def sums_of(logits, target, segments, label_smoothing):
    return loss_sums(logits, target, segments, label_smoothing=label_smoothing)


def definition(logits, target, segments, label_smoothing):
    """-sum_v q(v) log p(v) with q = (1 - eps) onehot + eps / V, in float64."""
    p = np.exp(np.float64(logits))
    p /= p.sum(-1, keepdims=True)
    q = (1 - label_smoothing) * np.eye(VOCABULARY)[target]
    q += label_smoothing / VOCABULARY
    return -(q * np.log(p)).sum(-1)[segments != 0].sum()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.6])
def test_the_loss_is_the_cross_entropy_to_the_smoothed_target(label_smoothing):
    """Padding changes nothing."""
    x, embedding, _, target, segments = example(rows=1)
    logits = x @ embedding.T
    sums = sums_of(logits, target, segments, label_smoothing)
    expected = [
        definition(logits, target, segments, label_smoothing),
        definition(logits, target, segments, 0.0),
        np.count_nonzero((logits.argmax(-1) == target) & (segments != 0)),
        np.count_nonzero(segments),
    ]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    padding = segments == 0
    logits[padding] = 50.0 + 3.0 * logits[padding]
    target[padding] = (target[padding] + 1) % VOCABULARY
    assert sums_of(logits, target, segments, label_smoothing) == sums
    nothing = sums_of(logits, target, np.zeros_like(segments), label_smoothing)
    assert nothing == LossSums(0.0, 0.0, 0.0, 0.0)


# --- the kernel ----------------------------------------------------------------------


def by_formula(x, embedding, bias, target, segments, label_smoothing):
    """The sums, from the logits."""
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    logits = product("btd,vd->btv", x, embedding.astype(x.dtype))
    logits += 0.0 if bias is None else bias[None, None]
    return loss_sums(logits, target, segments, label_smoothing=label_smoothing)


def sums_and_gradients(function, *arrays):
    """Loss sums, and the gradients of three times the loss in all that has one."""

    def tripled(*arrays):  # a gradient from above that is not one
        sums = function(*arrays, 0.1)
        return 3.0 * sums.loss, sums

    gradient = jax.grad(tripled, argnums=(0, 1, 2), has_aux=True)
    gradients, sums = jax.jit(gradient)(*arrays)
    return sums, jax.tree.leaves(gradients)


def assert_near(found, expected, bound):
    """Sums are near by 1e-5, gradients by the Euclidean norm."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for pair in zip(found[1], expected[1], strict=True):
        got, wanted = map(np.float64, pair)
        assert np.linalg.norm(got - wanted) < bound * np.linalg.norm(wanted)


@pytest.mark.parametrize("platform", loss_kernel.PLANS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("rows", "length", "chunk_tokens"),
    [
        (3, 8, 256),  # everything in one chunk
        (2, 7, 4),  # four chunks of four, the last one half full
        (5, 6, 1),  # single tokens
    ],
)
def test_the_kernel_has_the_sums_and_gradients_of_the_formula(
    rows, length, chunk_tokens, has_bias, platform, monkeypatch
):
    plan = loss_kernel.PLANS[platform]._replace(chunk_tokens=chunk_tokens)
    monkeypatch.setitem(loss_kernel.PLANS, "cpu", plan)
    x, embedding, bias, *others = example(rows, length)
    arrays = (x, embedding, bias if has_bias else None, *others)
    found = sums_and_gradients(projected_loss_sums, *arrays)
    assert_near(found, sums_and_gradients(by_formula, *arrays), 1e-5)
    norms = np.linalg.norm(found[1][0], axis=-1)
    assert ((norms > 0) == (others[1] != 0)).all()  # padding has no gradient


@pytest.mark.parametrize("size", [60.0, 200.0])
def test_the_right_piece_may_be_very_unlikely(size):
    """Up to 64 nats below others everything is exact; beyond, finite."""
    x = np.array([[[size, 0], [0, size]]], np.float32)
    embedding = np.array([[0, 0], [1, 0], [0, 1], [-20, -20]], np.float32)
    target, segments = np.array([[0, 3]], np.int32), np.array([[1, 0]], np.int32)
    found = sums_and_gradients(
        projected_loss_sums, x, embedding, None, target, segments
    )
    if size < loss_kernel.MOST:
        expected = sums_and_gradients(by_formula, x, embedding, None, target, segments)
        assert_near(found, expected, 1e-5)
    assert all(np.isfinite(each).all() for each in jax.tree.leaves(found))
    assert found[0].nll >= min(size, loss_kernel.MOST)
    assert found[1][0][0, 0, 0] > 0  # which makes the likely piece less likely


@pytest.mark.parametrize("chunk_tokens", [16, 48])  # three chunks, one
@pytest.mark.parametrize("adds_transposed", [False, True])
def test_bfloat16_keeps_the_loss_and_both_gradients(
    adds_transposed, chunk_tokens, monkeypatch
):
    """Products of two bfloat16 numbers are exact in float32, so the logits are too."""
    plan = loss_kernel.ChunkPlan(chunk_tokens, False, adds_transposed)
    monkeypatch.setitem(loss_kernel.PLANS, "cpu", plan)
    x, embedding, _, *others = example(rows=4, length=12)
    x, embedding = (np.float32(jnp.bfloat16(each)) for each in (x, embedding))
    expected = sums_and_gradients(by_formula, x, embedding, None, *others)
    arrays = (jnp.bfloat16(x), embedding, None, *others)
    found = sums_and_gradients(projected_loss_sums, *arrays)
    assert [gradient.dtype for gradient in found[1]] == [jnp.bfloat16, jnp.float32]
    assert_near(found, expected, 2**-7)  # bfloat16 has 8 bits
