"""Tests of cleaning: every dropped pair has one reason, and every reason its count."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.text.cleaning import Chunk, SideReport, clean_chunk
from jaxformer.text.duplicates import PairHashes
from jaxformer.text.vocabulary import train_tokenizer


@pytest.fixture(scope="module")
def cleaned():
    """Clean text of the letters a, b, c: each is one piece, and so is "▁"."""
    letters = {"vocab_size": 8, "character_coverage": 1.0, "vocab_sentences": 9}
    letters |= {"model_type": "bpe", "byte_fallback": False}
    config = SimpleNamespace(**letters, seed=0, tags=[], user_defined_symbols=())
    tokenizer = train_tokenizer(["a", "b", "c"], config)

    def cleaned(pairs, repeated=None, **changes):
        rules = {"max_length": 100, "max_ratio": 2.0, "is_drawn": False, "drop": None}
        rules = SimpleNamespace(**rules | changes, tag="", target_tag="")
        found = clean_chunk(tokenizer.content, 1, rules, Chunk(pairs, repeated))
        kept = [
            (tokenizer.decode(source), tokenizer.decode(target))
            for source, target in zip(*found.ids, strict=True)
        ]
        return kept, found.report

    return cleaned


def test_each_dropped_pair_is_counted_once(cleaned):
    pairs = [
        ("abc", "cba"), ("", "abc"), ("abc", " \u2028 "), ("a" * 19, "b"),
        ("a" * 18, "b" * 18), ("abc", "cba"), ("", "abc"), ("aΩb", "ccc"),
    ]  # fmt: skip
    # n letters are "▁", the letters and EOS: n + 2 tokens.
    repeated = np.array([False] * 5 + [True] * 2 + [False])
    kept, report = cleaned(pairs, repeated, max_length=20)
    assert kept == [pairs[0], pairs[4], ("a ⁇ b", "ccc")]
    assert report.dropped == {"empty": 3, "too_long": 1, "ratio": 0, "duplicate": 1}
    assert str(report) == (
        "3 of 8 pairs kept, dropped: 3 empty, 1 too_long, 1 duplicate; "
        "source 10.0 tokens a sentence, longest 20, 1 unknown; "
        "target 10.0 tokens a sentence, longest 20, 0 unknown"
    )
    assert SideReport(3, 1, 5) + SideReport(4, 0, 9) == SideReport(7, 1, 9)


def test_the_ratio_has_slack_for_short_sentences(cleaned):
    """At ratio 2 a side of 3 pieces goes with up to 2 * 3 + 5 = 11, either way."""
    even, uneven = ("ab", "c" * 10), ("ab", "c" * 11)
    kept, report = cleaned([even, uneven, even[::-1], uneven[::-1]])
    assert kept == [even, even[::-1]]
    assert report.dropped["ratio"] == 2


def test_repeated_pairs_are_found_in_chunks_of_any_size(tmp_path):
    """And neither sides alone, nor sides that are joined alike, are pairs."""
    draws = np.random.default_rng(0).integers(1, 10, (300, 2))
    pairs = [("a" * a, "b" * b) for a, b in draws]
    pairs += [("a b", "c"), ("a", "b c"), ("a b", "c"), ("", "x"), ("x", "")]
    seen = set()
    expected = [pair in seen or seen.add(pair) is not None for pair in pairs]
    pairs.append((" a  b", "c\t"))  # the same after normalisation
    expected.append(True)
    for size in (1, 7, len(pairs)):
        with closing(PairHashes(tmp_path / "hashes")) as hashes:
            for start in range(0, len(pairs), size):
                hashes.add(pairs[start : start + size])
            assert hashes.repeated().tolist() == expected
            assert hashes.pairs == len(pairs)
        assert [*tmp_path.iterdir()] == []
