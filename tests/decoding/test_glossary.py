"""Which terms of a glossary a source has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.decoding.glossary import Glossary
from jaxformer.decoding.placeholders import Placeholders
from jaxformer.system.errors import InputError

word = st.sampled_from(["a", "b", "ab", "ba", "éa"])  # some are part of others


def longest_first(words: list[str], terms: list[list[str]]) -> list[str]:
    """Look up runs of words, the longest first, then the leftmost."""
    marks, found = [*words], {}
    for size in sorted({len(" ".join(term)) for term in terms}, reverse=True):
        for at in range(len(words)):
            for term in terms:
                end = at + len(term)
                if len(" ".join(term)) == size and marks[at:end] == term:
                    marks[at:end] = [None] * len(term)
                    found[at] = "+".join(term)
    return list(dict.fromkeys(found[at] for at in sorted(found)))


@given(
    words=st.lists(word, max_size=8),
    terms=st.lists(st.lists(word, min_size=1, max_size=3), max_size=6),
    space=st.sampled_from([" ", "  ", "\u00a0", " \t"]),
)
def test_terms_are_whole_words_the_longest_first(words, terms, space):
    lines = [f"{' '.join(term)}\t{'+'.join(term)}" for term in terms]
    found = Glossary(lines, "terms").find(space.join(words))
    assert found == [(each,) for each in longest_first(words, terms)]


@given(st.text(max_size=30), st.text(min_size=1, max_size=3))
def test_whatever_is_found_is_in_the_text(text, term):
    if term.strip() and not {*term} & {*"\t|\r\n"}:
        for (found,) in Glossary([f"{term}\tx"], "terms").find(text):
            assert found == "x"
        text = f"{text} {term}."
        if not [*Placeholders().find(text)]:
            assert Glossary([f"{term}\tx"], "terms").find(text) == [("x",)]


@pytest.mark.parametrize(
    ("term", "text", "is_found"),
    [
        ("dog", "Dogs run, dog's do: dog-tired DOG!", True),
        ("dog", "Dogs and dog2 and hotdog and dogé", False),
        ("dog", "{dog} and https://dog.org/dog and %(dog)s", False),
        ("DOG", "A dog.", False),
        ("New  York", "in New\nYork", True),
        ("caf\u00e9", "the cafe\u0301.", True),
        ("cafe", "the cafe\u0301.", False),  # the accent belongs to the word
        ("हिन्द", "हिन्दी", False),
        ("東京", "私は東京都に住む", True),
        ("แมว", "ฉันชอบแมวมาก", True),
        ("T恤", "一件T恤衫", True),
        ("T恤", "一件ET恤衫", False),
        ("C++", "in C++, not C", True),
        ("ph", "Send __PH__ now", False),
        ("name", "the user_name", False),
        ("name", "the _name_ or __name__", True),
    ],
)
def test_words_of_many_scripts(term, text, is_found):
    assert Glossary([f"{term}\tx"], "terms").find(text) == [("x",)] * is_found


def test_case_that_a_glossary_has_is_matched_first():
    lines = ["polish\tpolieren | putzen\tverb", "", "Polish\tpolnisch\t"]
    glossary = Glossary(lines, "terms")
    verb, adjective = ("polieren", "putzen"), ("polnisch",)
    assert glossary.find("Polish shoes") == [adjective]
    assert glossary.find("POLISH Polish, polish polish") == [verb, adjective]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "cat",
            "terms, line 2 lacks a term or its translation; write both",
        ),
        ("\tKatze", "terms, line 2 lacks a term"),
        ("cat\t | \tnote", "terms, line 2 lacks a term"),
        ("dog\tKatze", "terms, line 2: 'dog' has other translations in an earlier"),
    ],
)
def test_lines_that_are_no_terms_are_refused(line, error):
    with pytest.raises(InputError, match=error):
        Glossary(["dog\tHund", line], "terms")
    assert Glossary(["dog\tHund"] * 2, "terms").find("dog") == [("Hund",)]
