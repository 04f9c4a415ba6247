"""Phrases in translations: against brute force, alone and beside others."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.phrases import (
    MOST_PHRASES,
    MOST_PIECES,
    add_terms,
    distinct,
    encode_phrases,
    phrase_arrays,
    tokens_needed,
)
from jaxformer.system.errors import InputError
from jaxformer.tokens import EOS, UNK
from tests.decoding.tables import (
    STATES,
    WORDS,
    Wanted,
    all_hypotheses,
    assert_same,
    hypotheses_of,
    is_run,
    plain_search,
    random_tables,
    score_of,
    wanted_sentences,
)
from tests.decoding.test_engine import Client, engine_of, source_of
from tests.decoding.test_search import requests_of, run_requests

LIMIT, WIDTH = 5, 128  # more hypotheses than there are sentences of four words
PHRASES = {
    "none": (),
    "a word": ((4,),),
    "a run": ((4, 5),),
    "one that begins anew inside itself": ((4, 4, 5),),
    "two words": ((4,), (5,)),
    "two that overlap": ((4, 5), (5, 6)),
    "two that overlap both ways": ((4, 5, 4), (5, 4, 5)),
    "one inside another": ((4, 5, 6), (5,)),
    "one twice": ((4, 4), (4, 4)),
    "two with one beginning": ((4, 5), (4, 6)),
    "one that repeats a word": ((4, 4, 4),),
    "three": ((4,), (5, 6), (6, 4)),
}
RULES = {
    "gnmt": {"alpha": 0.6},
    "long outputs without repeated words": {"alpha": 2.5, "no_repeat_ngram": 1},
    "power without bigrams": {
        "alpha": 1.0, "length_penalty": "power", "no_repeat_ngram": 2,
    },
}  # fmt: skip


def run(tables, rows, options, max_steps=LIMIT):
    """Search all rows in the program with phrases."""
    phrases = phrase_arrays([distinct(wanted.phrases) for wanted in rows])
    requests = requests_of(rows)._replace(phrases=phrases)
    found = run_requests(tables, requests, options, max_steps, 10**6)
    return jax.tree.map(np.asarray, found)


# Brute force ----------------------------------------------------------------------


@pytest.mark.parametrize("phrases", PHRASES.values(), ids=PHRASES)
@pytest.mark.parametrize("how", RULES.values(), ids=RULES)
def test_a_wide_beam_lists_every_sentence_with_the_phrases(how, phrases):
    """Also beside rows with a prefix, a least length, and just enough room."""
    options = SearchOptions(beam_size=WIDTH, n_best=WIDTH, **how)
    least = tokens_needed(distinct(phrases)) + 1
    after_4 = tokens_needed(distinct(phrases), (4,)) + 2
    rows = [
        Wanted(LIMIT, phrases=phrases),
        Wanted(least, phrases=phrases),
        Wanted(max(after_4, 3), prefix=(4,), phrases=phrases),
        Wanted(LIMIT, least=4, phrases=phrases),
        Wanted(LIMIT),
    ]
    assert after_4 <= LIMIT
    tables = random_tables(len(phrases), batch=len(rows))
    found = run(tables, rows, options)
    for row, wanted in enumerate(rows):
        expected = all_hypotheses(score_of(tables[row]), wanted, options)
        assert 0 < len(expected) <= WIDTH
        assert_same(hypotheses_of(found, row), expected)


some_phrases = st.lists(
    st.lists(st.sampled_from(WORDS[:2]), min_size=1, max_size=3).map(tuple), max_size=3
).map(tuple)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(phrases=some_phrases, prefix=st.lists(st.sampled_from(WORDS), max_size=3))
def test_the_least_number_of_tokens_is_that_of_a_search_through_all(phrases, prefix):
    needed = tokens_needed(distinct(phrases), prefix)
    for size in range(needed + 1):
        found = any(
            all(is_run(phrase, (*prefix, *rest)) for phrase in phrases)
            for rest in itertools.product(WORDS[:2], repeat=size)
        )
        assert found == (size == needed)


def test_phrases_inside_others_and_repeats_are_left_out():
    phrases = [(4, 5), (4, 5, 6), (7,), (5,), (7,), (6, 7)]
    assert distinct(phrases) == ((4, 5, 6), (6, 7))
    assert distinct([]) == ()


# Narrow beams ---------------------------------------------------------------------


drawn = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple), max_size=3
).map(tuple)


@st.composite
def wanted_phrases(draw, limit: int) -> Wanted:
    """Draw constraints with phrases, which fit."""
    wanted = draw(wanted_sentences(least_limit=1, limit=limit, prefix=3))
    phrases = draw(drawn)
    needed = len(wanted.prefix) + tokens_needed(distinct(phrases), wanted.prefix) + 1
    return (
        dataclasses.replace(
            wanted, phrases=phrases, limit=max(wanted.limit, min(needed, limit))
        )
        if needed <= limit
        else wanted
    )


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), rows=st.tuples(*[wanted_phrases(10)] * 3))
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam_size=1, alpha=0.6),
        SearchOptions(beam_size=2, n_best=2, alpha=0.6),
        SearchOptions(beam_size=4, n_best=4, alpha=1.5, no_repeat_ngram=2),
        SearchOptions(beam_size=7, n_best=3, alpha=0.0),
    ],
)
def test_a_narrow_beam_equals_a_plain_one_that_shares_itself_alike(options, seed, rows):
    tables = random_tables(seed, batch=3)
    found = run(tables, rows, options, 10)
    for row, wanted in enumerate(rows):
        expected = plain_search(score_of(tables[row]), wanted, options)
        n = options.n_best
        assert_same(hypotheses_of(found, row)[:n], expected[:n])


# Slots ----------------------------------------------------------------------------


@pytest.mark.usefixtures("small_sizes")
def test_a_sentence_with_phrases_has_its_result_alone_in_any_slots():
    """Slots are filled, refilled and resized; some sentences have no phrase."""
    options = SearchOptions(beam_size=3, n_best=3, alpha=0.6)
    engine = engine_of(options, with_phrases=True)
    client, shapes = Client(engine, options), set()
    for number, phrases in enumerate([*PHRASES.values()] * 2):
        limit, least = (12, 11) if number % 7 == 6 else (8, 0)
        source = source_of(number, length=12 if number % 5 == 4 else 3)
        client.submit(Wanted(limit, least, phrases=phrases), source)
        if number % 3 == 2:
            client.advance(2)
            shapes.add(engine._shape)
    while client.advance(3):
        shapes.add(engine._shape)
    client.finish()
    for sizes in zip(*shapes, strict=True):
        assert len({*sizes}) > 1


# Refusals -------------------------------------------------------------------------


def encode(texts):
    return [[*(ord(letter) for letter in text), EOS] for text in texts]


NOTHING_ELSE = {"line": 3, "parts": 1, "prefix": (), "most": 99}


def test_phrases_become_distinct_pieces_and_need_room_for_an_end():
    phrases = ["ab", "", "bc", "b", "ab"]
    found = encode_phrases(phrases, encode, **NOTHING_ELSE)
    assert found == ((97, 98), (98, 99))
    after = {**NOTHING_ELSE, "prefix": [97]}
    assert encode_phrases(["ab"], encode, **{**after, "most": 3}) == ((97, 98),)
    blank_text = {**NOTHING_ELSE, "parts": 0}
    assert encode_phrases(["ab"], encode, **blank_text) == ()


@pytest.mark.parametrize(
    ("phrases", "changes", "error"),
    [
        ("ab", {}, "line 3 has a string as phrases"),
        ([chr(97 + n) for n in range(9)], {}, "line 3 has 9 phrases, more than 8"),
        (["a" * 33], {}, "line 3: the phrase 'aaa.*' has 33 pieces, more than 32"),
        (["a" + chr(UNK)], {}, "has a character that the vocabulary lacks"),
        (["a"], {"parts": 2}, "is translated in 2 parts"),
        (["ab", "c"], {"most": 3}, "at least 4 pieces, more than 3; leave some out"),
        (["ab"], {"prefix": [1, 2], "most": 4}, "at least 5 pieces, more than 4"),
    ],
)
def test_phrases_that_no_translation_contains_are_refused(phrases, changes, error):
    with pytest.raises(InputError, match=error):
        encode_phrases(phrases, encode, **{**NOTHING_ELSE, **changes})


def test_terms_are_added_to_phrases_as_long_as_a_translation_contains_them():
    terms = [("bc",), ("b",), (chr(UNK), "ef"), (chr(UNK) * 2,), ("d" * 9, "d"), ("a",)]
    found, needed, left_out = add_terms([(97, 98)], terms, encode, prefix=[97], most=7)
    assert found == ((97, 98), (98, 99), (101, 102))
    assert needed == 1 + len("bc") + len("ef") + 1
    assert left_out == [
        f"{chr(UNK) * 2!r} (a character that the vocabulary lacks)",
        "'ddddddddd' (at least 15 pieces, more than 7)",
    ]
    terms = [[chr(97 + n)] for n in range(MOST_PHRASES + 2)]
    found, _, left_out = add_terms([(97,)], terms, encode, prefix=(), most=99)
    assert len(found) == MOST_PHRASES
    assert left_out == ["'i' (more than 8 phrases)", "'j' (more than 8 phrases)"]


def test_the_most_phrases_of_the_most_pieces_fit_a_program():
    """Each begins with the second piece of the one before it."""
    needed = MOST_PIECES + MOST_PHRASES - 1
    text = tuple(range(4, 4 + needed))
    phrases = tuple(text[n : n + MOST_PIECES] for n in range(MOST_PHRASES))
    assert tokens_needed(phrases) == needed
    table = np.zeros((1, STATES, 50), np.float32)
    options, wanted = SearchOptions(beam_size=2, alpha=0.0), Wanted(needed + 1)
    wanted = dataclasses.replace(wanted, phrases=phrases)
    ((_, tokens),) = hypotheses_of(run(table, [wanted], options, needed + 1), 0)
    assert tokens == (*text, EOS)
