"""Words and their probabilities from pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.decoding.parts import Hypothesis, joined
from jaxformer.decoding.words import words_of


@pytest.mark.parametrize(
    ("text", "pieces", "words"),
    [
        ("Ein Hund.", "▁Ein ▁Hu nd . </s>", {"Ein": 0, "Hund": 1 + 2, ".": 3}),
        ("don't say 3.5", "▁don 't ▁say ▁ 3 .5", {"don't": 1, "say": 2, "3.5": 12}),
        ("我们走。", "▁ 我们 走 。 </s>", {"我们": 0 + 1, "走": 2, "。": 3}),
        ("a\nb", ">>de<< ▁a </s> >>de<< ▁b </s>", {"a": 1, "b": 4}),
        ("New York", "▁New▁York </s>", {"New York": 0}),  # one piece
        ("नमस्ते।", "▁नम स्ते ।", {"नमस्ते": 0 + 1, "।": 2}),
        ("a ⁇", "▁a <unk> </s>", {}),
        ("", "", {}),
    ],
)
def test_a_word_has_the_sum_of_the_pieces_that_begin_in_it(text, pieces, words):
    pieces = pieces.split()
    assert dict(words_of(text, pieces, [*range(len(pieces))])) == words


@given(st.lists(st.sampled_from(["▁a", "b", "▁don", "'t", ".", "▁", "走"])))
def test_words_spell_the_text_and_have_its_log_probability(pieces):
    while pieces and pieces[-1] == "▁":  # begins no word
        pieces.pop()
    text = " ".join("".join(pieces).replace("▁", " ").split())
    words = words_of(text, pieces, [-1.0] * len(pieces))
    assert "".join(each.word for each in words).replace(" ", "") == text.replace(
        " ", ""
    )
    total = sum(each.log_probability for each in words)
    assert total == (-len(pieces) if text else 0)


def test_parts_join_their_words():
    parts = [
        [Hypothesis("a", -1, -1, 2, pieces=["▁a", "</s>"], log_probabilities=[-2, 0])]
    ]
    (whole,) = joined(parts * 2, [1, 1])
    assert whole.words == [("a", -2), ("a", -2)]
    assert whole.summary()["words"] == [{"word": "a", "log_probability": -2}] * 2
