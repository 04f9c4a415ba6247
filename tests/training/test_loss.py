"""The loss against numbers worked out by hand and against its definition.

Bounds are for float32: sums of some hundred terms of order one, so a relative 1e-5.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.training import loss_kernel
from jaxformer.training.loss import LossSums, loss_sums
from jaxformer.training.loss_kernel import projected_loss_sums

VOCABULARY = 11
ROWS, LENGTH = 3, 6

compiled_loss_sums = jax.jit(loss_sums)


def example(rows=ROWS, length=LENGTH, *, seed=0, width=8):
    """Decoder output [B, T, D], embedding [V, D], targets, and segments, some 0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, length, width)).astype(np.float32)
    embedding = rng.normal(size=(VOCABULARY, width)).astype(np.float32)
    target = rng.integers(0, VOCABULARY, (rows, length), np.int32)
    segments = rng.integers(0, 3, (rows, length), np.int32)
    segments[0, 0] = 1  # never all padding
    return x, embedding, target, segments


def sums_of(logits, target, segments, label_smoothing):
    return compiled_loss_sums(logits, target, segments, label_smoothing=label_smoothing)


def definition(logits, target, segments, label_smoothing):
    """-sum_v q(v) log p(v) with q = (1 - eps) onehot + eps / V, in float64."""
    logits = np.asarray(logits, np.float64)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    q = (1 - label_smoothing) * np.eye(logits.shape[-1])[target]
    q += label_smoothing / logits.shape[-1]
    return -(q * np.log(p)).sum(-1)[np.asarray(segments) != 0].sum()


def test_three_pieces_by_hand():
    # Probabilities (1/2, 1/4, 1/4) and (1/8, 1/8, 3/4): logits are their logarithms,
    # up to a constant, which a softmax does not see.
    logits = np.float32(
        [[[math.log(2), 0.0, 0.0], [5.0, 5.0, 5.0 + math.log(6)], [9.0, 0.0, 0.0]]]
    )
    target = np.array([[1, 2, 0]])
    segments = np.array([[1, 1, 0]])  # the third place is padding
    nll = math.log(4) + math.log(4 / 3)
    # Cross-entropy to (1/3, 1/3, 1/3), of which smoothing by 0.3 takes three tenths.
    uniform = (math.log(2) + 2 * math.log(4)) / 3
    uniform += (2 * math.log(8) + math.log(4 / 3)) / 3
    sums = sums_of(logits, target, segments, 0.3)
    assert float(sums.nll) == pytest.approx(nll, rel=1e-6)
    assert float(sums.loss) == pytest.approx(0.7 * nll + 0.3 * uniform, rel=1e-6)
    assert float(sums.correct) == 1  # piece 0 was more likely than piece 1
    assert float(sums.tokens) == 2


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.6])
def test_the_loss_is_the_cross_entropy_to_the_smoothed_target(label_smoothing):
    x, embedding, target, segments = example()
    logits = x @ embedding.T
    sums = sums_of(logits, target, segments, label_smoothing)
    expected = definition(logits, target, segments, label_smoothing)
    assert float(sums.loss) == pytest.approx(expected, rel=1e-5)
    nll = definition(logits, target, segments, 0.0)
    assert float(sums.nll) == pytest.approx(nll, rel=1e-5)
    right = (logits.argmax(-1) == target) & (segments != 0)
    assert float(sums.correct) == np.count_nonzero(right)
    assert float(sums.tokens) == np.count_nonzero(segments)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_model_that_knows_nothing_has_perplexity_v(label_smoothing):
    _, _, target, segments = example()
    logits = np.full((ROWS, LENGTH, VOCABULARY), 2.5, np.float32)
    sums = sums_of(logits, target, segments, label_smoothing)
    assert math.exp(sums.nll / sums.tokens) == pytest.approx(VOCABULARY, rel=1e-5)
    assert float(sums.loss) == pytest.approx(float(sums.nll), rel=1e-5)


def test_what_stands_in_padding_changes_nothing():
    x, embedding, target, segments = example()
    padding = segments == 0
    assert padding.any()
    logits = x @ embedding.T
    sums = sums_of(logits, target, segments, 0.1)
    logits[padding] = 50.0 + 3.0 * logits[padding]
    target[padding] = (target[padding] + 1) % VOCABULARY
    assert sums_of(logits, target, segments, 0.1) == sums


def test_a_batch_of_padding_sums_to_zero():
    x, embedding, target, segments = example()
    sums = sums_of(x @ embedding.T, target, np.zeros_like(segments), 0.1)
    assert sums == LossSums(0.0, 0.0, 0.0, 0.0)


def via_logits(x, embedding, target, segments):
    logits = jnp.einsum(
        "bld,vd->blv",
        x,
        embedding.astype(x.dtype),
        preferred_element_type=jnp.float32,
    )
    return loss_sums(logits, target, segments, label_smoothing=0.1)


def in_chunks(x, embedding, target, segments):
    """By a batch of one shard."""
    return projected_loss_sums(
        x[None], embedding[None], None, target[None], segments[None], 0.1
    )


def in_shards_of_two(x, embedding, target, segments):
    """By shards of two rows each, with the same embedding for all."""
    shards = len(x) // 2

    def split(array):
        return array.reshape(shards, 2, *array.shape[1:])

    copies = jnp.broadcast_to(embedding, (shards, *embedding.shape))
    return projected_loss_sums(
        split(x), copies, None, split(target), split(segments), 0.1
    )


def sums_and_gradients(function, x, embedding, target, segments):
    """Loss sums, and the gradients of three times the loss in x and the embedding."""

    def tripled(x, embedding, target, segments):  # a cotangent that is not one
        sums = function(x, embedding, target, segments)
        return 3.0 * sums.loss, sums

    gradient = jax.grad(tripled, argnums=(0, 1), has_aux=True)
    gradients, sums = jax.jit(gradient)(x, embedding, target, segments)
    return sums, gradients


def relative_distance(got, expected):
    """Of two arrays, by the Euclidean norm."""
    got, expected = np.float64(got), np.float64(expected)
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("rows", "length", "chunk_tokens"),
    [
        (3, 8, 256),  # everything in one chunk
        (3, 8, 12),  # two chunks of four positions
        (2, 7, 4),  # a prime length divides into single positions only
        (2, 7, 14),  # or is one chunk
        (5, 6, 4),  # more rows than a chunk has tokens
    ],
)
def test_chunks_give_the_same_sums_and_gradients(
    rows, length, chunk_tokens, monkeypatch
):
    monkeypatch.setattr(loss_kernel, "CHUNK_TOKENS", chunk_tokens)
    arguments = example(rows, length, seed=rows)
    expected, expected_gradients = sums_and_gradients(via_logits, *arguments)
    sums, gradients = sums_and_gradients(in_chunks, *arguments)
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    for got, wanted in zip(gradients, expected_gradients, strict=True):
        assert relative_distance(got, wanted) < 1e-5


def test_shards_of_the_batch_add_up_to_it():
    arguments = example(6, 4)
    expected, expected_gradients = sums_and_gradients(via_logits, *arguments)
    sums, gradients = sums_and_gradients(in_shards_of_two, *arguments)
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    for got, wanted in zip(gradients, expected_gradients, strict=True):
        assert relative_distance(got, wanted) < 1e-5


def test_a_shard_knows_its_own_embedding_and_rows_only():
    """Two shards with embeddings of their own are two batches, each on its own."""
    x, embedding, target, segments = example(4, 4)
    copies = np.stack([embedding, -2.0 * embedding])

    def both(x, copies, target, segments):
        x, target, segments = (
            array.reshape(2, 2, *array.shape[1:]) for array in (x, target, segments)
        )
        return projected_loss_sums(x, copies, None, target, segments, 0.1)

    sums, (grad_x, grad_copies) = sums_and_gradients(both, x, copies, target, segments)
    halves = [
        sums_and_gradients(via_logits, x[rows], copy, target[rows], segments[rows])
        for rows, copy in zip((slice(2), slice(2, 4)), copies, strict=True)
    ]
    added = jax.tree.map(jnp.add, halves[0][0], halves[1][0])
    np.testing.assert_allclose(sums, added, rtol=1e-5)
    apart_x = np.concatenate([gradients[0] for _, gradients in halves])
    assert relative_distance(grad_x, apart_x) < 1e-5
    for got, (_, (_, wanted)) in zip(grad_copies, halves, strict=True):
        assert relative_distance(got, wanted) < 1e-5


def test_a_bias_is_a_column_of_the_embedding_that_meets_ones():
    """Of two shards, each with a bias of its own, in two chunks."""
    x, embedding, target, segments = example(4, 8)
    x, target, segments = (
        array.reshape(2, 2, *array.shape[1:]) for array in (x, target, segments)
    )
    copies = np.stack([embedding, -embedding])
    bias = np.random.default_rng(1).normal(size=copies.shape[:2]).astype(np.float32)

    def tripled(x, copies, bias):
        sums = projected_loss_sums(x, copies, bias, target, segments, 0.1)
        return 3.0 * sums.loss, sums

    got, sums = jax.grad(tripled, argnums=(0, 1, 2), has_aux=True)(x, copies, bias)
    wide = np.concatenate([x, np.ones_like(x[..., :1])], axis=-1)
    wider = np.concatenate([copies, bias[..., None]], axis=-1)
    expected, same = jax.grad(tripled, argnums=(0, 1), has_aux=True)(wide, wider, None)
    np.testing.assert_allclose(sums, same, rtol=1e-5)
    assert relative_distance(got[0], expected[0][..., :-1]) < 1e-5
    assert relative_distance(got[1], expected[1][..., :-1]) < 1e-5
    assert relative_distance(got[2], expected[1][..., -1]) < 1e-5


@pytest.mark.parametrize(("rows", "length", "most"), [(3, 8, 4), (2, 7, 1), (9, 6, 1)])
def test_a_chunk_divides_the_length_and_holds_at_most_the_tokens_asked_for(
    rows, length, most, monkeypatch
):
    monkeypatch.setattr(loss_kernel, "CHUNK_TOKENS", 12)
    assert loss._positions_per_chunk(rows, length) == most


def test_bfloat16_keeps_the_loss_and_both_gradients():
    x, embedding, target, segments = example(4, 12)
    x = jnp.asarray(x, jnp.bfloat16)
    embedding = embedding.astype(jnp.bfloat16)
    sums, gradients = sums_and_gradients(
        in_chunks, x, embedding.astype(np.float32), target, segments
    )
    expected, expected_gradients = sums_and_gradients(
        via_logits, x.astype(np.float32), embedding.astype(np.float32), target, segments
    )
    # Products of two bfloat16 numbers are exact in float32, so the logits are too.
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert [gradient.dtype for gradient in gradients] == [jnp.bfloat16, jnp.float32]
    for got, wanted in zip(gradients, expected_gradients, strict=True):
        assert relative_distance(got, wanted) < 2**-7  # bfloat16 has 8 bits


def test_padding_gets_no_gradient():
    x, embedding, target, segments = example()
    _, (grad_x, _) = sums_and_gradients(in_chunks, x, embedding, target, segments)
    norms = np.linalg.norm(grad_x, axis=-1)
    assert (norms[segments == 0] == 0).all()
    assert (norms[segments != 0] > 0).all()
