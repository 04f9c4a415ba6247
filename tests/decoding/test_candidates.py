"""Allowed tokens: the best against a full sort, samples against their distribution."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.decoding.candidates import sampled_token, top_candidates
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Rules

BATCH, WIDTH = 4, 2
WORD = EOS + 1

best_of = jax.jit(top_candidates, static_argnums=2)
jitted_token = jax.jit(sampled_token, static_argnums=3)


def draw(logits, rules, keys, **how):
    """`sampled_token` for keys as pairs of numbers, uint32 [B, W, 2]."""
    options = SearchOptions(beam_size=1, alpha=0.0, **{"temperature": 1.0} | how)
    keys = jax.random.wrap_key_data(keys)
    return map(np.asarray, jitted_token(logits, rules, keys, options))


def keys_of(seed: int, *shape: int) -> np.ndarray:
    """Keys of threefry: any two numbers are one."""
    draw = np.random.default_rng(seed)
    return draw.integers(2**32, size=(*shape, 2), dtype=np.uint32)


def free(hypotheses: int) -> Rules:
    return Rules(np.zeros(hypotheses, np.int32), np.zeros(hypotheses, bool), None)


def masked(logits, rules, row, hypothesis) -> np.ndarray:
    """The logits of one hypothesis, -inf where the rules forbid a token: f32 [V]."""
    own = np.array(logits[:, row, hypothesis])
    if rules.forced[row] != PAD:
        only = np.full_like(own, -np.inf)
        only[rules.forced[row]] = own[rules.forced[row]]
        return only
    own[[PAD, UNK, BOS]] = -np.inf
    if rules.no_end[row]:
        own[EOS] = -np.inf
    if rules.banned is not None:
        own[np.asarray(rules.banned[row, hypothesis])] = -np.inf
    return own


def draw_rules(rng, vocabulary: int, has_banned: bool) -> Rules:
    """Row 0 is free, row 1 may not end, row 2 must end, row 3 is forced to a word."""
    banned = None
    if has_banned:
        banned = rng.integers(WORD, vocabulary, (BATCH, WIDTH, 5))
        banned[rng.random(banned.shape) < 0.3] = PAD
        banned[3, :, 0] = WORD  # forcing a token overrides the ban of it
        banned = banned.astype(np.int32)
    forced = np.array([PAD, PAD, EOS, WORD], np.int32)
    return Rules(forced, np.array([False, True, True, False]), banned)


# The best -------------------------------------------------------------------------


def assert_best(logits, rules, k):
    """Compare with `top_k` of the masked logits; return the normaliser."""
    best, tokens, normaliser = best_of(logits, rules, k)
    for row, hypothesis in itertools.product(range(BATCH), range(WIDTH)):
        allowed = masked(logits, rules, row, hypothesis)
        values, ids = jax.lax.top_k(allowed, k)
        np.testing.assert_array_equal(best[row, hypothesis], values)
        exists = np.isfinite(values)
        assert exists.sum() == min(k, np.isfinite(allowed).sum())
        np.testing.assert_array_equal(tokens[row, hypothesis][exists], ids[exists])
    return normaliser


# One level suffices for the first two; no block size divides the last two.
@pytest.mark.parametrize("vocabulary", [40, 512, 544, 1000, 521, 1009])
@pytest.mark.parametrize("levels", [3, 300, 10**6])  # many, some, no ties
@pytest.mark.parametrize("has_banned", [False, True])
def test_top_candidates_is_top_k_of_the_allowed(vocabulary, levels, has_banned):
    rng = np.random.default_rng(vocabulary + levels)
    logits = rng.integers(levels, size=(vocabulary, BATCH, WIDTH)).astype(np.float32)
    logits[:EOS] = 2.0 * levels  # PAD, UNK and BOS are the largest
    normaliser = assert_best(logits, draw_rules(rng, vocabulary, has_banned), 8)
    expected = np.log(np.exp(logits.astype(np.float64) - 2 * levels).sum(axis=0))
    np.testing.assert_allclose(normaliser, expected + 2 * levels, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), where=st.integers(0, 1008))
def test_adjacent_candidates_are_found_in_any_block(seed, where):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1009, BATCH, WIDTH)).astype(np.float32)
    logits[where : where + 6] += 10.0
    assert_best(logits, draw_rules(rng, 1009, has_banned=True), 8)


# Samples --------------------------------------------------------------------------


def logits_of(probabilities) -> np.ndarray:
    """Logits [V, 1, 1] of words with these probabilities times 0.999.

    PAD, UNK, BOS and EOS share the rest.
    """
    words = 0.999 * np.asarray(probabilities)
    return np.log([*[0.001 / 4] * 4, *words]).astype(np.float32)[:, None, None] + 3


def draw_many(logits, *, rules=None, count=4000, **how) -> np.ndarray:
    """Tokens [count] drawn from logits [V, 1, 1]; asserts their log P."""
    wide = np.broadcast_to(logits, (len(logits), 1, count))
    tokens, log_p = draw(wide, rules or free(1), keys_of(0, 1, count), **how)
    exact = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(log_p, exact[tokens, 0, 0], rtol=1e-5, atol=1e-6)
    return tokens[0]


def assert_distributed(tokens, probabilities: dict[int, float]) -> None:
    """Only these tokens, with these probabilities (chi-square, p > 0.001)."""
    assert set(tokens) <= set(probabilities)
    expected = np.array(list(probabilities.values()), np.float64)
    counts = [np.sum(tokens == token) for token in probabilities]
    expected = expected / expected.sum() * len(tokens)
    assert expected.min() > 5
    assert len(probabilities) == 1 or chisquare(counts, expected).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_have_the_distribution_at_a_temperature(temperature):
    logits = logits_of([0.4, 0.25, 0.2, 0.1, 0.05])
    tokens = draw_many(logits, temperature=temperature, count=20_000)
    warm = np.exp(logits[EOS:, 0, 0].astype(np.float64) / temperature)
    words = dict(zip(range(WORD, WORD + 5), warm[1:], strict=True))
    assert_distributed(tokens[tokens != EOS], words)
    share = warm[0] / warm.sum()  # of EOS, too small for chi-square at 0.5
    spread = np.sqrt(share * (1 - share) * 20_000)
    assert abs(np.sum(tokens == EOS) - 20_000 * share) < 4 * spread + 1


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"temperature": 1e-4}, 1),
        ({"top_k": 1}, 1),
        ({"top_k": 3}, 3),
        ({"top_p": 0.39}, 1),  # the probability of the first is 0.4
        ({"top_p": 0.41}, 2),
        ({"top_p": 0.69}, 2),
        ({"top_p": 0.72}, 3),
        ({"top_p": 1e-6}, 1),
        ({"top_k": 3, "top_p": 0.7}, 2),  # of 4/9, 3/9, 2/9
        ({"top_k": 3, "top_p": 0.8}, 3),
        ({"top_p": 0.79, "temperature": 0.5}, 2),  # 0.16, 0.09, 0.04, 0.01 of 0.3
        ({"top_p": 0.86, "temperature": 0.5}, 3),
    ],
)
def test_top_k_and_top_p_keep_the_head_of_the_distribution(how, kept):
    probabilities = np.array([0.3, 0.1, 0.4, 0.2])
    words = np.argsort(-probabilities)[:kept]
    warm = (probabilities[words] / 0.4) ** (1 / how.get("temperature", 1.0))
    tokens = draw_many(logits_of(probabilities), **how)
    assert_distributed(tokens, dict(zip(WORD + words, warm, strict=True)))


def test_top_k_of_a_large_vocabulary_keeps_its_largest():
    logits = np.random.default_rng(3).normal(size=(1000, 1, 1)).astype(np.float32)
    words = EOS + np.argsort(-logits[EOS:, 0, 0])[:5]
    expected = dict(zip(words.tolist(), np.exp(logits[words, 0, 0]), strict=True))
    assert_distributed(draw_many(logits, top_k=5), expected)


@pytest.mark.parametrize("how", [{}, {"top_k": 4}, {"top_p": 0.999}])
@pytest.mark.parametrize(
    ("forced", "no_end", "banned", "allowed"),
    [
        (PAD, True, PAD, {WORD, WORD + 1, WORD + 2, WORD + 3}),
        (PAD, True, WORD + 3, {WORD, WORD + 1, WORD + 2}),
        (EOS, True, WORD + 3, {EOS}),
        (WORD + 3, False, WORD + 3, {WORD + 3}),
    ],
)
def test_samples_obey_the_rules(how, forced, no_end, banned, allowed):
    """`top_k` cuts what the rules allow, so 1 keeps the likeliest allowed token."""
    logits = logits_of([0.1, 0.2, 0.3, 0.4])
    rules = Rules(
        np.array([forced], np.int32),
        np.array([no_end]),
        np.full((1, 300, 1), banned, np.int32),
    )
    assert set(draw_many(logits, rules=rules, count=300, **how)) == allowed
    one = set(draw_many(logits, rules=rules, count=300, **how | {"top_k": 1}))
    assert one == {max(allowed)}


@pytest.mark.parametrize("how", [{}, {"top_k": 7}, {"top_p": 0.9}])
def test_a_sample_depends_on_its_key_and_its_logits_alone(how):
    how = {"temperature": 1.5} | how
    logits = np.random.default_rng(4).normal(size=(40, 5, 3)).astype(np.float32)
    keys = keys_of(5, 5, 3)
    tokens, log_p = draw(logits, free(5), keys, **how)
    others, _ = draw(logits, free(5), keys_of(6, 5, 3), **how)
    assert (others != tokens).any()
    for rows, columns in ([3, 0, 4, 1, 2], [1, 2, 0]), ([1], [2]), ([2, 3], [0, 1]):
        here = np.ix_(rows, columns)
        token, own = draw(
            logits[:, rows][:, :, columns], free(len(rows)), keys[here], **how
        )
        np.testing.assert_array_equal(token, tokens[here])
        np.testing.assert_allclose(own, log_p[here], rtol=1e-6)
