"""Lengths, unknown words and odd characters, counted by hand."""

import numpy as np
import pytest

from jaxformer.batch import EOS, UNK
from jaxformer.inspection import tallies
from jaxformer.inspection.tallies import Characters, Found, Lengths, Ratios, Words


class Tokenizer:
    """Knows the word "house" and the letters of "bread"; all else is UNK."""

    PIECES = ("", "", "", "", "▁", "▁house", *"bread")

    def pieces(self):
        return list(self.PIECES)

    def encode(self, words):
        return [self._ids(word) for word in words]

    def _ids(self, word):
        if word == "house":
            return [5, EOS]
        ids = [4, *(self.PIECES.index(c) if c in "bread" else UNK for c in word)]
        return [*ids, EOS]


def count_words(*sentences, first=0, words=None):
    words = words or Words(Tokenizer(), Tokenizer().encode)
    words.add(first, [sentence.split() for sentence in sentences])
    return words.result()


def test_unknown_words_are_counted_with_their_sentences():
    found = count_words("house zoo house", "zoo zoo bar", "bar xylo", first=7)
    assert found["words"] == 8
    assert found["unknown"]["total"] == Found(4, 3, [7, 8, 9])
    assert found["unknown"]["most"] == {
        "zoo": Found(3, 2, [7, 8]), "xylo": Found(1, 1, [9]),
    }  # fmt: skip


def test_words_spelt_out_are_long_and_of_letters():
    found = count_words("bread bar bread! house 12345")
    assert found["spelt_out"]["total"] == Found(1, 1, [0])
    assert list(found["spelt_out"]["most"]) == ["bread"]
    assert list(found["unknown"]["most"]) == ["12345", "bread!"]


def test_words_of_later_blocks_are_counted_too():
    words = Words(Tokenizer(), Tokenizer().encode)
    count_words("house zoo", words=words)
    found = count_words("zoo", "house", first=2, words=words)
    assert found["unknown"]["most"]["zoo"] == Found(2, 2, [0, 2])
    assert found["words"] == 4


def test_of_very_many_words_the_rare_are_forgotten(monkeypatch):
    monkeypatch.setattr(tallies, "_REMEMBERED", 4)
    words = Words(Tokenizer(), Tokenizer().encode)
    for first in range(5):
        found = count_words(f"zoo u{first}1 u{first}2", first=first, words=words)
    assert found["unknown"]["total"].count == 15
    assert found["unknown"]["most"]["zoo"].count == 5


def test_lengths_are_exact():
    lengths = Lengths()
    lengths.add([3, 1], [4, 2])
    lengths.add([3], [9])
    assert lengths.result() == {"words": {1: 1, 3: 2}, "pieces": {2: 1, 4: 1, 9: 1}}


def test_ratios_leave_blank_sides_out():
    ratios = Ratios()
    ratios.add(np.array([4, 4, 8, 0, 5]), np.array([4, 8, 2, 3, 0]))
    found = ratios.result()
    assert found["histogram_log2"] == {-2.0: 1, 0.0: 1, 1.0: 1}
    assert found["percentiles"] == {1: 0.25, 5: 0.25, 50: 1.0, 95: 2.0, 99: 2.0}


def test_no_pairs_have_no_ratios():
    assert Ratios().result() == {"percentiles": {}, "histogram_log2": {}}


def odd(*sentences):
    characters = Characters()
    characters.add(0, sentences)
    return {name: (f.count, f.indices) for name, f in characters.result().items()}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a\x00", "U+0000 CONTROL CHARACTER"),
        ("a\rb", "U+000D CARRIAGE RETURN"),
        ("a\x85b", "U+0085 NEXT LINE"),
        ("a\u2028b", "U+2028 LINE SEPARATOR"),
        ("a\u2029b", "U+2029 PARAGRAPH SEPARATOR"),
        ("\ufeffa", "U+FEFF ZERO WIDTH NO-BREAK SPACE"),
        ("a\ufffd", "U+FFFD REPLACEMENT CHARACTER"),
        ("a\u200bb", "U+200B ZERO WIDTH SPACE"),
        ("a\u200db", "U+200D ZERO WIDTH JOINER"),
        ("\u202ea", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("\u2066a", "U+2066 LEFT-TO-RIGHT ISOLATE"),
        ("a\ue000", "U+E000 PRIVATE USE"),
        ("e\u0301", "not NFC"),
    ],
)
def test_what_is_no_text_is_named(text, name):
    assert odd("fine", text) == {name: (1, [1])}


@pytest.mark.parametrize(
    "text",
    ["a\tb", "naïve „Straße“ 12\xa0€", "می\u200cروم", "👩\u200d🔬", "क्\u200dष", ""],
)
def test_what_is_text_is_not_odd(text):
    assert odd(text) == {}


def test_characters_are_counted_and_sentences_named():
    assert odd("\x85\x85", "x", "\x85 \x01") == {
        "U+0085 NEXT LINE": (3, [0, 2]),
        "U+0001 CONTROL CHARACTER": (1, [2]),
    }


def test_examples_are_few_and_counts_are_whole():
    found = odd(*["\x85"] * 100)
    assert found["U+0085 NEXT LINE"] == (100, list(range(tallies.KEPT)))
