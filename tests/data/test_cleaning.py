"""Every dropped pair has one reason, and every reason its count."""

import numpy as np
import pytest

from jaxformer.data.cleaning import CorpusReport, SeenPairs, clean
from jaxformer.data.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The letters a, b, c and "▁", and no merges: every character is one piece."""
    path = tmp_path_factory.mktemp("letters") / "tokenizer.model"
    return train_tokenizer(
        ["a", "b", "c"],
        path,
        vocab_size=8,
        character_coverage=1.0,
        max_sentences=9,
        seed=0,
    )


def cleaned(tokenizer, pairs, *, max_length=100, max_ratio=2.0, deduplicate=True):
    report = CorpusReport()
    chunks = clean(
        iter(pairs),
        tokenizer,
        report,
        max_length=max_length,
        max_ratio=max_ratio,
        deduplicate=deduplicate,
    )
    kept = [
        (tokenizer.decode(source), tokenizer.decode(target))
        for sources, targets in chunks
        for source, target in zip(sources, targets, strict=True)
    ]
    return kept, report


def test_each_reason_is_counted_once(tokenizer):
    pairs = [
        ("abc", "cba"),
        ("", "abc"),
        ("abc", " \u2028 "),
        ("a" * 19, "b"),
        ("a" * 18, "b" * 18),
        ("abc", "cba"),
        ("", "abc"),
        ("abc", "ccc"),
    ]
    # n letters are "▁", the letters and EOS: n + 2 tokens.
    kept, report = cleaned(tokenizer, pairs, max_length=20)
    assert kept == [pairs[0], pairs[4], pairs[7]]
    assert report.dropped == {"empty": 3, "too_long": 1, "ratio": 0, "duplicate": 1}
    assert (report.pairs, report.kept) == (8, 3)
    assert report.source.tokens == report.target.tokens == 5 + 20 + 5
    assert report.source.longest == 20
    assert report.source.unknown == 0


def test_the_ratio_has_slack_for_short_sentences(tokenizer):
    """At ratio 2 a side of 3 pieces goes with up to 2 * 3 + 5 = 11, either way."""
    even, uneven = ("ab", "c" * 10), ("ab", "c" * 11)
    pairs = [even, uneven, even[::-1], uneven[::-1]]
    kept, report = cleaned(tokenizer, pairs)
    assert kept == [even, even[::-1]]
    assert report.dropped["ratio"] == 2


def test_duplicates_are_found_across_chunks(tokenizer, monkeypatch):
    monkeypatch.setattr("jaxformer.data.cleaning._CHUNK", 2)
    pairs = [("a", "b"), ("a", "b"), ("b", "a"), ("a", "b"), ("a", "c")]
    kept, report = cleaned(tokenizer, pairs)
    assert kept == [("a", "b"), ("b", "a"), ("a", "c")]
    assert report.dropped["duplicate"] == 2
    assert cleaned(tokenizer, pairs, deduplicate=False)[0] == pairs


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


def test_unknown_characters_are_counted(tokenizer):
    _, report = cleaned(tokenizer, [("aΩb", "c"), ("a", "Ωb")])
    assert (report.source.unknown, report.target.unknown) == (1, 1)
    assert "1 unknown" in str(report)
