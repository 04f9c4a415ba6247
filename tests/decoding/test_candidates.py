"""The allowed tokens: the best against a full sort, the random against their odds."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.decoding.candidates import Rules, sampled_token, top_candidates

BATCH, WIDTH = 4, 2
FREE = Rules(np.zeros(1, np.int32), np.zeros(1, bool), None)  # for one row
WORD = EOS + 1

best_of = jax.jit(top_candidates, static_argnums=2)


@partial(jax.jit, static_argnames=("temperature", "top_k", "top_p"))
def draw(logits, rules, keys, **how):
    """`sampled_token` for keys as plain numbers."""
    return sampled_token(logits, rules, jax.random.wrap_key_data(keys), **how)


def keys_of(seed: int, *shape: int) -> np.ndarray:
    """Keys for `draw`: of threefry, any two numbers are one."""
    return np.random.default_rng(seed).integers(
        2**32, size=(*shape, 2), dtype=np.uint32
    )


def masked(logits, rules, row, slot) -> np.ndarray:
    """The logits of one hypothesis, -inf for all that the rules forbid: f32 [V]."""
    own = np.array(logits[:, row, slot])
    if rules.forced[row] != PAD:
        only = np.full_like(own, -np.inf)
        only[rules.forced[row]] = own[rules.forced[row]]
        return only
    own[[PAD, UNK, BOS]] = -np.inf
    if rules.no_end[row]:
        own[EOS] = -np.inf
    if rules.banned is not None:
        own[np.asarray(rules.banned[row, slot])] = -np.inf
    return own


def draw_rules(rng, vocabulary: int, has_banned: bool) -> Rules:
    """A free row, one that may not end, one that must, one where a word is forced."""
    banned = None
    if has_banned:
        banned = rng.integers(WORD, vocabulary, (BATCH, WIDTH, 5))
        banned[rng.random(banned.shape) < 0.3] = PAD
        banned[3, :, 0] = WORD  # a forced word comes whether it is banned or not
        banned = banned.astype(np.int32)
    forced = np.array([PAD, PAD, EOS, WORD], np.int32)
    return Rules(forced, np.array([False, True, True, False]), banned)


# The best -------------------------------------------------------------------------


# One level suffices for the first two; no size of blocks divides the last two.
@pytest.mark.parametrize("vocabulary", [40, 512, 544, 1000, 521, 1009])
@pytest.mark.parametrize("levels", [3, 300, 10**6])  # many, some, no ties
@pytest.mark.parametrize("has_banned", [False, True])
def test_top_candidates_is_top_k_of_the_allowed(vocabulary, levels, has_banned):
    k = 8
    rng = np.random.default_rng(vocabulary + levels)
    logits = rng.integers(levels, size=(vocabulary, BATCH, WIDTH)).astype(np.float32)
    logits[:EOS] = 2.0 * levels  # PAD, UNK and BOS would win
    rules = draw_rules(rng, vocabulary, has_banned)
    best, tokens, normaliser = best_of(logits, rules, k)
    for row, slot in itertools.product(range(BATCH), range(WIDTH)):
        allowed = masked(logits, rules, row, slot)
        values, ids = jax.lax.top_k(allowed, k)
        np.testing.assert_array_equal(best[row, slot], values)
        is_there = np.isfinite(values)
        assert is_there.sum() == min(k, np.isfinite(allowed).sum())
        np.testing.assert_array_equal(tokens[row, slot][is_there], ids[is_there])
    expected = np.log(np.exp(logits.astype(np.float64) - 2 * levels).sum(axis=0))
    np.testing.assert_allclose(normaliser, expected + 2 * levels, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), where=st.integers(0, 1008))
def test_candidates_are_found_wherever_they_lie(seed, where):
    """A few high logits side by side, so that they share a block or two."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1009, BATCH, WIDTH)).astype(np.float32)
    logits[where : where + 6] += 10.0
    rules = draw_rules(rng, 1009, has_banned=True)
    best, tokens, _ = best_of(logits, rules, 8)
    for row, slot in itertools.product(range(BATCH), range(WIDTH)):
        values, ids = jax.lax.top_k(masked(logits, rules, row, slot), 8)
        is_there = np.isfinite(values)
        np.testing.assert_array_equal(best[row, slot], values)
        np.testing.assert_array_equal(tokens[row, slot][is_there], ids[is_there])


# Samples --------------------------------------------------------------------------


def logits_of(probabilities) -> np.ndarray:
    """Logits [V, 1, 1] of words with these probabilities; the rest is a thousandth.

    PAD, UNK, BOS and EOS are there and share that rest.
    """
    reserved = np.full(4, 0.001 / 4)
    words = 0.999 * np.asarray(probabilities)
    return np.log([*reserved, *words]).astype(np.float32)[:, None, None] + 3


def draw_many(logits, *, rules=FREE, count=4000, seed=0, **how) -> np.ndarray:
    """Tokens [count] drawn from logits [V, 1, 1]."""
    how = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | how
    wide = np.broadcast_to(logits, (len(logits), 1, count))
    keys = keys_of(seed, 1, count)
    tokens, log_p = map(np.asarray, draw(wide, rules, keys, **how))
    exact = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(log_p, exact[tokens, 0, 0], rtol=1e-5, atol=1e-6)
    return tokens[0]


def assert_distributed(tokens, probabilities: dict[int, float]) -> None:
    """No token but these, as often as their odds say (chi-square, once in 1,000)."""
    assert set(tokens) <= set(probabilities)
    expected = np.array(list(probabilities.values()), np.float64)
    counts = [np.sum(tokens == token) for token in probabilities]
    expected = expected / expected.sum() * len(tokens)
    assert expected.min() > 5
    assert chisquare(counts, expected).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_follow_the_distribution_that_temperature_makes(temperature):
    odds = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
    logits = logits_of(odds)
    tokens = draw_many(logits, temperature=temperature, count=20_000)
    warm = np.exp(logits[EOS:, 0, 0].astype(np.float64) / temperature)
    assert_distributed(
        tokens[tokens != EOS], dict(zip(range(WORD, WORD + 5), warm[1:], strict=True))
    )
    share = warm[0] / warm.sum()  # of EOS, too rare for chi-square when it is cold
    spread = np.sqrt(share * (1 - share) * 20_000)
    assert abs(np.sum(tokens == EOS) - 20_000 * share) < 4 * spread + 1


def test_the_colder_the_greedier():
    logits = np.random.default_rng(1).normal(size=(50, 3, 4)).astype(np.float32)
    rules = Rules(np.zeros(3, np.int32), np.zeros(3, bool), None)
    keys = keys_of(2, 3, 4)
    tokens, _ = draw(logits, rules, keys, temperature=1e-4, top_k=0, top_p=1.0)
    np.testing.assert_array_equal(tokens, best_of(logits, rules, 1)[1][:, :, 0])


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"top_k": 1}, 1),
        ({"top_k": 3}, 3),
        ({"top_p": 0.39}, 1),  # 0.4 is enough
        ({"top_p": 0.41}, 2),
        ({"top_p": 0.69}, 2),
        ({"top_p": 0.72}, 3),
        ({"top_p": 1e-6}, 1),  # one is always kept
        ({"top_k": 3, "top_p": 0.7}, 2),  # of three that are 4/9, 3/9, 2/9
        ({"top_k": 3, "top_p": 0.8}, 3),
        ({"top_p": 0.79, "temperature": 0.5}, 2),  # 0.16, 0.09, 0.04, 0.01 of 0.3
        ({"top_p": 0.86, "temperature": 0.5}, 3),
    ],
)
def test_top_k_and_top_p_keep_the_head_of_the_distribution(how, kept):
    odds = np.array([0.3, 0.1, 0.4, 0.2])
    tokens = draw_many(logits_of(odds), **how)
    words = np.argsort(-odds)[:kept]
    warm = odds[words] ** (1 / how.get("temperature", 1.0))
    if kept == 1:
        assert set(tokens) == {WORD + words[0]}
    else:
        assert_distributed(tokens, dict(zip(WORD + words, warm, strict=True)))


def test_top_k_of_a_large_vocabulary_keeps_its_largest():
    logits = np.random.default_rng(3).normal(size=(1000, 1, 1)).astype(np.float32)
    tokens = draw_many(logits, top_k=5)
    words = EOS + np.argsort(-logits[EOS:, 0, 0])[:5]
    odds = np.exp(logits[words, 0, 0])
    assert_distributed(tokens, dict(zip(words.tolist(), odds, strict=True)))


@pytest.mark.parametrize("how", [{}, {"top_k": 4}, {"top_p": 0.999}])
def test_samples_obey_the_rules(how):
    """And log P stays that of the model, over all pieces (see `draw_many`)."""
    logits = logits_of([0.1, 0.2, 0.3, 0.4])
    last = np.full((1, 300, 1), WORD + 3, np.int32)  # banned: the likeliest

    def drawn(forced, no_end, banned):
        rules = Rules(np.array([forced], np.int32), np.array([no_end]), banned)
        return set(draw_many(logits, rules=rules, count=300, **how))

    assert drawn(PAD, True, np.zeros_like(last)) == {WORD, WORD + 1, WORD + 2, WORD + 3}
    assert drawn(PAD, True, last) == {WORD, WORD + 1, WORD + 2}
    assert drawn(EOS, True, last) == {EOS}
    assert drawn(WORD + 3, False, last) == {WORD + 3}
    # The rules come before the cut, which is among what is allowed.
    how |= {"top_k": 1}
    assert drawn(PAD, True, last) == {WORD + 2}


@pytest.mark.parametrize("how", [{}, {"top_k": 7}, {"top_p": 0.9}])
def test_a_draw_depends_on_its_key_and_its_logits_alone(how):
    how = {"temperature": 1.5, "top_k": 0, "top_p": 1.0} | how
    logits = np.random.default_rng(4).normal(size=(40, 5, 3)).astype(np.float32)
    rules = Rules(np.zeros(5, np.int32), np.zeros(5, bool), None)

    def drawn(logits, keys):
        own = jax.tree.map(lambda leaf: leaf[: len(keys)], rules)
        return map(np.asarray, draw(logits, own, keys, **how))

    keys, others = keys_of(5, 5, 3), keys_of(6, 5, 3)
    tokens, log_p = drawn(logits, keys)
    np.testing.assert_array_equal(next(drawn(logits, keys)), tokens)
    assert (next(drawn(logits, others)) != tokens).any()

    order, slots = np.array([3, 0, 4, 1, 2]), np.array([1, 2, 0])
    moved, _ = drawn(logits[:, order][:, :, slots], keys[order][:, slots])
    np.testing.assert_array_equal(moved, tokens[order][:, slots])
    for here in (np.s_[1:2, 2:3], np.s_[2:4, :2]):  # alone, or with fewer neighbours
        token, own = drawn(logits[:, *here], keys[here])
        np.testing.assert_array_equal(token, tokens[here])
        np.testing.assert_allclose(own, log_p[here], rtol=1e-6)
