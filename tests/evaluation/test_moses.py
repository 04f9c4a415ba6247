"""Moses' tokens and split compounds, on hand-made cases."""

import pytest

from jaxformer.evaluation import moses


@pytest.mark.parametrize(
    ("tokenised", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("Ost-West-Handel", "Ost ##AT##-##AT## West ##AT##-##AT## Handel"),
        # The letter between two hyphens belongs to the first of them.
        ("a-b-c", "a ##AT##-##AT## b-c"),
        # A hyphen beside a space is not inside a compound.
        ("Groß- und Kleinschreibung", "Groß- und Kleinschreibung"),
        ("er - so heißt es - kommt", "er - so heißt es - kommt"),
        ("--", "--"),
        # The middle hyphen of three is between two characters.
        ("---", "- ##AT##-##AT## -"),
        ("", ""),
    ],
)
def test_a_hyphen_between_two_characters_becomes_a_token(tokenised, split):
    assert moses.split_compounds(tokenised) == split


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


def test_split_tokens_have_ascii_quotation_marks():
    text = ["„So-so“, »gut«", "\u201aja\u2018 it\u2019s"]
    assert moses.split_tokens(text, "de") == [
        "&quot; So ##AT##-##AT## so &quot; , &quot; gut &quot;",
        "&apos; ja &apos; it &apos; s",
    ]
