"""Long lines, with a tokeniser whose pieces are characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.decoding.parts import Hypothesis, joined, parts_of
from jaxformer.tokens import EOS


def encode(texts):
    return [[*map(ord, text), EOS] for text in texts]


def cut(text: str, longest: int) -> list[str]:
    """The parts as text; `longest` counts characters."""
    parts = parts_of(text, encode, tags=0, longest=longest + 1, policy="split", line=1)
    assert all(ids[-1] == EOS and EOS not in ids[:-1] for _, ids in parts)
    found = ["".join(map(chr, ids[:-1])) for _, ids in parts]
    assert all(ids in text for ids, (text, _) in zip(found, parts, strict=True))
    return found


SENTENCES = "One two. Three! Four? Five, six… Seven."
CLAUSES = "Yes. Then, one; two three four. End."


def test_each_part_of_a_word_has_the_tag():
    def tagged(texts):
        return [[5, *ids] for ids in encode(texts)]

    parts = parts_of("abcdef", tagged, tags=1, longest=5, policy="split", line=1)
    assert [ids for _, ids in parts] == tagged(["abc", "def"])


def test_no_space_follows_wide_punctuation():
    parts = [
        [Hypothesis(text, -1.0, -2.0, 3)] for text in ("今天。", "明天", "x.", "y")
    ]
    (found,) = joined(parts, [2, 2])
    assert found[:4] == ("今天。明天\nx. y", -4.0, -8.0, 12)


def test_a_blank_part_is_left_out():
    def visible(texts):
        return encode([text.replace("\x02", "") for text in texts])

    found = parts_of("\x02 abcdef", visible, tags=0, longest=4, policy="split", line=1)
    assert [text for text, _ in found] == ["abcdef"] * 2


@pytest.mark.parametrize(
    ("text", "longest", "parts"),
    [
        (SENTENCES, 24, ["One two. Three! Four?", "Five, six… Seven."]),
        (SENTENCES, 15, ["One two. Three!", "Four?", "Five, six…", "Seven."]),
        (CLAUSES, 20, ["Yes.", "Then, one;", "two three four.", "End."]),
        (CLAUSES, 10, ["Yes.", "Then, one;", "two three", "four.", "End."]),
        ("an extraordinary day", 8, ["an", "extraord", "inary", "day"]),
        ("今天很好。明天呢?是的。", 7, ["今天很好。", "明天呢?是的。"]),
        ("今天\uff0c很好。明天", 5, ["今天\uff0c", "很好。", "明天"]),
        (
            "On 3.5 at 10:30, or 1,0 at v2.0 on",
            17,
            ["On 3.5 at 10:30,", "or 1,0 at v2.0 on"],
        ),
        ("Two. Parts.", 11, ["Two. Parts."]),
    ],
)
def test_lines_are_cut_at_sentences_then_clauses_then_words_then_anywhere(
    text, longest, parts
):
    assert cut(text, longest) == parts


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("abc .,;!。、3\t", min_size=1).filter(str.strip),
    longest=st.integers(1, 12),
)
def test_parts_are_the_whole_text_and_not_too_long(text, longest):
    rest = text
    for part in cut(text, longest):
        assert 1 <= len(part) <= longest
        assert part == part.strip()
        skipped, _, rest = rest.partition(part)
        assert not skipped.strip()
    assert not rest.strip()


@pytest.mark.parametrize(
    ("policy", "parts", "message"),
    [
        ("truncate", ["abcd"], "only the first 4 are translated"),
        ("split", ["abcd", "ef"], "translated in 2 parts"),
    ],
)
def test_the_treatment_of_a_long_line_is_logged(caplog, policy, parts, message):
    found = parts_of("abcdef", encode, tags=0, longest=5, policy=policy, line=3)
    assert found == [("abcdef", ids) for ids in encode(parts)]
    assert caplog.messages == [f"line 3 has 7 pieces, more than 5: {message}"]
