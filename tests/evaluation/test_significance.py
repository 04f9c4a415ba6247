"""Intervals and tests of equal, similar and different translations."""

import random
from functools import partial

import pytest

from jaxformer.errors import InputError
from jaxformer.evaluation import significance
from jaxformer.evaluation.metrics import corpus_scores
from jaxformer.evaluation.significance import (
    compare_systems,
    estimate_confidence,
    sentence_scores,
)

confidence = partial(estimate_confidence, target_language="de")
compare = partial(compare_systems, target_language="de")
WORDS = [f"{a}{b}" for a in ("ba", "do", "ki", "lu") for b in ("ren", "sal", "tim")]


@pytest.fixture(autouse=True)
def few_trials(monkeypatch):
    monkeypatch.setattr(significance, "RESAMPLES", 100)
    monkeypatch.setattr(significance, "TRIALS", 200)


def make_text(count: int) -> list[str]:
    draw = random.Random(count)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(count)]


def spoil(sentences: list[str], share: float, seed: int = 1) -> list[str]:
    """Replace a share of the words."""
    draw = random.Random(seed)

    def spoiled(word):
        return draw.choice(WORDS) if draw.random() < share else word

    return [" ".join(map(spoiled, sentence.split())) for sentence in sentences]


TEXT = make_text(100)
OURS = spoil(TEXT, 0.3)


@pytest.mark.parametrize(("most", "samples"), [(10_000, 100), (50, 50), (5, 10)])
def test_scores_are_those_of_an_evaluation_with_the_samples_in_the_signature(
    monkeypatch, most, samples
):
    """A text of more than `most` sentences has fewer samples, at least a tenth."""
    monkeypatch.setattr(significance, "MAX_SENTENCES", most)
    found = confidence(OURS, TEXT)
    assert found == confidence(OURS, TEXT)
    plain = corpus_scores(OURS, TEXT, source_language="en", target_language="de")
    signatures = {"bleu": plain.signature, "chrf": plain.chrf_signature}
    for name, signature in signatures.items():
        assert found[name].score == pytest.approx(getattr(plain, name))
        parts = {f"bs:{samples}", "seed:12345", *signature.split("|")}
        assert parts <= set(found[name].signature.split("|"))


def test_the_interval_holds_the_score_and_shrinks_with_the_text():
    """A text four times as long has half the interval."""
    widths = []
    for text in (TEXT, make_text(400)):
        found = confidence(spoil(text, 0.3), text)["chrf"]
        assert abs(found.score - found.mean) < found.half_width
        widths.append(found.half_width)
    assert 1.4 < widths[0] / widths[1] < 2.8


def test_equal_translations_do_not_differ():
    spaced = [sentence.replace(" ", "  ") for sentence in OURS]  # scored alike
    for found in compare([OURS, list(OURS), spaced], TEXT):
        for comparison in found.values():
            assert comparison.difference == 0
            assert comparison.bootstrap_p == comparison.randomisation_p == 1


def test_each_system_is_compared_with_the_first_one_only():
    systems = [spoil(TEXT, share, seed=3) for share in (0.4, 0.7, 0.1)]
    together = compare(systems, TEXT)
    for found, other, sign in zip(together, systems[1:], (-1, 1), strict=True):
        assert [found] == compare([systems[0], other], TEXT)
        for comparison in found.values():
            assert sign * comparison.difference > 10
            assert comparison.bootstrap_p < 0.01
            assert comparison.randomisation_p < 0.01
            assert "bs:100" in comparison.bootstrap_signature
            assert "ar:200" in comparison.randomisation_signature


def test_a_sentence_is_scored_by_its_characters():
    scores = sentence_scores(["ein hund", "", "xyz", "ein hand"], ["ein hund"] * 4)
    assert scores[:3] == [pytest.approx(100), 0, 0]
    assert 0 < scores[3] < 100


def test_the_length_ratio_is_that_of_tokens():
    found = confidence(["a b c", "d"], ["a b", "c d e f g h"])
    assert (found["bleu"].length_ratio, found["chrf"].length_ratio) == (0.5, None)


@pytest.mark.parametrize("ours", [[], ["a"], ["a"] * 3])
@pytest.mark.parametrize(
    "use",
    [confidence, sentence_scores, lambda ours, theirs: compare([theirs, ours], theirs)],
)
def test_other_counts_of_translations_are_refused(use, ours):
    with pytest.raises(InputError, match=f"{len(ours)} translations"):
        use(ours, ["a", "b"])
