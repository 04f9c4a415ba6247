"""--mode=score and --mode=align: given pairs; --checkpoint chooses whose scores."""

import json
import math

import numpy as np
import pytest

from jaxformer.training.log import read_scores
from tests.commands.runs import pair_flags


@pytest.fixture
def pairs(toy):
    """Three pairs that need the same compiled shape, together or alone."""
    return [(line, toy.translate(line)) for line in sorted(toy.test, key=len)[-3:]]


@pytest.fixture
def score(use, tmp_path):
    """Score pairs by the trained run with more flags; returns the Answer."""
    return lambda pairs, *flags: use("score", *pair_flags(tmp_path, pairs), *flags)


def test_right_translations_are_more_probable(score, pairs):
    right, (_, other), _ = pairs
    pairs = [right, (right[0], other), (right[0], "")]
    probable, wrong, empty = (score([each]).result["log_probability"] for each in pairs)
    assert 0 > probable > max(wrong, empty)


def test_scores_are_those_of_translate_and_of_evaluate(use, score, toy):
    line = toy.test[0]
    (record,) = map(json.loads, use("translate", "--json", stdin=[line]).lines)
    best = record["hypotheses"][0]
    detail, _ = map(json.loads, score([(line, best["text"])], "--details").lines)
    assert len(detail["pieces"]) == len(detail["log_probabilities"]) == best["tokens"]
    for total in (math.fsum(detail["log_probabilities"]), best["log_probability"]):
        assert detail["log_probability"] == pytest.approx(total, rel=1e-4)

    lines = use("score", "--split=test", "--details").lines
    *details, result = map(json.loads, lines)
    assert [each["line"] for each in details] == [*range(1, len(toy.test) + 1)]
    assert list(result)[:-1] == ["sentences", "tokens", "log_probability"]
    assert result["sentences"] == len(toy.test)
    assert result["tokens"] == sum(len(each["pieces"]) for each in details)
    total = math.fsum(each["log_probability"] for each in details)
    assert result["log_probability"] == pytest.approx(total, rel=1e-4)
    nll = use("evaluate").result["nll"]
    assert -result["log_probability"] / result["tokens"] == pytest.approx(nll)


def test_checkpoints_are_chosen_by_name(score, pairs, trained):
    def by(which):
        return score(pairs, f"--checkpoint={which}").result["log_probability"]

    scores = read_scores(trained.workdir)
    assert scores.keys() == {50, 100}  # of equals the later one is the best
    best = max(scores, key=lambda step: (scores[step], step))
    by_step = {step: by(step) for step in (50, 75, 100)}
    assert len(set(by_step.values())) == len(by_step)
    assert by("latest") == by_step[100]
    assert by("best") == by_step[best]
    assert by("average:2") not in by_step.values()
    answer = score(pairs)  # training.average=2
    assert answer.result["log_probability"] == by("average:2")
    assert "averaged 2 of the 2 checkpoints" in answer.err
    assert "averaged 3 of the 9" in score(pairs, "--checkpoint=average:9").err


def test_align_writes_links_and_all_attention(use, pairs, tmp_path):
    output = tmp_path / "attention.npz"
    answer = use("align", *pair_flags(tmp_path, pairs), f"--output={output}")
    with np.load(output) as arrays:
        for line, links in enumerate(answer.lines):
            source, target = arrays[f"{line}/source"], arrays[f"{line}/target"]
            assert len(links.split()) == len(target) - 1
            cross = arrays[f"{line}/cross"]
            assert cross.shape[2:] == (len(target), len(source))
            np.testing.assert_allclose(cross.sum(axis=-1), 1, rtol=1e-5)
    assert line == len(pairs) - 1
