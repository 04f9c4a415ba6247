"""Sentences in the wrong language are found, and no others."""

import pytest

from jaxformer.inspection.languages import Languages

ENGLISH = "The old doctor must help these children."
GERMAN = "Der alte Arzt muss diesen Kindern helfen."
FRENCH = "Le vieux marin raconte toujours les mêmes histoires quand il fait froid."
RUSSIAN = "Старый врач должен помочь этим детям."
WRONG = {
    (GERMAN, ENGLISH): [("swapped", None)],
    (ENGLISH, ENGLISH): [("target_in_source_language", None)],
    (GERMAN, GERMAN): [("source_in_target_language", None)],
    (FRENCH, GERMAN): [("source_in_neither", "fr")],
    (ENGLISH, RUSSIAN): [("target_in_neither", "ru")],
    (FRENCH, FRENCH): [("source_in_neither", "fr"), ("target_in_neither", "fr")],
}


@pytest.fixture(scope="module")
def languages():
    return Languages(("en", "de"))


def judge(languages, pair):
    return [(kind, language) for kind, language, _ in languages.judge(pair)]


def test_wrong_sides_are_found_before_and_after_a_corpus_was_read(languages, pairs):
    """No pair of the corpus is wrong, and what it teaches hides no wrong one."""
    for _ in range(2):
        assert {pair: judge(languages, pair) for pair in WRONG} == WRONG
        assert all(odds > 15 for pair in WRONG for *_, odds in languages.judge(pair))
        assert [pair for pair in pairs if judge(languages, pair)] == []
    assert {"the", "der"} - languages._words[0][2] == {"der"}  # need not be seen again


def test_words_of_both_languages_hide_nothing():
    """A sentence of words that are as usual on the other side is classified."""
    languages = Languages(("en", "de"))
    for _ in range(100):
        judge(languages, ("The man in Berlin was in a hotel", "Der Mann war in Berlin"))
    copied = "In Berlin war der Mann in Berlin"
    assert judge(languages, (copied, copied)) == [("source_in_target_language", None)]


@pytest.mark.parametrize(
    "text", ["", "42", "...", "Tom", "OK!", "Anna, 1998", "New York", "<b>&amp;</b>"]
)
def test_a_few_letters_are_no_evidence(languages, text):
    for pair in ((text, text), (ENGLISH, text), (text, GERMAN)):
        assert judge(languages, pair) == []


def test_both_sides_may_be_in_one_language():
    languages = Languages(("en", "en"))
    assert judge(languages, (ENGLISH, "These children need the old doctor.")) == []
    assert judge(languages, (ENGLISH, GERMAN)) == [("target_in_neither", "de")]
