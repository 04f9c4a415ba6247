"""Intervals and tests: what they must say of equal, like and unlike translations."""

import random
from functools import partial

import pytest

from jaxformer.errors import InputError
from jaxformer.evaluation import significance
from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.evaluation.significance import (
    compare_systems,
    estimate_confidence,
    length_ratio,
    sentence_scores,
)

german = {"target_language": "de"}
WORDS = [f"{a}{b}" for a in ("ba", "do", "ki", "lu") for b in ("ren", "sal", "tim")]


@pytest.fixture(autouse=True)
def few_trials(monkeypatch):
    monkeypatch.setattr(significance, "RESAMPLES", 100)
    monkeypatch.setattr(significance, "TRIALS", 200)


def invent(count: int) -> list[str]:
    draw = random.Random(count)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(count)]


def spoil(sentences: list[str], share: float, seed: int) -> list[str]:
    """Replace a share of the words."""
    draw = random.Random(seed)
    return [
        " ".join(
            draw.choice(WORDS) if draw.random() < share else word
            for word in sentence.split()
        )
        for sentence in sentences
    ]


TEXT = invent(100)


def test_scores_are_those_of_an_evaluation_and_say_how_they_were_drawn():
    ours = spoil(TEXT, 0.3, seed=1)
    found = estimate_confidence(ours, TEXT, **german)
    plain = corpus_scores(ours, TEXT, source_language="en", target_language="de")
    assert found["bleu"].score == pytest.approx(plain.bleu)
    assert found["chrf"].score == pytest.approx(plain.chrf)
    for name, signature in (
        ("bleu", plain.signature),
        ("chrf", plain.chrf_signature),
    ):
        parts = found[name].signature.split("|")
        assert {"bs:100", "seed:12345"} <= set(parts)
        assert set(signature.split("|")) <= set(parts)


def test_the_interval_holds_the_score_and_shrinks_with_the_text():
    """A text four times as long has half the interval."""
    widths = []
    for count in (100, 400):
        text = invent(count)
        found = estimate_confidence(spoil(text, 0.3, seed=1), text, **german)["chrf"]
        assert abs(found.score - found.mean) < found.half_width
        widths.append(found.half_width)
    assert 1.4 < widths[0] / widths[1] < 2.8


def test_the_same_numbers_come_again():
    ours = [spoil(TEXT, 0.3, seed) for seed in (1, 2)]
    again = partial(compare_systems, ours, TEXT, **german)
    assert again() == again()
    assert estimate_confidence(ours[0], TEXT, **german) == estimate_confidence(
        ours[0], TEXT, **german
    )


def test_equal_translations_do_not_differ():
    ours = spoil(TEXT, 0.3, seed=1)
    spaced = [sentence.replace(" ", "  ") for sentence in ours]  # scored alike
    for found in compare_systems([ours, list(ours), spaced], TEXT, **german):
        for comparison in found.values():
            assert comparison.difference == 0
            assert comparison.bootstrap_p == comparison.randomisation_p == 1


@pytest.mark.parametrize("metric", significance.METRICS)
def test_what_is_clearly_better_is_found_to_be_better(metric):
    worse, better = spoil(TEXT, 0.6, seed=1), spoil(TEXT, 0.2, seed=2)
    (up,), (down,) = (
        compare_systems(pair, TEXT, **german)
        for pair in ((worse, better), (better, worse))
    )
    assert up[metric].difference > 10
    assert down[metric].difference == pytest.approx(-up[metric].difference)
    for comparison in (up[metric], down[metric]):
        assert comparison.bootstrap_p < 0.01
        assert comparison.randomisation_p < 0.01
        assert "bs:100" in comparison.bootstrap_signature
        assert "ar:200" in comparison.randomisation_signature


def test_each_system_is_compared_with_the_first_one_only():
    systems = [spoil(TEXT, share, seed=3) for share in (0.3, 0.6, 0.1)]
    together = compare_systems(systems, TEXT, **german)
    apart = [
        compare_systems([systems[0], other], TEXT, **german)[0] for other in systems[1:]
    ]
    assert together == apart


def test_many_systems_as_good_as_each_other_seldom_pass_for_unlike():
    """Under the null hypothesis p is below 0.05 about once in twenty times."""
    first = spoil(TEXT, 0.3, seed=0)
    others = [spoil(TEXT, 0.3, seed) for seed in range(1, 13)]
    found = compare_systems([first, *others], TEXT, **german)
    small = [each["chrf"].randomisation_p < 0.05 for each in found]
    assert sum(small) <= 3


def test_a_long_text_has_fewer_resamples_and_its_signature_says_so(monkeypatch):
    monkeypatch.setattr(significance, "LONGEST_WITH_ALL", 50)
    found = estimate_confidence(TEXT, TEXT, **german)
    assert "bs:50" in found["bleu"].signature.split("|")


def test_a_sentence_is_scored_by_its_characters():
    scores = sentence_scores(["ein hund", "", "xyz", "ein hand"], ["ein hund"] * 4)
    assert scores[:3] == [pytest.approx(100), 0, 0]
    assert 0 < scores[3] < 100


def test_the_ratio_of_lengths_is_tokens_by_tokens():
    assert length_ratio(["a b c", "d"], ["a b", "c d e f g h"], **german) == 0.5


@pytest.mark.parametrize("ours", [[], ["a"], ["a"] * 3])
@pytest.mark.parametrize(
    "use",
    [
        partial(estimate_confidence, **german),
        sentence_scores,
        partial(length_ratio, **german),
        lambda ours, theirs: compare_systems([theirs, ours], theirs, **german),
    ],
)
def test_what_does_not_match_is_refused(use, ours):
    with pytest.raises(InputError, match=f"{len(ours)} translations"):
        use(ours, ["a", "b"])
