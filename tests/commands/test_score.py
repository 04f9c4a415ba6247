"""--mode=score: log-probabilities of given pairs, and --checkpoint chooses whose."""

import math

import pytest

from jaxformer.training.log import read_scores


@pytest.fixture
def score(command, trained, tmp_path):
    """Score pairs by the trained run with more flags; returns the Answer."""

    def run(pairs, *flags):
        sides = zip(*pairs, strict=True)
        for name, sentences in zip(("source", "reference"), sides, strict=True):
            (tmp_path / name).write_text("".join(f"{s}\n" for s in sentences))
        return command(
            "--mode=score", f"--workdir={trained.workdir}",
            f"--source={tmp_path / 'source'}", f"--reference={tmp_path / 'reference'}",
            *flags,
        )  # fmt: skip

    return run


@pytest.fixture
def pairs(toy):
    """Three pairs that need the same compiled shape, one or all of them."""
    return [(line, toy.translate(line)) for line in sorted(toy.test, key=len)[-3:]]


def test_result_is_one_line_of_json_with_the_promised_keys(score, pairs):
    result = score(pairs).result
    assert list(result) == ["sentences", "tokens", "log_probability"]
    assert result["sentences"] == 3
    assert result["tokens"] >= sum(len(target.split()) + 1 for _, target in pairs)
    assert result["log_probability"] < 0


def test_pairs_add_up(score, pairs):
    apart = [score([pair]).result for pair in pairs]
    together = score(pairs).result
    for key in ("tokens", "log_probability"):
        total = math.fsum(result[key] for result in apart)
        assert together[key] == pytest.approx(total, rel=1e-5)


def test_the_right_translation_is_the_more_probable_one(score, pairs):
    (source, right), (_, other), _ = pairs
    good = score([(source, right)]).result["log_probability"]
    assert good > score([(source, other)]).result["log_probability"]
    assert good > score([(source, "")]).result["log_probability"]


def test_score_and_evaluate_agree(command, trained, toy):
    run = (f"--workdir={trained.workdir}", "--split=test")
    result = command("--mode=score", *run).result
    nll = command("--mode=evaluate", *run).result["nll"]
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
    assert by("latest") == by("average:1") == by_step[100]
    assert by("best") == by_step[best]
    assert by("average:2") == score(pairs).result["log_probability"]
    assert by("average:2") not in by_step.values()


def test_without_scores_none_is_the_best(command, own_run):
    (own_run / "metrics.jsonl").unlink()
    best = ("--mode=score", f"--workdir={own_run}", "--checkpoint=best")
    assert "has a score yet; use the checkpoint latest" in command(*best).complaint


@pytest.mark.parametrize(
    "which",
    ["7", "last", "average", "average:", "average:0", "average:x", "-1", "²", "1e2"],
)
def test_a_checkpoint_that_is_none_is_refused(score, pairs, which):
    answer = score(pairs, f"--checkpoint={which}")
    assert which in answer.complaint
    assert answer.err.count("\n") == 1


def test_more_checkpoints_than_there_are_is_said(score, pairs):
    answer = score(pairs, "--checkpoint=average:9")
    assert answer.result["sentences"] == 3
    assert "of the 9 asked for" in answer.err
