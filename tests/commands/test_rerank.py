"""Reranking by other runs, on the command line and from Python."""

import json
import shutil

import numpy as np
import pytest

import jaxformer
from tests.commands.runs import config_flags, pair_flags, text_of

SHORT = config_flags("training", steps=4, save_every=4, eval_every=1000, average=1)
SEARCH = ("--beam_size=4", "--length_penalty=power", "--alpha=1")


@pytest.fixture(scope="module")
def others(command, toy, trained, tmp_path_factory):
    """A run of the opposite direction with another tokeniser, and the same one."""
    folder = tmp_path_factory.mktemp("others")
    languages = config_flags("data", source_language="de", target_language="en")
    other = "--config.data.vocab_size=48"
    command("train", *toy.flags, *SHORT, *languages, other, workdir=folder / "reverse")
    shutil.copytree(trained.workdir, folder / "forward")
    return folder / "forward", folder / "reverse"


def records(answer) -> list[list[dict]]:
    return [json.loads(line)["hypotheses"] for line in answer.lines]


def mean_scores(command, folder, pairs, tmp_path) -> list[float]:
    """The log-probability per token that score gives to each pair."""
    flags = pair_flags(tmp_path, pairs)
    *lines, _ = command("score", "--json", *flags, workdir=folder).lines
    found = list(map(json.loads, lines))
    return [each["log_probability"] / len(each["pieces"]) for each in found]


@pytest.mark.slow
def test_the_order_is_that_of_the_scores_of_each_model(
    use, command, toy, trained, others, tmp_path
):
    """Also where fewer than beam_size are written, in evaluate and in Python.

    A weight below 0 prefers what the model finds unlikely.
    """
    forward, reverse = others
    flags = (*SEARCH, f"--choose={forward}:-2,{reverse}")
    lines = [*toy.test, ""]
    plain = records(use("translate", *SEARCH, "--n_best=4", stdin=lines))
    found = records(use("translate", *flags, "--n_best=2", stdin=lines))
    assert plain[-1] == found[-1]  # blank
    pairs = [
        (source, each["text"])
        for source, hypotheses in zip(toy.test, plain, strict=False)
        for each in hypotheses
    ]
    own = iter([each["score"] for hypotheses in plain for each in hypotheses])
    left = iter(mean_scores(command, forward, pairs, tmp_path))
    right = iter(
        mean_scores(command, reverse, [pair[::-1] for pair in pairs], tmp_path)
    )
    for hypotheses, kept in zip(plain[:-1], found, strict=False):
        scores = {
            each["text"]: next(own) - 2 * next(left) + next(right)
            for each in hypotheses
        }
        best = sorted(scores, key=lambda text, of=scores: -of[text])[:2]
        assert [each["text"] for each in kept] == best
        for each in kept:
            assert each["score"] == pytest.approx(scores[each["text"]], rel=1e-3)
    chosen = [hypotheses[0]["text"] for hypotheses in found]
    assert chosen != [hypotheses[0]["text"] for hypotheses in plain]
    output = tmp_path / "translations"
    use("evaluate", *flags, f"--output={output}")
    assert output.read_text() == text_of(chosen[:-1])
    translator = jaxformer.Translator(
        trained.workdir, choose=f"{forward}:-2,{reverse}", beam_size=4,
        length_penalty="power", alpha=1.0,
    )  # fmt: skip
    assert translator(lines) == chosen


@pytest.mark.slow
def test_a_corpus_is_continued_with_the_same_models_only(
    use, toy, others, tmp_path, monkeypatch
):
    (tmp_path / "text").write_text(text_of(toy.test))
    flags = f"--source={tmp_path / 'text'}", f"--output={tmp_path / 'made'}"
    flags += ("--no-languages", "--beam_size=2", f"--choose={others[1]}")
    assert use("translate_corpus", *flags).result["lines"] == len(toy.test)
    assert use("translate_corpus", *flags).result["lines"] == len(toy.test)
    trained_further = "jaxformer.commands.translate_corpus.read_parameters"
    monkeypatch.setattr(trained_further, lambda *_: {"scale": np.ones(1)})
    assert "was begun with choose='" in use("translate_corpus", *flags).complaint
