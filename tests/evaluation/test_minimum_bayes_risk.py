"""The sample that is most like the others, by hand and by sacreBLEU's own scores."""

import pytest
from sacrebleu import sentence_bleu, sentence_chrf

from jaxformer.decoding.parts import Hypothesis
from jaxformer.evaluation.metrics import sentence_metric
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
    metric = sentence_metric(utility, "en")
    nothing, found = expected_utilities(["a", "b"], [[], TEXTS], metric)
    assert nothing == {}
    assert found.keys() == set(TEXTS)
    for text in TEXTS:
        mean = sum(score(text, other) for other in TEXTS) / len(TEXTS)
        assert found[text] == pytest.approx(mean)


def test_an_empty_text_is_like_itself():
    metric = sentence_metric("bleu", "en")
    (found,) = expected_utilities(["a"], [["", "", "", "a man"]], metric)
    assert found[""] == 75 > found["a man"]


def test_samples_are_sorted_by_utility_and_equal_ones_are_joined():
    samples = [
        Hypothesis(text, -float(number), -float(number), 3)
        for number, text in enumerate(TEXTS[::-1])
    ]
    seen = []

    def metric(triples):
        seen.append(list(triples))
        return sentence_metric("chrf", "en")(triples)

    of = {"utility": metric, "language_code": lambda text: text[: len(">>en<<")]}
    order, nothing = by_utility([">>en<< source", ">>en<<"], [samples, []], **of)
    (triples,) = seen  # one call for all sources
    assert {*triples} == {("source", a, b) for a in TEXTS for b in TEXTS}
    assert len(triples) == len({*TEXTS}) ** 2
    assert [each.text for each in order] == [
        "a man runs", "a man ran", "a man is running", "the dog",
    ]  # fmt: skip
    assert order[0].log_probability == -2.0  # that of the first sample with this text
    assert nothing == []
