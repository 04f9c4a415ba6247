"""--mode=score and --mode=align: given pairs; --checkpoint chooses whose scores."""

import json
import math

import numpy as np
import pytest

from jaxformer.training.log import read_scores


@pytest.fixture
def pairs(toy):
    """Three pairs that need the same compiled shape, together or alone."""
    return [(line, toy.translate(line)) for line in sorted(toy.test, key=len)[-3:]]


@pytest.fixture
def score(use, pair_flags):
    """Score pairs by the trained run with more flags; returns the Answer."""
    return lambda pairs, *flags: use("score", *pair_flags(pairs), *flags)


def test_pairs_add_up_and_right_translations_are_more_probable(score, pairs):
    together = score(pairs).result
    assert list(together) == ["sentences", "tokens", "log_probability"]
    assert together["sentences"] == 3
    assert together["tokens"] >= sum(len(target.split()) + 1 for _, target in pairs)
    apart = [score([pair]).result for pair in pairs]
    for key in ("tokens", "log_probability"):
        total = math.fsum(result[key] for result in apart)
        assert together[key] == pytest.approx(total, rel=1e-5)
    (source, _), (_, other), _ = pairs
    right = apart[0]["log_probability"]
    assert 0 > right > score([(source, other)]).result["log_probability"]
    assert right > score([(source, "")]).result["log_probability"]


def test_scores_are_those_of_translate_and_of_evaluate(use, score, toy):
    line = toy.test[0]
    (record,) = map(json.loads, use("translate", "--json", lines=[line]).lines)
    best = record["hypotheses"][0]
    detail, result = map(json.loads, score([(line, best["text"])], "--details").lines)
    assert detail["line"] == 1
    assert len(detail["pieces"]) == len(detail["log_probabilities"]) == best["tokens"]
    for total in (math.fsum(detail["log_probabilities"]), best["log_probability"]):
        assert detail["log_probability"] == pytest.approx(total, rel=1e-4)
        assert result["log_probability"] == pytest.approx(total, rel=1e-4)
    result = use("score", "--split=test").result
    nll = use("evaluate", "--split=test").result["nll"]
    assert -result["log_probability"] / result["tokens"] == pytest.approx(nll)
    assert result["sentences"] == len(toy.test)


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
    assert "averaged 2 checkpoints" in answer.err
    assert "of the 9 asked for" in score(pairs, "--checkpoint=average:9").err


@pytest.mark.parametrize(
    "which", ["7", "last", "average:", "average:0", "average:x", "-1", "²"]
)
def test_an_unknown_checkpoint_is_refused(score, pairs, which):
    assert which in score(pairs, f"--checkpoint={which}").complaint


def test_without_scores_none_is_the_best(command, own_run):
    (own_run / "metrics.jsonl").unlink()
    best = ("--mode=score", f"--workdir={own_run}", "--checkpoint=best")
    assert "has a score yet; use the checkpoint latest" in command(*best).complaint


def test_align_writes_links_and_all_attention(use, pairs, pair_flags, tmp_path):
    output = tmp_path / "attention.npz"
    flags = (*pair_flags(pairs), f"--output={output}")
    answer = use("align", *flags)
    assert len(answer.lines) == len(pairs)
    with np.load(output) as arrays:
        for line, links in enumerate(answer.lines):
            source, target = arrays[f"{line}/source"], arrays[f"{line}/target"]
            assert len(links.split()) == len(target) - 1
            cross = arrays[f"{line}/cross"]
            assert cross.shape[2:] == (len(target), len(source))
            np.testing.assert_allclose(cross.sum(axis=-1), 1, rtol=1e-5)
    assert str(output) in use("align", *flags).complaint
