"""Sentences in the wrong language are found, and no others."""

import numpy as np
import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from jaxformer.text.languages import Languages

ENGLISH = "The old doctor must help these children."
GERMAN = "Der alte Arzt muss diesen Kindern helfen."
FRENCH = "Le vieux marin raconte toujours les mêmes histoires quand il fait froid."
RUSSIAN = "Старый врач должен помочь этим детям."
WRONG = [
    (GERMAN, ENGLISH, [("swapped", None)]),
    (ENGLISH, ENGLISH, [("target_in_source_language", None)]),
    (GERMAN, GERMAN, [("source_in_target_language", None)]),
    (FRENCH, GERMAN, [("source_in_neither", "fr")]),
    (ENGLISH, RUSSIAN, [("target_in_neither", "ru")]),
    (FRENCH, FRENCH, [("source_in_neither", "fr"), ("target_in_neither", "fr")]),
]
FEW_LETTERS = ["", "42", "...", "Tom", "OK!", "Anna, 1998", "New York", "<b>&amp;</b>"]


@pytest.fixture(scope="module")
def languages():
    return Languages(("en", "de-AT"))


def test_wrong_sides_are_found_among_right_ones(languages, pairs):
    sources, targets, kinds = zip(*WRONG, strict=True)
    right = list(zip(*pairs, strict=True))
    found = list(languages.judge([*right[0], *sources], [*right[1], *targets]))
    assert [
        (index - len(pairs), kind, language) for index, kind, language, _ in found
    ] == [(index, *each) for index, expected in enumerate(kinds) for each in expected]
    assert all(odds > 15 for *_, odds in found)


def test_probabilities_are_those_of_py3langid(languages):
    serbian = "Стари лекар мора помоћи овој деци. Stari lekar mora pomoći ovoj deci."
    texts = [GERMAN, RUSSIAN, FRENCH.upper(), serbian, *FEW_LETTERS, ENGLISH * 9]
    theirs = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for text, row in zip(texts, np.exp(languages.classify(texts)), strict=True):
        for language, probability in theirs.rank(text):
            ours = row[languages.labels == language].sum() / row.sum()
            assert ours == pytest.approx(probability, abs=1e-5)


@pytest.mark.parametrize("text", FEW_LETTERS)
def test_a_few_letters_are_no_evidence(languages, text):
    assert not [*languages.judge([text, ENGLISH, text], [text, text, GERMAN])]


def test_a_language_has_several_codes():
    """The model calls Filipino tl."""
    languages = Languages(("deu_Latn", "fil"))
    (found,) = languages.judge([GERMAN], [GERMAN])
    assert found[1] == "target_in_source_language"


def test_both_sides_may_be_in_one_language():
    languages = Languages(("en", "en"))
    (found,) = languages.judge([ENGLISH, ENGLISH], ["These need a doctor.", GERMAN])
    assert found[:3] == (1, "target_in_neither", "de")
