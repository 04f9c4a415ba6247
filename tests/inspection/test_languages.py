"""Two languages learnt from their own pairs: what is planted is found, no more."""

import sys

import numpy as np
import pytest

from jaxformer.data import grammar
from jaxformer.errors import InputError
from jaxformer.inspection.languages import FINE, NEITHER, OTHER, Languages

FRENCH = (
    "Le vieux marin raconte toujours les mêmes histoires quand il fait froid.",
    "Nous avons acheté du pain frais chez le boulanger avant de partir.",
    "Les enfants jouaient dehors pendant que leur mère lisait une lettre.",
)
ENGLISH, GERMAN = (
    "The old doctor must help these children.",
    "Der alte Arzt muss helfen.",
)


@pytest.fixture(scope="module")
def pairs():
    return [(p.source, p.target) for p in grammar.generate("train", 3000, 0)]


@pytest.fixture(scope="module")
def languages(pairs):
    return Languages(pairs)


def verdicts(languages, *pairs):
    return languages.judge(pairs)[0].T.tolist()


def test_pairs_of_the_corpus_are_fine(languages, pairs):
    found, sureness = languages.judge(pairs)
    assert found.shape == sureness.shape == (2, len(pairs))
    assert (found == FINE).all()


def test_a_swapped_pair_is_in_the_other_language_on_both_sides(languages, pairs):
    swapped = [(b, a) for a, b in pairs if min(len(a.split()), len(b.split())) > 6]
    found, sureness = languages.judge(swapped)
    assert (found == OTHER).mean() > 0.99
    assert (sureness[found == OTHER] > 0).all()


def test_a_copy_is_in_the_wrong_language_on_one_side(languages):
    assert verdicts(languages, (ENGLISH, ENGLISH), (GERMAN, GERMAN)) == [
        [FINE, OTHER],
        [OTHER, FINE],
    ]


def test_a_third_language_is_neither(languages):
    assert verdicts(languages, *((ENGLISH, line) for line in FRENCH)) == [
        [FINE, NEITHER]
    ] * len(FRENCH)
    assert verdicts(languages, *((line, GERMAN) for line in FRENCH)) == [
        [NEITHER, FINE]
    ] * len(FRENCH)
    assert verdicts(languages, (ENGLISH, "Старый врач должен помочь этим детям.")) == [
        [FINE, NEITHER]
    ]


@pytest.mark.parametrize(
    "text", ["", "  ", "42", "...", "Tom", "OK!", "Anna, 1998", "New York"]
)
def test_a_few_letters_are_no_evidence(languages, text):
    assert (
        verdicts(languages, (text, text), (ENGLISH, text), (text, GERMAN))
        == [[FINE, FINE]] * 3
    )


def test_a_name_on_both_sides_speaks_for_neither_language():
    pairs = [
        (f"{name} sees the {thing} of {other}", f"{name} sieht {thing} von {other}")
        for name in ("Jonathan", "Gretchen", "Heinrich")
        for other in ("Jonathan", "Gretchen", "Heinrich")
        for thing in (f"wub{n}" for n in range(60))
    ]
    languages = Languages(pairs)
    line = "Jonathan Gretchen Heinrich Jonathan Gretchen"
    assert verdicts(languages, (line, line)) == [[FINE, FINE]]


def test_one_pair_in_ten_wrong_does_not_spoil_what_is_learnt(pairs):
    mixed = [(b, a) if i % 10 == 0 else (a, b) for i, (a, b) in enumerate(pairs)]
    found = Languages(mixed).judge(mixed)[0]
    long = np.array([min(len(a.split()), len(b.split())) > 6 for a, b in mixed])
    is_planted = np.arange(len(mixed)) % 10 == 0
    assert (found[:, is_planted & long] == OTHER).mean() > 0.98
    assert (found[:, ~is_planted] == FINE).mean() > 0.999


def test_the_order_of_judging_changes_nothing(languages, pairs):
    some = [*pairs[:50], (FRENCH[0], FRENCH[0])]
    together = languages.judge(some)
    apart = [languages.judge([pair]) for pair in some[::-1]][::-1]
    assert np.array_equal(together[0], np.hstack([each[0] for each in apart]))
    assert np.allclose(together[1], np.hstack([each[1] for each in apart]))


def test_a_script_without_spaces_is_read_by_the_character():
    """Sentences of characters that never end in a space are no single long word."""
    first, second = "的一是不了人我在有他", "のはをたがでてとしれ"
    rng = np.random.default_rng(0)
    pairs = [
        tuple("".join(rng.choice(list(script), 12)) for script in (first, second))
        for _ in range(600)
    ]
    languages = Languages(pairs)
    assert verdicts(languages, pairs[0], pairs[1][::-1]) == [
        [FINE, FINE],
        [OTHER, OTHER],
    ]


def test_languages_that_are_one_are_refused(pairs):
    same = [(source, source) for source, _ in pairs]
    with pytest.raises(InputError, match="look too much alike"):
        Languages(same)
    with pytest.raises(InputError, match="no words"):
        Languages([("1", "2")] * 600)


def test_few_pairs_are_refused(pairs):
    with pytest.raises(InputError, match="499 pairs are too few"):
        Languages(pairs[:499])


def test_without_scikit_learn_the_extra_is_named(pairs, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(InputError, match=r"pip install 'jaxformer\[report\]'"):
        Languages(pairs)
