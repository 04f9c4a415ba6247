"""Buckets of lengths: every sentence in one of them, none with too few."""

import itertools
import random

import pytest

from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.reports.lengths import (
    LEAST,
    WIDEST_RATIO,
    count,
    make_buckets,
    outstanding,
    ratio_histogram,
    ratio_of,
    score_by_length,
    unit_of,
)


@pytest.mark.parametrize("seed", range(30))
def test_buckets_partition_every_length_and_are_not_small(seed):
    draw = random.Random(seed)
    longest = draw.choice([1, 6, 20, 60, 300])
    lengths = [
        round(draw.triangular(0, longest, longest / 3))
        for _ in range(draw.choice([1, LEAST - 1, LEAST, 200, 3000]))
    ]
    buckets = make_buckets(lengths)
    assert buckets[0][0] == min(lengths)
    assert buckets[-1][1] == max(lengths)
    for (_, end), (begin, _) in itertools.pairwise(buckets):
        assert begin == end + 1
    sizes = [sum(first <= n <= last for n in lengths) for first, last in buckets]
    assert sum(sizes) == len(lengths)
    assert len(buckets) == 1 or min(sizes) >= LEAST


def test_buckets_of_many_short_sentences_are_five_words_wide():
    lengths = [n for n in range(1, 26) for _ in range(LEAST)]
    assert make_buckets(lengths) == [(1, 5), (6, 10), (11, 15), (16, 20), (21, 25)]


def test_wide_gaps_make_no_empty_bucket():
    assert make_buckets([3] * LEAST + [200] * LEAST) == [(3, 5), (6, 200)]


def test_each_bucket_is_scored_as_a_text_of_its_own():
    sources = ["eins zwei"] * LEAST + ["eins zwei drei vier fünf sechs"] * LEAST
    references = ["ein hund läuft schnell"] * (2 * LEAST)
    translations = ["ein hund läuft schnell"] * LEAST + ["ein hund"] * LEAST
    short, long = score_by_length(
        sources, references, translations, source_language="de", target_language="de"
    )
    assert (short["from"], short["to"], short["sentences"]) == (2, 5, LEAST)
    assert (long["from"], long["to"], long["sentences"]) == (6, 6, LEAST)
    assert (short["bleu"], short["chrf"]) == (pytest.approx(100), pytest.approx(100))
    expected = corpus_scores(
        translations[LEAST:],
        references[LEAST:],
        source_language="de",
        target_language="de",
    )
    assert (long["bleu"], long["chrf"]) == (expected.bleu, expected.chrf)
    assert (short["ratio"], long["ratio"]) == (1, 0.5)
    assert not short["few"]
    assert not long["few"]


def test_a_bucket_of_few_sentences_is_marked():
    (only,) = score_by_length(
        ["a b"], ["c d"], ["c d"], source_language="en", target_language="de"
    )
    assert only["few"]


@pytest.mark.parametrize(
    ("language", "unit"),
    [("de", "words"), ("zh", "characters"), ("zh_TW", "characters")],
)
def test_text_without_spaces_is_counted_in_characters(language, unit):
    assert unit_of(language) == unit
    assert count("ab c", unit) == (2 if unit == "words" else 3)


def test_the_histogram_has_every_sentence_once():
    references = ["a b c d"] * 6
    translations = ["a b c d", "a b c", "a b c", "a b c d e", "", "a " * 40]
    bars = ratio_histogram(translations, references, "de")
    found = {bar["ratio"]: bar["sentences"] for bar in bars if bar["sentences"]}
    assert found == {0.0: 1, 0.8: 2, 1.0: 1, 1.2: 1, WIDEST_RATIO: 1}
    assert sum(bar["sentences"] for bar in bars) == len(references)
    ratios = [bar["ratio"] for bar in bars]
    assert ratios == [place / 10 for place in range(21)]
    assert ratio_of(translations, references, "de") == (4 + 3 + 3 + 5 + 0 + 40) / 24


def test_the_worst_and_the_best_are_apart_and_ties_go_to_the_first():
    assert outstanding([5, 1, 9, 1, 9], 2) == ([1, 3], [2, 4])
    worst, best = outstanding([5, 1, 9], 5)
    assert (worst, best) == ([1], [2])
    assert outstanding([5], 3) == ([0], [0])
