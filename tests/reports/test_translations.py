"""Scores by length, the worst and best sentences, and comparisons."""

import itertools
import random

import pytest

from jaxformer.evaluation import significance
from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.reports import translations
from jaxformer.reports.translations import ReportedText, make_buckets, score_by_length

from .synthetic_attention import attention
from .synthetic_runs import evaluate, make_text, no_tag

TEXT = make_text()
MIN_BUCKET = translations.MIN_BUCKET


@pytest.mark.parametrize("longest", [1, 6, 60, 500])
@pytest.mark.parametrize("count", [1, MIN_BUCKET - 1, MIN_BUCKET, 3000])
def test_buckets_hold_every_length_once_and_are_not_small(longest, count):
    draw = random.Random(count)
    lengths = [round(draw.triangular(0, longest, longest / 3)) for _ in range(count)]
    buckets = make_buckets(lengths)
    assert (buckets[0][0], buckets[-1][1]) == (min(lengths), max(lengths))
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(buckets))
    sizes = [sum(first <= n <= last for n in lengths) for first, last in buckets]
    assert len(buckets) == 1 or min(sizes) >= MIN_BUCKET


def test_buckets_end_at_round_lengths():
    ends = [(1, 5), (6, 10), (11, 15), (16, 20), (21, 25)]
    for lengths, buckets in (range(1, 26), ends), ([3, 200], [(3, 5), (6, 200)]):
        assert make_buckets([n for n in lengths for _ in range(MIN_BUCKET)]) == buckets


@pytest.mark.parametrize(("language", "length"), [("de", 2), ("zh", 3), ("zh_TW", 3)])
def test_text_without_spaces_is_counted_in_characters(language, length):
    text = ReportedText("", language, "de", [">>de<< ab c"], ["x"])
    (only,) = score_by_length(["x"], text, lambda source: ">>de<<")
    assert (only["from"], only["to"], only["sentences"]) == (length, length, 1)


def test_each_bucket_is_scored_as_a_text_of_its_own():
    sources = ["a b"] * MIN_BUCKET + ["a b c d e f"] * MIN_BUCKET
    references = ["ein hund läuft schnell"] * (2 * MIN_BUCKET)
    ours = references[:MIN_BUCKET] + ["ein hund"] * MIN_BUCKET
    text = ReportedText("", "en", "de", sources, references)
    short, long = score_by_length(ours, text, no_tag)
    assert list(short.values()) == [2, 5, MIN_BUCKET, *[pytest.approx(100)] * 2]
    languages = {"source_language": "en", "target_language": "de"}
    expected = corpus_scores(ours[-MIN_BUCKET:], references[-MIN_BUCKET:], **languages)
    assert (long["bleu"], long["chrf"]) == (expected.bleu, expected.chrf)


@pytest.mark.parametrize(
    ("text", "align", "examples", "count"),
    [
        (TEXT, attention, 3, 3),
        (ReportedText("", "en", "de", ["a"] * 3, ["b"] * 3), None, 5, 1),
        (TEXT, lambda *_: None, 3, 3),
    ],
    ids=["many", "few, of a model without attention", "in several parts"],
)
def test_the_worst_are_worse_than_the_best_and_are_the_lines_they_say(
    text, align, examples, count
):
    evaluation = evaluate(text, 0.3)
    found = translations.describe_translations(
        evaluation, text, align, examples, no_tag
    )
    lines = zip(text.sources, text.references, evaluation.translations, strict=True)
    chrf = significance.sentence_scores(evaluation.translations, text.references)
    rows = [(*line, score) for line, score in zip(lines, chrf, strict=True)]
    assert [each["chrf"] for each in found["worst"]] == sorted(chrf)[:count]
    assert [each["chrf"] for each in found["best"]] == sorted(chrf)[::-1][:count]
    shown = found["worst"] + found["best"]
    assert len({each["line"] for each in shown}) == 2 * count
    for each in shown:
        told = [each[key] for key in ("source", "reference", "translation", "chrf")]
        assert tuple(told) == rows[each["line"] - 1]
        alignment = each["alignment"]
        assert "</s>" not in alignment["source"] + alignment["target"]
        assert all(map(bool, alignment.values())) == (align is attention)


def test_sentences_that_differ_most_come_first_and_equal_ones_are_left_out():
    systems = {"first": TEXT.references, "other": evaluate(TEXT, 0.2).translations}
    same = sum(a == b for a, b in zip(*systems.values(), strict=True))
    (found,) = translations.compare(systems, TEXT, examples=len(TEXT.sources))[
        "sentences"
    ]
    gaps = [abs(each["chrf"][1] - each["chrf"][0]) for each in found["sentences"]]
    assert gaps == sorted(gaps, reverse=True)
    assert len(gaps) == len(TEXT.sources) - same
    for each in found["sentences"]:
        assert each["source"] == TEXT.sources[each["line"] - 1]
