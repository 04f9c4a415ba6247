"""Allowed tokens: the best against a full sort, samples against their distribution."""

import jax
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp
from scipy.stats import chisquare

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Rules, sampled_token, top_candidates
from jaxformer.tokens import EOS, PAD

WIDTH = 2
WORD = EOS + 1

best_of = jax.jit(top_candidates, static_argnums=2)
jitted_token = jax.jit(sampled_token, static_argnums=3)


def rules_of(count: int, forced=PAD, no_end=False, banned=PAD) -> Rules:
    """The same rules for `count` hypotheses; one banned token."""
    return Rules(
        np.full(count, forced, np.int32),
        np.full(count, False),
        np.full(count, no_end),
        np.full((count, 1), banned, np.int32),
    )


# The best -------------------------------------------------------------------------


def draw_rules(rng, logits, has_banned: bool) -> Rules:
    """Free, may not end, must end, forced to a word, by row; bans some of the best."""
    banned = None
    if has_banned:
        banned = WORD + np.argsort(-logits[WORD:], axis=0)[:5].T.astype(np.int32)
        banned[rng.random(banned.shape) < 0.3] = PAD
        banned[-WIDTH:, 0] = WORD  # forcing a token overrides the ban of it
    rows = (
        np.array([PAD, PAD, EOS, WORD], np.int32), np.zeros(4, bool),
        np.array([0, 1, 1, 0], bool),
    )  # fmt: skip
    return Rules(*(np.repeat(each, WIDTH) for each in rows), banned)


def assert_best(logits, rules, k, best_of=best_of):
    """Compare with `top_k` of the allowed logits [V, R]; return the normaliser [R]."""
    wide = logits.reshape(len(logits), -1, WIDTH)
    found = jax.tree.map(np.asarray, best_of(wide, rules, k))
    best, tokens, normaliser = (x.reshape(logits.shape[1], *x.shape[2:]) for x in found)
    for row, own in enumerate(logits.T):
        is_allowed = np.arange(len(logits)) >= EOS + rules.no_end[row]
        if rules.banned is not None:
            is_allowed[rules.banned[row]] = False
        if rules.forced[row]:
            is_allowed = np.arange(len(logits)) == rules.forced[row]
        values, ids = jax.lax.top_k(np.where(is_allowed, own, -np.inf), k)
        np.testing.assert_array_equal(best[row], values)
        exists = np.isfinite(values)
        assert exists.sum() == min(k, is_allowed.sum())
        np.testing.assert_array_equal(tokens[row][exists], ids[exists])
    return normaliser


# One level suffices for the first; no block size divides the last.
@pytest.mark.parametrize("vocabulary", [40, 544, 1000, 1009])
@pytest.mark.parametrize("levels", [3, 300, 10**6])  # many, some, no ties
@pytest.mark.parametrize("has_banned", [False, True])
def test_top_candidates_is_top_k_of_the_allowed(vocabulary, levels, has_banned):
    rng = np.random.default_rng(vocabulary + levels)
    logits = rng.integers(levels, size=(vocabulary, 4 * WIDTH)).astype(np.float32)
    logits[:EOS] = 2.0 * levels  # PAD, UNK and BOS are the largest
    logits[-1] = levels  # the last token is the largest word
    normaliser = assert_best(logits, draw_rules(rng, logits, has_banned), 8)
    expected = logsumexp(logits.astype(np.float64), axis=0)
    np.testing.assert_allclose(normaliser, expected, rtol=1e-6)


@pytest.mark.parametrize("vocabulary", [544, 1000, 1009])
@pytest.mark.parametrize("has_banned", [False, True])
def test_the_operations_for_tpus_find_the_same(vocabulary, has_banned, branches_of_tpu):
    rng = np.random.default_rng(vocabulary)
    logits = rng.normal(-90, 9, size=(vocabulary, 4 * WIDTH)).astype(np.float32)
    own = jax.jit(lambda *args: top_candidates(*args), static_argnums=2)
    normaliser = assert_best(logits, draw_rules(rng, logits, has_banned), 8, own)
    expected = logsumexp(logits.astype(np.float64), axis=0)
    np.testing.assert_allclose(normaliser, expected, rtol=1e-6)


# Samples --------------------------------------------------------------------------


def draw(logits, keys, *, rules=None, **how):
    """`sampled_token` for keys as pairs of numbers, uint32 [B, W, 2]."""
    options = SearchOptions(beam_size=1, alpha=0.0, **{"temperature": 1.0} | how)
    rules = rules or rules_of(keys[..., 0].size)
    keys = jax.random.wrap_key_data(keys)
    return map(np.asarray, jitted_token(logits, rules, keys, options))


def keys_of(seed: int, *shape: int) -> np.ndarray:
    """Keys of threefry: any two numbers are one."""
    draw = np.random.default_rng(seed)
    return draw.integers(2**32, size=(*shape, 2), dtype=np.uint32)


def logits_of(probabilities) -> np.ndarray:
    """Logits [V] of words with these probabilities times 0.999.

    PAD, UNK, BOS and EOS share the rest.
    """
    words = 0.999 * np.asarray(probabilities)
    return np.log([*[0.001 / 4] * 4, *words]).astype(np.float32) + 3


def draw_many(logits, *, rules=None, count=4000, **how) -> np.ndarray:
    """Tokens [count] drawn from logits [V]; asserts their log P."""
    wide = np.broadcast_to(logits[:, None, None], (len(logits), 1, count))
    tokens, log_p = draw(wide, keys_of(0, 1, count), rules=rules, **how)
    np.testing.assert_allclose(log_p, log_softmax(logits)[tokens], 1e-5, 1e-6)
    return tokens[0]


def assert_distributed(tokens, words, weights) -> None:
    """Only these words, with probabilities like `weights` (chi-square, p > 0.001)."""
    counts = [np.sum(tokens == word) for word in words]
    assert sum(counts) == len(tokens)
    expected = np.asarray(weights, np.float64) / np.sum(weights, dtype=np.float64)
    assert (expected * len(tokens)).min() > 5
    assert len(words) == 1 or chisquare(counts, expected * len(tokens)).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_have_the_softmax_distribution_at_the_temperature(temperature):
    logits = logits_of([0.1, 0.2, 0.3, 0.25, 0.15])
    tokens = draw_many(logits, temperature=temperature, count=20_000)
    warm = np.exp(logits[EOS:].astype(np.float64) / temperature)
    words = tokens[tokens != EOS]
    assert_distributed(words, range(WORD, WORD + 5), warm[1:])
    share = warm[0] / warm.sum()  # of EOS, too small for chi-square at 0.5
    spread = np.sqrt(share * (1 - share) * 20_000)
    assert abs(20_000 - len(words) - 20_000 * share) < 4 * spread + 1


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
    assert_distributed(draw_many(logits_of(probabilities), **how), WORD + words, warm)


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
    logits, rules = (
        logits_of([0.1, 0.2, 0.3, 0.4]),
        rules_of(300, forced, no_end, banned),
    )
    assert set(draw_many(logits, rules=rules, count=300, **how)) == allowed
    one = set(draw_many(logits, rules=rules, count=300, **how | {"top_k": 1}))
    assert one == {max(allowed)}
