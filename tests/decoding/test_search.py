"""Search against brute force, searches in plain Python and teacher forcing."""

import dataclasses
import math
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.search import Requests, advance, no_rules, search, start
from tests.decoding.tables import (
    STATES,
    VOCABULARY,
    WORDS,
    Wanted,
    all_hypotheses,
    assert_same,
    empty_cache,
    hypotheses_of,
    next_state,
    penalty,
    plain_beam,
    plain_samples,
    plain_search,
    random_tables,
    score_of,
    table_step,
    teacher_forced,
)

GREEDY = SearchOptions(beam_size=1, alpha=0.0)
BEAM = SearchOptions(beam_size=4, alpha=0.6, n_best=4)
SAMPLES = SearchOptions(beam_size=4, alpha=0.6, temperature=0.8)
# One of each kind, and rules of all kinds among them.
EVERY = {
    "greedy": GREEDY,
    "greedy without repeats": dataclasses.replace(GREEDY, no_repeat_ngram=2),
    "beam": BEAM,
    "beam without repeats": SearchOptions(
        beam_size=3, alpha=1.0, n_best=3, length_penalty="power", no_repeat_ngram=2
    ),
    "samples": SAMPLES,
    "samples without repeats": dataclasses.replace(SAMPLES, no_repeat_ngram=3),
}
every_search = pytest.mark.parametrize("options", EVERY.values(), ids=EVERY)
three_searches = pytest.mark.parametrize(
    "options",
    [GREEDY, EVERY["beam without repeats"], EVERY["samples without repeats"]],
    ids=["greedy", "beam", "samples"],
)

PREFIX = 3  # tokens that requests have room for


def requests_of(wanted) -> Requests:
    prefixes = np.full((len(wanted), PREFIX), PAD, np.int32)
    for row, each in zip(prefixes, wanted, strict=True):
        row[: len(each.prefix)] = each.prefix
    return Requests(
        max_lengths=np.array([each.limit for each in wanted], np.int32),
        min_lengths=np.array([each.least for each in wanted], np.int32),
        prefixes=prefixes,
        seeds=np.array([each.seed for each in wanted], np.uint32),
    )


@partial(jax.jit, static_argnames=("options", "max_steps"))
def run_requests(tables, requests, *, options, max_steps):
    cache = empty_cache(len(tables), options.beam_size, max_steps)
    return search(table_step(tables), cache, requests, options, max_steps=max_steps)


def run(tables, wanted, options, max_steps=8):
    """Search; `wanted` are a Wanted for each row, or its limit."""
    wanted = [each if isinstance(each, Wanted) else Wanted(each) for each in wanted]
    found = run_requests(
        tables, requests_of(wanted), options=options, max_steps=max_steps
    )
    return jax.tree.map(np.asarray, found)


def assert_equal_results(ours, theirs):
    """The same tokens; scores may differ by the rounding of another compilation."""
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    np.testing.assert_allclose(ours.scores, theirs.scores, 1e-5)
    np.testing.assert_allclose(ours.log_probabilities, theirs.log_probabilities, 1e-5)


def pick(result, *rows: int):
    return jax.tree.map(lambda leaf: leaf[list(rows)], result)


@st.composite
def wanted_rows(draw, rows: int = 3, limit: int = 8):
    """What each row asks for; a prefix leaves room for its end, and may be unknown."""

    def one():
        most = draw(st.integers(1, limit))
        prefix = st.lists(
            st.sampled_from([UNK, *WORDS]), max_size=min(PREFIX, most - 1)
        )
        return Wanted(
            limit=most,
            least=draw(st.sampled_from([0, 0, 2, 5, 20])),
            prefix=tuple(draw(prefix)),
            seed=draw(st.integers(0, 3)),
        )

    return [one() for _ in range(rows)]


seeds = st.integers(0, 2**32 - 1)

# Scores ---------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(seed=seeds, rows=wanted_rows(), name=st.sampled_from(sorted(EVERY)))
def test_scores_are_teacher_forced_log_probabilities(seed, rows, name):
    """Over all pieces, whatever rules and temperature there are."""
    options, tables = EVERY[name], random_tables(seed, batch=3)
    found = run(tables, rows, options)
    for row, wanted in enumerate(rows):
        hypotheses = hypotheses_of(found, row)
        for slot, (score, tokens) in enumerate(hypotheses):
            log_p = teacher_forced(score_of(tables[row]), tokens)
            own = float(found.log_probabilities[row, slot])
            assert own == pytest.approx(log_p, rel=1e-4, abs=1e-5)
            assert score == pytest.approx(
                log_p / penalty(len(tokens), options), rel=1e-4, abs=1e-5
            )
            assert tokens[-1] == EOS
            assert tokens[: len(wanted.prefix)] == wanted.prefix
            free = tokens[len(wanted.prefix) : -1]
            assert not {PAD, UNK, BOS, EOS} & set(free)
            assert min(wanted.least, wanted.limit) <= len(tokens) <= wanted.limit


# The best -------------------------------------------------------------------------


WIDE = [
    SearchOptions(beam_size=64, n_best=64, **how)
    for how in (
        {"alpha": 0.6},
        {"alpha": 2.5, "no_repeat_ngram": 1},
        {"alpha": 1.0, "length_penalty": "power", "no_repeat_ngram": 2},
        {"alpha": 0.0, "no_repeat_ngram": 3},
    )
]


# Always the same examples, here and below where derandomised: two hypotheses closer
# than float32 tells apart would differ.
@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=seeds, rows=wanted_rows(limit=4), options=st.sampled_from(WIDE))
def test_wide_beam_lists_every_sentence_in_the_order_of_brute_force(
    seed, rows, options
):
    tables = random_tables(seed, batch=3)
    found = run(tables, rows, options, max_steps=4)
    for row, wanted in enumerate(rows):
        expected = all_hypotheses(score_of(tables[row]), wanted, options)
        assert_same(hypotheses_of(found, row), expected)


def test_without_rules_every_sentence_is_listed():
    found = run(random_tables(1, batch=3), [4, 1, 3], WIDE[0], max_steps=4)
    counts = [len(set(hypotheses_of(found, row))) for row in range(3)]
    assert counts == [1 + 3 + 9 + 27, 1, 1 + 3 + 9]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=seeds,
    rows=wanted_rows(),
    scale=st.sampled_from([0.3, 3.0]),
    options=st.sampled_from(
        [
            SearchOptions(beam_size=2, alpha=0.0, n_best=2, no_repeat_ngram=1),
            SearchOptions(beam_size=3, alpha=2.0, n_best=3),
            BEAM,
            EVERY["beam without repeats"],
        ]
    ),
)
def test_beam_equals_a_plain_beam_that_never_stops_early(seed, rows, scale, options):
    tables = random_tables(seed, batch=3, scale=scale)
    found = run(tables, rows, options)
    for row, wanted in enumerate(rows):
        expected = plain_beam(score_of(tables[row]), wanted, options)
        assert_same(hypotheses_of(found, row), expected)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=seeds,
    rows=wanted_rows(),
    scale=st.sampled_from([0.3, 3.0]),
    options=st.sampled_from(
        [
            dataclasses.replace(BEAM, alpha=2.0, n_best=1),
            dataclasses.replace(BEAM, n_best=2),
        ]
    ),
)
def test_who_wants_fewer_gets_the_first_of_many(seed, rows, scale, options):
    """The search stops earlier, and never too early."""
    tables = random_tables(seed, batch=3, scale=scale)
    fewer = run(tables, rows, options)
    for row, wanted in enumerate(rows):
        expected = plain_beam(score_of(tables[row]), wanted, options)[: options.n_best]
        assert_same(hypotheses_of(fewer, row)[: options.n_best], expected)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=seeds, rows=wanted_rows(), scale=st.sampled_from([0.0, 0.3, 3.0]))
@pytest.mark.parametrize("name", ["greedy", "greedy without repeats"])
def test_greedy_is_a_beam_of_one(name, seed, rows, scale):
    tables = random_tables(seed, batch=3, scale=scale)
    # Without a scale all is equal, and the first word of the lowest id wins.
    tables -= 1e-3 * np.arange(VOCABULARY, dtype=np.float32) * (scale == 0)
    found = run(tables, rows, EVERY[name])
    for row, wanted in enumerate(rows):
        expected = plain_beam(score_of(tables[row]), wanted, EVERY[name])
        assert_same(hypotheses_of(found, row), expected)


def test_greedy_takes_the_likeliest_word_and_then_must_end():
    """Word 4 always wins, EOS comes second, and PAD, UNK, BOS would beat both."""
    logits = np.full((3, STATES, VOCABULARY), -5.0, np.float32)
    logits[..., [PAD, UNK, BOS]] = 9.0
    logits[..., 4], logits[..., EOS] = 2.0, 1.0
    found = run(logits, [3, 1, 9], GREEDY)
    tokens = [[4, 4, EOS] + [PAD] * 5, [EOS] + [PAD] * 7, [4] * 7 + [EOS]]
    np.testing.assert_array_equal(found.tokens[:, 0], tokens)
    np.testing.assert_array_equal(found.lengths[:, 0], [3, 1, 8])


def constant(*best):
    """Tables where these tokens are the likeliest everywhere, in this order."""
    logits = np.full((STATES, VOCABULARY), -9.0, np.float32)
    logits[:, best] = np.arange(len(best), 0, -1)
    return logits


def first_of(tables, rows, options):
    found = run(np.stack(tables), rows, options)
    return [hypotheses_of(found, row)[0][1] for row in range(len(rows))]


def test_rules_of_length_and_prefix_by_hand():
    slow, hasty = constant(4, 5, EOS, 6), constant(EOS, 4, 5, 6)
    rows = [Wanted(6, prefix=(5, UNK)), Wanted(5, least=20), Wanted(2, prefix=(6,))]
    expected = [(5, UNK, 4, 4, 4, EOS), (4, 4, 4, 4, EOS), (6, EOS)]
    assert first_of([slow] * 3, rows, GREEDY) == expected
    rows = [
        Wanted(6, prefix=(6, 6, 6), least=6),
        Wanted(6, least=4),
        Wanted(6, 0, (5,)),
    ]
    expected = [(6, 6, 6, 4, 4, EOS), (4, 4, 4, EOS), (5, EOS)]
    assert first_of([hasty] * 3, rows, GREEDY) == expected


def test_no_pair_of_pieces_occurs_twice_unless_the_prefix_says_so():
    rows = [Wanted(8), Wanted(8, prefix=(6, 6, 6)), Wanted(4, prefix=(4, 4))]
    options = EVERY["greedy without repeats"]
    expected = [(4, 4, 5, 4, EOS), (6, 6, 6, 4, 4, 5, 4, EOS), (4, 4, 5, EOS)]
    assert first_of([constant(4, 5, EOS, 6)] * 3, rows, options) == expected


# Samples --------------------------------------------------------------------------


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=seeds, rows=wanted_rows())
@pytest.mark.parametrize("name", ["samples", "samples without repeats"])
def test_a_sample_is_a_function_of_its_seed(name, seed, rows):
    tables = random_tables(seed, batch=3)
    found = run(tables, rows, EVERY[name])
    for row, wanted in enumerate(rows):
        expected = plain_samples(score_of(tables[row]), wanted, EVERY[name])
        assert_same(hypotheses_of(found, row), expected)


@pytest.mark.parametrize(
    "how",
    [{"temperature": 1.5}, {"top_k": 2}, {"top_p": 0.7}],
    ids=["warm", "top_k", "top_p"],
)
def test_samples_are_as_frequent_as_they_are_probable(how):
    options = SearchOptions(
        **{"beam_size": 256, "alpha": 0.0, "temperature": 1.0} | how
    )
    tables = np.repeat(random_tables(11, batch=1, scale=1.0), 8, axis=0)
    found = run(tables, [Wanted(3, seed=s) for s in range(8)], options, max_steps=3)

    def odds(state):
        """Odds of EOS and the words, the tail cut."""
        allowed = [EOS, *WORDS]
        p = np.exp(tables[0, state, allowed].astype(float) / options.temperature)
        p /= p.sum()
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        kept = order[before < options.top_p][: options.top_k or None]
        cut = np.zeros_like(p)
        cut[kept] = p[kept] / p[kept].sum()
        return dict(zip(allowed, cut, strict=True))

    expected = {}
    for _, sentence in all_hypotheses(score_of(tables[0]), Wanted(3), options):
        state, probability = next_state(0, BOS), 1.0
        for place, token in enumerate(sentence):
            if place < 2:  # at the third EOS is certain
                probability *= odds(state)[token]
            state = next_state(state, token)
        expected[sentence] = probability
    assert sum(expected.values()) == pytest.approx(1.0)
    counts = Counter(
        sentence for row in range(8) for _, sentence in hypotheses_of(found, row)
    )
    assert sum(counts.values()) == 8 * 256
    likely = {s: p for s, p in expected.items() if p > 0}
    assert set(counts) <= set(likely)
    theirs = np.array(list(likely.values()))
    theirs *= sum(counts.values()) / theirs.sum()
    assert chisquare([counts[s] for s in likely], theirs).pvalue > 1e-3


# Rows -----------------------------------------------------------------------------


@settings(max_examples=5, deadline=None)
@given(seed=seeds, rows=wanted_rows(), scale=st.sampled_from([0.5, 3.0]))
@every_search
def test_results_do_not_depend_on_the_rest_of_the_batch(options, seed, rows, scale):
    tables = random_tables(seed, batch=3, scale=scale)
    order = [2, 0, 1]
    together = run(tables, rows, options)
    moved = run(tables[order], [rows[row] for row in order], options)
    assert_equal_results(moved, pick(together, *order))
    for row in range(3):
        alone = [each if n == row else Wanted(0) for n, each in enumerate(rows)]
        found = run(tables, alone, options)
        assert_equal_results(pick(found, row), pick(together, row))


def test_results_do_not_depend_on_the_size_of_the_batch_or_the_ring():
    tables, limits = random_tables(5, batch=3), [8, 2, 7]
    together = run(tables, limits, BEAM)
    for row in range(3):
        alone = run(tables[row : row + 1], limits[row : row + 1], BEAM, max_steps=11)
        alone = alone._replace(tokens=alone.tokens[:, :, :8])
        assert_equal_results(alone, pick(together, row))


@settings(max_examples=6, deadline=None)
@given(seed=seeds, rows=wanted_rows(), steps=st.lists(st.integers(1, 11), min_size=9))
@three_searches
def test_rows_may_begin_at_any_time(options, seed, rows, steps):
    """Nine sentences in three rows: whoever is done gives place to the next.

    The ring has eight places, and the clock goes round it several times.
    """
    tables = random_tables(seed, batch=9)
    wanted = [dataclasses.replace(rows[n % 3], seed=n) for n in range(9)]
    waiting, found = list(range(9)), {}
    running = [None] * 3
    state = nobody(options)
    for count in [*steps, *[8] * 9]:
        for row, number in enumerate(running):
            if number is None or state.done[row]:
                if number is not None:
                    found[number] = pick(state.finished, row)
                running[row] = number = waiting.pop(0) if waiting else None
                if number is not None:
                    state = begin(state, requests_of([wanted[number]]), row)
        if set(running) == {None}:
            break
        own = tables[[number or 0 for number in running]]
        clock = int(state.clock)
        state = go_on(own, state, count, options)
        assert clock < int(state.clock) <= clock + count
        state = jax.tree.map(np.asarray, state)
    assert sorted(found) == list(range(9))
    for number in range(9):
        expected = plain_search(score_of(tables[number]), wanted[number], options)
        assert_same(hypotheses_of(found[number], 0), expected)


def nobody(options):
    """Three rows of nobody, in a ring of eight places."""
    empty = requests_of([Wanted(0)] * 3)
    empty = jax.tree.map(jnp.asarray, empty)
    cache = empty_cache(3, options.beam_size, 8)
    return jax.tree.map(
        np.asarray, start(empty, cache, width=options.beam_size, length=8)
    )


def begin(state, requests, row):
    """Let a sentence begin in a row, and leave clock and cache as they are."""
    width, length = state.tokens.shape[1:]
    requests = jax.tree.map(jnp.asarray, requests)
    fresh = start(requests, state.cache, width=width, length=length)

    def put(old, new):
        old = np.array(old)
        old[row] = new[0]
        return old

    rows = {
        name: jax.tree.map(put, getattr(state, name), getattr(fresh, name))
        for name in state._fields
        if name not in ("clock", "cache")
    }
    return state._replace(**rows)


@partial(jax.jit, static_argnames="options")
def go_on(tables, state, steps, options):
    """Up to so many steps, until one row more is done."""
    enough = state.done.sum() + 1
    return advance(table_step(tables), state, options, steps=steps, enough=enough)


@three_searches
def test_a_finished_sentence_is_frozen_whatever_its_row_computes(options):
    """Row 0 ends at step 2 at the latest; from then on its logits are NaN."""
    tables = random_tables(6, batch=2)
    tables[1, :, EOS] = -9.0  # row 1 runs to its limit

    @jax.jit
    def poisoned_from(first):
        def step_fn(tokens, ages, clock, ancestors, cache):
            logits, cache = table_step(tables)(tokens, ages, clock, ancestors, cache)
            poison = (clock >= first) & (jnp.arange(2) == 0)
            return jnp.where(poison[None, :, None], jnp.nan, logits), cache

        cache = empty_cache(2, options.beam_size, 8)
        requests = no_rules(jnp.array([2, 8]))
        return search(step_fn, cache, requests, options, max_steps=8)

    expected, found = poisoned_from(8), poisoned_from(2)
    assert expected.lengths[1, 0] > 2
    assert_equal_results(found, expected)


@every_search
def test_a_row_of_limit_zero_only_fills_the_batch(options):
    tables = random_tables(8, batch=3)
    found = run(tables, [0, 4, 0], options)
    assert hypotheses_of(found, 0) == hypotheses_of(found, 2) == []
    assert (found.tokens[0] == PAD).all()
    assert len(hypotheses_of(found, 1)) >= 1


# Steps ----------------------------------------------------------------------------


def step_counter(options):
    """A function of (logits f32[V], max_lengths) that says how many steps they take."""

    @jax.jit
    def steps(logits, max_lengths):
        def step_fn(tokens, ages, clock, ancestors, cache):
            shape = (VOCABULARY, *tokens.shape)
            return jnp.broadcast_to(logits[:, None, None], shape), cache

        requests = no_rules(max_lengths)
        state = start(requests, (), width=options.beam_size, length=50)
        return advance(step_fn, state, options, steps=50, enough=2).clock

    return lambda logits, max_lengths: int(steps(logits, np.array(max_lengths)))


def test_search_stops_when_nothing_better_can_come():
    """Greedy ends with its EOS; a beam of 2 here when [EOS] and [word, EOS] are there.

    P(EOS) is almost 1 and that of a word e: what lives then has log P of 2 log e, which
    the two finished ones, 0 and log e, beat whatever the 50 allowed tokens bring. Who
    wants only the best need not wait for the second.
    """
    greedy = step_counter(GREEDY)
    both = step_counter(SearchOptions(beam_size=2, alpha=0.0, n_best=2))
    best = step_counter(SearchOptions(beam_size=2, alpha=0.0))
    hasty = np.array([-30, -30, -30, 0, -30, -30, -30], np.float32)
    assert greedy(hasty, [50, 50]) == 1
    assert best(hasty, [50, 50]) == 1
    assert both(hasty, [50, 50]) == 2
    for count_steps in (greedy, best, both):
        assert count_steps(-hasty, [7, 4]) == 7
        assert count_steps(-hasty, [0, 0]) == 0


def test_search_waits_for_a_hypothesis_that_only_its_length_makes_best():
    """After P([EOS]) = 0.55 a live log 0.45 still wins: 8 tokens divide it by 4.7."""
    logits = np.full((8, VOCABULARY), -30.0, np.float32)
    logits[0, [EOS, 4]] = np.log([0.55, 0.45])
    logits[1:7, 4], logits[7, EOS] = 0.0, 0.0

    def step_fn(tokens, ages, clock, ancestors, cache):
        here = jnp.asarray(logits)[clock][:, None, None]
        return jnp.broadcast_to(here, (VOCABULARY, *tokens.shape)), cache

    options = SearchOptions(beam_size=2, alpha=2.0)
    found = search(step_fn, (), no_rules(jnp.array([8])), options, max_steps=8)
    score, tokens = hypotheses_of(found, 0)[0]
    assert tokens == (4,) * 7 + (EOS,)
    assert score == pytest.approx(math.log(0.45) / (13 / 6) ** 2, rel=1e-4)


def test_a_search_in_pieces_is_the_search_in_one():
    """`advance` takes the steps it may, or fewer once enough rows are done."""
    tables, options = random_tables(9, batch=3), BEAM
    tables[..., EOS] = -9.0  # all run to their limits
    limits = [8, 3, 6]
    whole = run(tables, limits, options)
    requests = jax.tree.map(jnp.asarray, requests_of([Wanted(n) for n in limits]))
    state = start(requests, empty_cache(3, 4, 8), width=4, length=8)

    @jax.jit
    def pieces(state, steps, enough):
        return advance(table_step(tables), state, options, steps=steps, enough=enough)

    clocks, dones = [], []
    for steps, enough in ((2, 3), (0, 3), (8, 1), (8, 2), (1, 3), (8, 3), (8, 3)):
        state = pieces(state, steps, enough)
        clocks.append(int(state.clock))
        dones.append(np.asarray(state.done).tolist())
    assert clocks == [2, 2, 3, 6, 7, 8, 8]
    assert dones[2] == [False, True, False]
    assert dones[3] == dones[4] == [False, True, True]
    assert dones[5] == [True, True, True]
    assert_equal_results(state.finished, whole)
