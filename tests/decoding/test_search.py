"""Search against brute force, a plain-Python beam and teacher forcing.

The step functions look up random tables, so every prefix has its own distribution.
"""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.decoding.search import (
    beam_search,
    greedy_search,
    length_penalty,
    top_candidates,
)
from jaxformer.errors import InputError

VOCABULARY = 7  # PAD, UNK, BOS, EOS and three words
WORDS = range(EOS + 1, VOCABULARY)
STATES = 1009  # prefixes of up to four tokens rarely share one


def random_tables(seed: int, batch: int, scale: float = 2.0) -> np.ndarray:
    """Logits [B, STATES, V]: each sentence has its own distribution for each prefix."""
    normal = np.random.default_rng(seed).normal(size=(batch, STATES, VOCABULARY))
    return (scale * normal).astype(np.float32)


def next_state(state, token):
    return (state * 31 + token) % STATES


def table_step(tables):
    """A step function whose only memory of the prefix is the re-ordered cache."""

    def step_fn(tokens, step, cache):
        state = next_state(cache["state"], tokens)  # [B, W]
        logits = jax.vmap(lambda table, rows: table[rows])(jnp.asarray(tables), state)
        return logits, {"state": state, "path": cache["path"].at[:, :, step].set(state)}

    return step_fn


def empty_cache(batch: int, width: int, steps: int) -> dict:
    return {
        "state": jnp.zeros((batch, width), jnp.int32),
        "path": jnp.zeros((batch, width, steps), jnp.int32),
    }


@partial(jax.jit, static_argnames=("max_steps", "beam_size", "alpha"))
def run_beam(tables, max_lengths, *, max_steps, beam_size, alpha):
    return beam_search(
        table_step(tables),
        empty_cache(len(tables), beam_size, max_steps),
        max_lengths=max_lengths,
        max_steps=max_steps,
        beam_size=beam_size,
        alpha=alpha,
    )


@partial(jax.jit, static_argnames="max_steps")
def run_greedy(tables, max_lengths, *, max_steps):
    return greedy_search(
        table_step(tables),
        empty_cache(len(tables), 1, max_steps),
        max_lengths=max_lengths,
        max_steps=max_steps,
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def teacher_forced(table: np.ndarray, tokens) -> float:
    """Log P of `tokens`, computed one token at a time over the whole vocabulary."""
    state, total = next_state(0, BOS), 0.0
    for token in tokens:
        total += log_softmax(table[state])[token]
        state = next_state(state, int(token))
    return total


def penalty(n: int, alpha: float) -> float:
    return ((5 + n) / 6) ** alpha


def all_hypotheses(table, limit: int, alpha: float) -> list[tuple[float, tuple]]:
    """Every sentence of at most `limit` tokens with its score, best first."""
    sentences = [
        (*words, EOS)
        for n in range(limit)
        for words in itertools.product(WORDS, repeat=n)
    ]
    scored = [(teacher_forced(table, s) / penalty(len(s), alpha), s) for s in sentences]
    return sorted(scored, reverse=True)


def plain_beam(table, limit: int, beam_size: int, alpha: float) -> list:
    """Beam search with lists, run to the limit: it never stops early."""
    live, finished = [(0.0, (), next_state(0, BOS))], []
    for n in range(1, limit + 1):
        grown = []
        for log_p, tokens, state in live:
            probabilities = log_softmax(table[state])
            for token in (EOS,) if n == limit else (EOS, *WORDS):
                new = (log_p + probabilities[token], (*tokens, token))
                grown.append((*new, next_state(state, token)))
        grown.sort(reverse=True)
        finished += [
            (log_p / penalty(n, alpha), tokens)
            for log_p, tokens, _ in grown[:beam_size]
            if tokens[-1] == EOS
        ]
        live = [h for h in grown if h[1][-1] != EOS][:beam_size]
    return sorted(finished, reverse=True)[:beam_size]


def hypotheses(result, row: int) -> list[tuple[float, tuple]]:
    """The filled slots of one sentence as (score, tokens); checks what pads them."""
    found = []
    for tokens, n, score in zip(
        np.asarray(result.tokens[row]), result.lengths[row], result.scores[row],
        strict=True,
    ):  # fmt: skip
        assert (tokens[n:] == PAD).all()
        assert (n == 0) == (score == -math.inf)
        if n:
            found.append((float(score), tuple(int(t) for t in tokens[:n])))
    return found


def assert_same(found, expected):
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    np.testing.assert_allclose([s for s, _ in found], [s for s, _ in expected], 1e-4)


def pick(result, row: int):
    return jax.tree.map(lambda x: x[row], result)


def assert_equal_results(ours, theirs):
    """The same tokens; scores may differ by the rounding of another compilation."""
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    np.testing.assert_allclose(ours.scores, theirs.scores, 1e-5)
    np.testing.assert_allclose(ours.log_probabilities, theirs.log_probabilities, 1e-5)


def test_length_penalty_is_the_papers():
    np.testing.assert_allclose(
        length_penalty(jnp.array([1, 7, 19]), 0.6), [1.0, 2**0.6, 4**0.6], 1e-6
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.5])
def test_wide_beam_lists_every_sentence_in_the_order_of_brute_force(alpha):
    tables = random_tables(1, batch=3)
    limits = [4, 1, 3]
    result = run_beam(tables, np.array(limits), max_steps=4, beam_size=64, alpha=alpha)
    for row, limit in enumerate(limits):
        expected = all_hypotheses(tables[row], limit, alpha)
        assert len(expected) == sum(len(WORDS) ** n for n in range(limit))
        assert_same(hypotheses(result, row), expected)


# Always the same examples: two hypotheses closer than float32 tells apart would differ.
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    beam=st.sampled_from([(2, 0.0), (3, 2.0), (4, 0.6)]),
    scale=st.sampled_from([0.3, 3.0]),
    limits=st.lists(st.integers(1, 8), min_size=3, max_size=3),
)
def test_beam_equals_a_plain_beam_that_never_stops_early(seed, beam, scale, limits):
    beam_size, alpha = beam
    tables = random_tables(seed, batch=3, scale=scale)
    result = run_beam(
        tables, np.array(limits), max_steps=8, beam_size=beam_size, alpha=alpha
    )
    for row, limit in enumerate(limits):
        expected = plain_beam(tables[row], limit, beam_size, alpha)
        assert_same(hypotheses(result, row), expected)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_scores_are_teacher_forced_log_probabilities(seed):
    tables = random_tables(seed, batch=3)
    limits = np.array([8, 5, 2])
    beam = run_beam(tables, limits, max_steps=8, beam_size=4, alpha=0.6)
    greedy = run_greedy(tables, limits, max_steps=8)
    for result, power in ((beam, 0.6), (greedy, 0.0)):
        for row in range(3):
            for slot, (score, tokens) in enumerate(hypotheses(result, row)):
                log_p = teacher_forced(tables[row], tokens)
                found = float(result.log_probabilities[row, slot])
                assert found == pytest.approx(log_p, rel=1e-4)
                assert score == pytest.approx(
                    log_p / penalty(len(tokens), power), rel=1e-4
                )
                assert tokens[-1] == EOS
                assert not {PAD, UNK, BOS, EOS} & set(tokens[:-1])
                assert len(tokens) <= limits[row]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.0, 0.3, 3.0]))
def test_beam_of_one_without_penalty_is_greedy(seed, scale):
    tables = random_tables(seed, batch=3, scale=scale)
    limits = np.array([8, 1, 5])
    beam = run_beam(tables, limits, max_steps=8, beam_size=1, alpha=0.0)
    greedy = run_greedy(tables, limits, max_steps=8)
    assert_equal_results(beam, greedy)


def test_greedy_takes_the_likeliest_word_and_then_must_end():
    """Word 4 always wins, EOS comes second, and PAD, UNK, BOS would beat both."""
    logits = np.full((3, STATES, VOCABULARY), -5.0, np.float32)
    logits[..., [PAD, UNK, BOS]] = 9.0
    logits[..., 4], logits[..., EOS] = 2.0, 1.0
    result = run_greedy(logits, np.array([3, 1, 9]), max_steps=8)
    tokens = [[4, 4, EOS] + [PAD] * 5, [EOS] + [PAD] * 7, [4] * 7 + [EOS]]
    np.testing.assert_array_equal(result.tokens[:, 0], tokens)
    np.testing.assert_array_equal(result.lengths[:, 0], [3, 1, 8])


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_results_do_not_depend_on_the_rest_of_the_batch(scale):
    tables = random_tables(5, batch=3, scale=scale)
    limits, order = np.array([8, 2, 7]), np.array([2, 0, 1])
    run = partial(run_beam, max_steps=8, beam_size=4, alpha=0.6)
    together, moved = run(tables, limits), run(tables[order], limits[order])
    for row in range(3):
        place = int(np.flatnonzero(order == row)[0])
        alone = run(tables[row : row + 1], limits[row : row + 1])
        assert_equal_results(pick(alone, 0), pick(together, row))
        assert_equal_results(pick(alone, 0), pick(moved, place))


@pytest.mark.parametrize("search", ["beam", "greedy"])
def test_a_finished_sentence_is_frozen_whatever_its_row_computes(search):
    """Row 0 ends at step 2 at the latest; from then on its logits are NaN."""
    tables = random_tables(6, batch=2)
    tables[1, :, EOS] = -9.0  # row 1 runs to its limit
    width = 3 if search == "beam" else 1
    arguments = {"max_lengths": jnp.array([2, 8]), "max_steps": 8}
    if search == "beam":
        run = partial(beam_search, beam_size=width, alpha=0.6, **arguments)
    else:
        run = partial(greedy_search, **arguments)

    @jax.jit
    def poisoned_from(first):
        def step_fn(tokens, step, cache):
            logits, cache = table_step(tables)(tokens, step, cache)
            poison = (step >= first) & (jnp.arange(2) == 0)
            return jnp.where(poison[:, None, None], jnp.nan, logits), cache

        return run(step_fn, empty_cache(2, width, 8))

    expected, found = poisoned_from(8), poisoned_from(2)
    assert int(expected.lengths[1, 0]) == 8
    assert_equal_results(found, expected)


def step_counter(search):
    """A function of (logits f32[V], max_lengths) that says how many steps they take."""
    calls = []

    @jax.jit
    def run(logits, max_lengths):
        def step_fn(tokens, step, cache):
            jax.debug.callback(calls.append, step)
            shape = (*tokens.shape, VOCABULARY)
            return jnp.broadcast_to(logits[None, None], shape), cache

        return search(step_fn, (), max_lengths=max_lengths, max_steps=50)

    def count_steps(logits, max_lengths) -> int:
        calls.clear()
        run(logits, np.array(max_lengths))
        jax.effects_barrier()
        return len(calls)

    return count_steps


def test_search_stops_when_nothing_better_can_come():
    """Greedy ends with its EOS; a beam of 2 here when [EOS] and [word, EOS] are there.

    P(EOS) is almost 1 and that of a word e: what lives then has log P of 2 log e, which
    the two finished ones, 0 and log e, beat whatever the 50 allowed tokens bring.
    """
    greedy = step_counter(greedy_search)
    beam = step_counter(partial(beam_search, beam_size=2, alpha=0.0))
    hasty = np.array([-30, -30, -30, 0, -30, -30, -30], np.float32)
    assert greedy(hasty, [50, 50]) == 1
    assert beam(hasty, [50, 50]) == 2
    assert greedy(-hasty, [7, 4]) == 7
    assert beam(-hasty, [7, 4]) == 7
    assert greedy(-hasty, [0, 0]) == 0
    assert beam(-hasty, [0, 0]) == 0


def test_search_waits_for_a_hypothesis_that_only_its_length_makes_best():
    """After P([EOS]) = 0.55 a live log 0.45 still wins: 8 tokens divide it by 4.7."""
    logits = np.full((8, VOCABULARY), -30.0, np.float32)
    logits[0, [EOS, 4]] = np.log([0.55, 0.45])
    logits[1:7, 4], logits[7, EOS] = 0.0, 0.0

    def step_fn(tokens, step, cache):
        return jnp.asarray(logits)[step][None, None], cache

    result = beam_search(
        step_fn, (), max_lengths=jnp.array([8]), max_steps=8, beam_size=1, alpha=2.0
    )
    ((score, tokens),) = hypotheses(result, 0)
    assert tokens == (4,) * 7 + (EOS,)
    assert score == pytest.approx(math.log(0.45) / (13 / 6) ** 2, rel=1e-4)


def test_a_row_of_limit_zero_only_fills_the_batch():
    tables = random_tables(8, batch=3)
    limits = np.array([0, 4, 0])
    beam = run_beam(tables, limits, max_steps=8, beam_size=4, alpha=0.6)
    for result in (beam, run_greedy(tables, limits, max_steps=8)):
        assert hypotheses(result, 0) == hypotheses(result, 2) == []
        assert (np.asarray(result.log_probabilities[0]) == -np.inf).all()
        assert len(hypotheses(result, 1)) >= 1


@pytest.mark.parametrize("vocabulary", [40, 640, 1000])  # below, on and off the blocks
@pytest.mark.parametrize("levels", [3, 300, 10**6])  # many, some, no ties
def test_top_candidates_is_top_k_of_the_allowed_tokens(vocabulary, levels):
    rng = np.random.default_rng(vocabulary)
    logits = rng.integers(levels, size=(3, 2, vocabulary)).astype(np.float32)
    logits[..., :EOS] = 2.0 * levels
    logits[2, :, EOS] = -7.0
    at_limit = np.array([False, False, True])
    best, tokens = jax.jit(top_candidates, static_argnums=2)(logits, at_limit, 8)

    for row, slot in itertools.product(range(2), range(2)):
        words = sorted(range(EOS, vocabulary), key=lambda t: (-logits[row, slot, t], t))
        np.testing.assert_array_equal(tokens[row, slot], words[:8])
        np.testing.assert_array_equal(
            best[row, slot], logits[row, slot, np.array(words[:8])]
        )
    np.testing.assert_array_equal(tokens[2, :, 0], [EOS, EOS])
    np.testing.assert_array_equal(best[2, :, 0], [-7.0, -7.0])
    assert (best[2, :, 1:] == -jnp.inf).all()


@pytest.mark.parametrize(
    ("name", "value"), [("beam_size", 0), ("alpha", -0.5)], ids=["beam_size", "alpha"]
)
def test_impossible_settings_are_refused_by_name(name, value):
    settings = {"beam_size": 2, "alpha": 0.6, name: value}
    with pytest.raises(InputError, match=rf"{name} is {value}"):
        beam_search(
            table_step(random_tables(0, 1)),
            empty_cache(1, 2, 4),
            max_lengths=jnp.array([4]),
            max_steps=4,
            **settings,
        )
