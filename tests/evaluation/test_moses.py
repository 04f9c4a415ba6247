"""Moses' tokens and split compounds, on cases made by hand."""

import pytest

from jaxformer.evaluation import moses


@pytest.mark.parametrize(
    ("tokenised", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("Ost-West-Handel", "Ost ##AT##-##AT## West ##AT##-##AT## Handel"),
        # The letter between two hyphens belongs to the first of them.
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("E-Mail-Programm", "E ##AT##-##AT## Mail ##AT##-##AT## Programm"),
        # A hyphen with a space on either side is no compound's.
        ("Groß- und Kleinschreibung", "Groß- und Kleinschreibung"),
        ("er - so heißt es - kommt", "er - so heißt es - kommt"),
        ("-", "-"),
        ("--", "--"),
        # The middle one of three is between two characters, which are hyphens, too.
        ("---", "- ##AT##-##AT## -"),
        ("", ""),
    ],
)
def test_a_hyphen_between_two_characters_becomes_a_token(tokenised, split):
    assert moses.split_compounds(tokenised) == split


def test_splitting_loses_no_character():
    text = "Die E-Mail-Adresse des 30-jährigen Nordrhein-Westfalen - so , so -"
    again = moses.split_compounds(text).replace(" ##AT##-##AT## ", "-")
    assert again == text


@pytest.mark.parametrize(
    ("sentence", "language", "tokens"),
    [
        ("Er kommt, z.B. am 3. Mai.", "de", "Er kommt , z.B. am 3. Mai ."),
        ("He doesn't know it.", "en", "He doesn &apos;t know it ."),
        ("Er mag den Rad-Weg.", "de", "Er mag den Rad-Weg ."),
        ("L'homme court.", "fr", "L&apos; homme court ."),
        ("3,5 % & mehr", "de-AT", "3,5 % &amp; mehr"),
    ],
)
def test_tokens_are_those_of_the_language(sentence, language, tokens):
    assert moses.tokens([sentence], language) == [tokens]


def test_quotation_marks_become_plain():
    assert moses.plain_quotes("„So“, sagt er, »gut«") == '"So", sagt er, "gut"'
    assert moses.plain_quotes("\u201aja\u2018 it\u2019s") == "'ja' it's"
