"""Tests of cleaning: every dropped pair has one reason, and every reason its count."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.data.cleaning import CorpusReport, SeenPairs, clean
from jaxformer.data.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The letters a, b, c and "▁", and no merges: every character is one piece."""
    path = tmp_path_factory.mktemp("letters") / "tokenizer.model"
    options = {"character_coverage": 1.0, "max_sentences": 9, "seed": 0}
    return train_tokenizer(["a", "b", "c"], path, vocab_size=8, **options)


@pytest.fixture
def cleaned(tokenizer):
    def cleaned(pairs, **changes):
        report = CorpusReport()
        options = {"max_length": 100, "max_ratio": 2.0, "deduplicate": True} | changes
        kept = [
            (tokenizer.decode(source), tokenizer.decode(target))
            for chunk in clean(pairs, tokenizer, report, SimpleNamespace(**options))
            for source, target in zip(*chunk, strict=True)
        ]
        return kept, report

    return cleaned


def test_each_dropped_pair_is_counted_once(cleaned):
    pairs = [
        ("abc", "cba"), ("", "abc"), ("abc", " \u2028 "), ("a" * 19, "b"),
        ("a" * 18, "b" * 18), ("abc", "cba"), ("", "abc"), ("aΩb", "ccc"),
    ]  # fmt: skip
    # n letters are "▁", the letters and EOS: n + 2 tokens.
    kept, report = cleaned(pairs, max_length=20)
    assert kept == [pairs[0], pairs[4], ("a ⁇ b", "ccc")]
    assert report.dropped == {"empty": 3, "too_long": 1, "ratio": 0, "duplicate": 1}
    assert (report.pairs, report.kept) == (8, 3)
    assert report.source.tokens == report.target.tokens == 5 + 20 + 5
    assert report.source.longest == 20
    assert (report.source.unknown, report.target.unknown) == (1, 0)
    assert str(report) == (
        "3 of 8 pairs kept, dropped: 3 empty, 1 too_long, 1 duplicate; "
        "source 10.0 tokens a sentence, longest 20, 1 unknown; "
        "target 10.0 tokens a sentence, longest 20, 0 unknown"
    )


def test_the_ratio_has_slack_for_short_sentences(cleaned):
    """At ratio 2 a side of 3 pieces goes with up to 2 * 3 + 5 = 11, either way."""
    even, uneven = ("ab", "c" * 10), ("ab", "c" * 11)
    kept, report = cleaned([even, uneven, even[::-1], uneven[::-1]])
    assert kept == [even, even[::-1]]
    assert report.dropped["ratio"] == 2


def test_duplicates_are_found_across_chunks(cleaned, monkeypatch):
    monkeypatch.setattr("jaxformer.data.cleaning._CHUNK", 2)
    pairs = [("aa", "b"), ("aa", "b"), ("b", "aa"), ("aa", "b"), ("a", "c")]
    kept, report = cleaned(pairs)
    assert kept == [("aa", "b"), ("b", "aa"), ("a", "c")]
    assert report.dropped["duplicate"] == 2
    assert report.source.longest == 4
    assert cleaned(pairs, deduplicate=False)[0] == pairs


def test_seen_pairs_agree_with_a_set():
    random = np.random.default_rng(0)
    seen, known = SeenPairs(), set()
    for size in (0, 1, 50, 200, 3):
        pairs = [(str(a), str(b)) for a, b in random.integers(0, 12, (size, 2))]
        expected = []
        for pair in pairs:
            expected.append(pair not in known)
            known.add(pair)
        assert seen.add(pairs).tolist() == expected
