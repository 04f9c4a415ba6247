"""Long lines, with a tokeniser whose pieces are characters."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.batch import EOS
from jaxformer.decoding.long_lines import parts_of
from jaxformer.decoding.options import LONG_LINES
from jaxformer.errors import InputError


def encode(texts):
    return [[*map(ord, text), EOS] for text in texts]


def cut(text: str, longest: int) -> list[str]:
    """The parts as text; `longest` counts characters."""
    parts = parts_of(text, encode, longest=longest + 1, policy="split", line=1)
    assert all(part[-1] == EOS and EOS not in part[:-1] for part in parts)
    return ["".join(map(chr, part[:-1])) for part in parts]


def test_a_line_is_cut_where_sentences_end_as_many_together_as_fit():
    text = "One two. Three! Four? Five, six… Seven."
    assert cut(text, 24) == ["One two. Three! Four?", "Five, six… Seven."]
    assert cut(text, 15) == ["One two. Three!", "Four?", "Five, six…", "Seven."]


def test_a_sentence_that_is_too_long_is_cut_at_clauses_then_words_then_anywhere():
    text = "Yes. Then, one; two three four. End."
    assert cut(text, 20) == ["Yes.", "Then, one;", "two three four.", "End."]
    assert cut(text, 10) == ["Yes.", "Then, one;", "two three", "four.", "End."]
    assert cut("an extraordinary day", 8) == ["an", "extraord", "inary", "day"]


def test_scripts_without_spaces_are_cut_too_and_numbers_never():
    assert cut("今天很好。明天呢?是的。", 7) == ["今天很好。", "明天呢?是的。"]
    clauses = ["今天\uff0c", "很好。", "明天"]
    assert cut("".join(clauses), 5) == clauses
    text = "It cost 3.50 at 10:30, or 1,000 at v2.0.1 later"
    assert cut(text, 25) == ["It cost 3.50 at 10:30,", "or 1,000 at v2.0.1 later"]


def test_what_fits_is_one_part_as_it_is():
    assert cut("Two. Parts.", 11) == ["Two. Parts."]


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("abc .,;!。、3\t", min_size=1).filter(str.strip),
    longest=st.integers(1, 12),
)
def test_nothing_is_lost_changed_or_too_long(text, longest):
    parts = cut(text, longest)
    rest = text
    for part in parts:
        assert 1 <= len(part) <= longest
        assert part == part.strip()
        skipped, _, rest = rest.partition(part)
        assert not skipped.strip()
    assert not rest.strip()


def test_a_truncated_line_keeps_what_fits(caplog):
    with caplog.at_level(logging.WARNING):
        parts = parts_of("abcdef", encode, longest=4, policy="truncate", line=3)
    assert parts == [[*map(ord, "abc"), EOS]]
    assert caplog.messages == [
        "line 3 has 7 pieces, more than 4: only the first 3 are translated"
    ]


def test_a_line_that_was_cut_is_reported(caplog):
    with caplog.at_level(logging.WARNING):
        parts_of("ab cd ef", encode, longest=6, policy="split", line=12)
    assert caplog.messages == [
        "line 12 has 9 pieces, more than 6: translated in 2 parts"
    ]


def test_a_refused_line_names_what_else_there_is():
    with pytest.raises(InputError, match="line 5 has 7 pieces, more than 4") as caught:
        parts_of("abcdef", encode, longest=4, policy="refuse", line=5)
    for policy in LONG_LINES:
        assert policy == "refuse" or policy in str(caught.value)
