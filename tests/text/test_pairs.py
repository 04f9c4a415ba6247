"""Each pair that is unfit to be training text is dropped for its first reason."""

import dataclasses

import pytest

from jaxformer.text.languages import Languages
from jaxformer.text.pairs import REASONS, PairFilter
from jaxformer.text.vocabulary import train_tokenizer

TAG = ">>bt<<"
LINE = "The old doctor must help these children."
FOUND = "Der alte Arzt muss diesen Kindern helfen."
FRENCH = "Le vieux marin raconte toujours les histoires quand il fait froid."


@pytest.fixture(scope="module")
def make(config, pairs):
    texts = [text for pair in pairs for text in pair]
    tokenizer = train_tokenizer(texts, dataclasses.replace(config, tag=TAG))
    settings = {"languages": Languages(("en", "de")), "least_log_probability": -2.0}

    def make(tag="", **changes):
        tagged = dataclasses.replace(config, tag=tag)
        return PairFilter(tokenizer, tagged, **{**settings, **changes})

    return make


def test_lines_that_need_no_translation(make):
    lines = ["", LINE, " \u2028", LINE * 9, FRENCH, FOUND, "42", "\u200b"]
    reasons = ["empty", "", "empty", "too_long", "language", "language", "unknown"]
    reasons += ["empty"]
    assert make().of_lines(lines) == reasons
    without = [reason.replace("language", "") for reason in reasons]
    assert make(languages=None).of_lines(lines) == without
    assert make().of_lines([]) == []


PAIRS = {
    "empty": (LINE, " ", -1.0),
    "too_long": (LINE, FOUND * 9, -1.0),
    "ratio": ("Tom.", f"{FOUND} {FOUND}", -9.0),
    "language": (LINE, FRENCH, -9.0),
    "unknown": ("☃☃ ☃", "Tom", -9.0),
    "copy": ("Tom  Miller", "Tom Miller", -9.0),
    "score": (LINE, FOUND, -2.1),
    "": (LINE, FOUND, -2.0),
}


def test_each_pair_is_dropped_for_the_first_reason(make):
    assert tuple(PAIRS) == (*REASONS, "")
    columns = zip(*PAIRS.values(), strict=True)
    assert make().of_pairs(*columns) == [*PAIRS]
    lenient = make(languages=None, least_log_probability=None)
    columns = zip(*PAIRS.values(), strict=True)
    kept = [each for each in lenient.of_pairs(*columns) if each]
    assert kept == ["empty", "too_long", "ratio", "unknown", "copy"]
    assert lenient.of_pairs([], [], []) == []
    assert lenient.of_pairs([f"{TAG} Tom"], ["Tom"], [-1.0]) == ["copy"]


def test_a_tag_counts_as_a_token_for_the_greatest_length_only(make, monkeypatch):
    """As in the cleaning of training text."""
    line, rules = "The doctor helps.", make(tag=TAG)
    length = len(make()._encode([line])[0])
    assert rules.of_lines([line, " "]) == ["", "empty"]
    for most, reason in ((length + 1, ""), (length, "too_long")):
        changed = dataclasses.replace(rules._config, max_length=most)
        monkeypatch.setattr(rules, "_config", changed)
        assert rules.of_lines([line]) == [reason]
