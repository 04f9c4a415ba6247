"""The sample that is most like the others, by hand and by sacreBLEU's own scores."""

import pytest
from sacrebleu import sentence_bleu, sentence_chrf

from jaxformer.decoding.parts import Hypothesis
from jaxformer.evaluation.minimum_bayes_risk import by_utility, expected_utilities

TEXTS = ["a man runs", "a man is running", "a man runs", "the dog", "a man ran"]


@pytest.mark.parametrize(
    ("utility", "score"),
    [
        ("chrf", lambda text, other: sentence_chrf(text, [other]).score),
        (
            "bleu",
            lambda text, other: (
                sentence_bleu(text, [other], use_effective_order=True).score
            ),
        ),
    ],
)
def test_utilities_are_means_over_all_samples(utility, score):
    found = expected_utilities(TEXTS, utility, "en")
    assert found.keys() == set(TEXTS)
    for text in TEXTS:
        mean = sum(score(text, other) for other in TEXTS) / len(TEXTS)
        assert found[text] == pytest.approx(mean)


def test_samples_are_sorted_by_utility_and_equal_ones_are_joined():
    samples = [
        Hypothesis(text, -float(number), -float(number), 3)
        for number, text in enumerate(TEXTS[::-1])
    ]
    of = {"utility": "chrf", "target_language": "en"}
    order, nothing = by_utility(["source", "other"], [samples, []], **of)
    assert [each.text for each in order] == [
        "a man runs", "a man ran", "a man is running", "the dog",
    ]  # fmt: skip
    assert order[0].log_probability == -2.0  # that of the first sample with this text
    assert nothing == []
