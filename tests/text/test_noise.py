"""Noise: what each kind changes, how often, and what it leaves alone."""

import unicodedata
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.config.data import NO_NOISE
from jaxformer.text import noise
from jaxformer.text.lines import normalise
from jaxformer.text.noise import noised

SYMBOLS = ("__num__",)
WORDS = st.sampled_from(["a", "man", "über", "__num__", "x__num__", "runs.", "straße"])
PAIRS = st.tuples(*[st.lists(WORDS, min_size=1, max_size=9).map(" ".join)] * 2)


def by(kind, pair, seed):
    return noised(pair, NO_NOISE | {kind: 1.0}, SYMBOLS, Random(seed))


@given(PAIRS, st.integers(0, 2**32))
def test_a_copied_thing_is_one_more_word_at_the_same_place(pair, seed):
    found = by("copy", pair, seed)
    options = []
    for before, after in zip(map(str.split, pair), map(str.split, found), strict=True):
        assert len(after) == len(before) + 1
        at = [n for n in range(len(after)) if after[:n] + after[n + 1 :] == before]
        options.append({(after[n], n / len(before)) for n in at})
        longest = max(1 / len(before) for before in map(str.split, pair))
    assert any(
        one == other and abs(first - second) <= longest
        for one, first in options[0]
        for other, second in options[1]
    )
    assert all(normalise(side) == side for side in found)


@given(PAIRS, st.integers(0, 2**32))
def test_a_typo_changes_letters_of_one_usual_word_of_the_source(pair, seed):
    source, target = by("typo", pair, seed)
    assert target == pair[1]
    both = [*zip(pair[0].split(), source.split(), strict=True)]
    changed = [(before, after) for before, after in both if before != after]
    assert {before for before, _ in changed} <= {"über", "straße"}
    assert len(changed) <= 1
    for before, after in changed:
        assert before[0] == after[0]
        assert abs(len(before) - len(after)) <= 1


def test_case_and_stops_change_on_both_sides_and_placeholders_stay():
    pair = "a man's x__num__ runs.", "über __num__ straße."
    assert by("upper_case", pair, 0) == (
        "A MAN'S X__num__ RUNS.",
        "ÜBER __num__ STRASSE.",
    )
    upper = NO_NOISE | {"upper_case": 1.0}
    for symbols in (("dog", "dogs"), ("dogs", "dog")):
        found = noised(("dogs a", "dog"), upper, symbols, Random(0))
        assert found == ("dogs A", "dog")
    assert by("title_case", pair, 0) == (
        "A Man's X__num__ Runs.",
        "Über __num__ Straße.",
    )
    assert by("no_stop", pair, 0) == (pair[0][:-1], pair[1][:-1])
    assert by("no_stop", ("他走。", "He goes"), 0) == ("他走", "He goes")
    assert by("no_stop", ("Well...", "."), 0) == ("Well...", ".")


def test_each_kind_has_its_share():
    """5 deviations of 4,000 draws; the seed is fixed."""
    shares = {
        "copy": 0.1,
        "upper_case": 0.2,
        "title_case": 0,
        "no_stop": 0,
        "typo": 0.3,
    }
    pair, random, count = ("a house .", "ein haus."), Random(0), 4000
    found = Counter()
    for source, target in (noised(pair, shares, (), random) for _ in range(count)):
        kinds = {target != pair[1]: "copy"} | {target.isupper(): "upper_case"}
        found[kinds.get(True, "typo" if source != pair[0] else "")] += 1
    for kind, share in (shares | {"": 0.4}).items():
        assert abs(found[kind] - share * count) <= 5 * (share * count) ** 0.5, kind
    assert noised(pair, NO_NOISE, (), random) is pair


def test_all_characters_are_assigned_and_composed():
    emoji = [*map(chr, range(*noise._EMOJI))]
    assert {*map(unicodedata.category, emoji)} == {"So", "Sk"}
    for first, last in noise._ALPHABETS:
        letters = [*map(chr, range(ord(first), ord(last) + 1))]
        assert all(letter.isalpha() for letter in letters), first
        assert [*map(normalise, letters)] == letters


@pytest.mark.parametrize("kind", NO_NOISE)
def test_a_blank_side_and_one_word_are_no_mistake(kind):
    for pair in (("", ""), ("他走", "x")):
        assert len(by(kind, pair, 1)) == 2
