"""jaxformer score and align: given pairs; --checkpoint chooses whose scores."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.commands import score as score_command
from jaxformer.commands.align import word_links
from jaxformer.decoding import forced
from jaxformer.decoding.forced import pharaoh
from jaxformer.runs.run import load_parameters, open_run
from jaxformer.system.errors import InputError
from tests.commands.runs import pair_flags


@pytest.fixture
def pairs(toy):
    """Three pairs that need the same compiled shape, together or alone."""
    return [(line, toy.translate(line)) for line in sorted(toy.test, key=len)[-3:]]


@pytest.fixture
def score(use, tmp_path):
    """Score pairs by the trained run with more flags; returns the Answer."""
    return lambda pairs, *flags: use("score", *pair_flags(tmp_path, pairs), *flags)


def test_scores_are_those_of_translate_and_of_evaluate(use, score, toy):
    line = toy.test[0]
    (record,) = map(json.loads, use("translate", "--json", stdin=[line]).lines)
    best = record["hypotheses"][0]
    detail, _ = map(json.loads, score([(line, best["text"])], "--json").lines)
    assert len(detail["pieces"]) == len(detail["log_probabilities"]) == best["tokens"]
    for total in (math.fsum(detail["log_probabilities"]), best["log_probability"]):
        assert detail["log_probability"] == pytest.approx(total, rel=1e-4)

    lines = use("score", "--split=test", "--json").lines
    *details, result = map(json.loads, lines)
    assert [each["line"] for each in details] == [*range(1, len(toy.test) + 1)]
    assert list(result)[:-1] == ["sentences", "tokens", "log_probability"]
    assert result["sentences"] == len(toy.test)
    assert result["tokens"] == sum(len(each["pieces"]) for each in details)
    total = math.fsum(each["log_probability"] for each in details)
    assert result["log_probability"] == pytest.approx(total, rel=1e-4)
    nll = use("evaluate").result["nll"]
    assert -result["log_probability"] / result["tokens"] == pytest.approx(nll)


def test_devices_share_the_rows_of_a_batch(score, pairs, monkeypatch):
    """Eight pairs are a row for each of eight devices."""
    placed, put = [], jax.device_put
    monkeypatch.setattr(
        forced.jax, "device_put", lambda batch, to: placed.append(to) or put(batch, to)
    )
    score(pairs[:1] * 8, "--json")
    assert {sharding.num_devices for sharding in placed} == {8}


@pytest.mark.parametrize(
    "flags",
    [
        ("--json",),
        ("--n_best=2", "--temperature=3", "--split_sentences", "--prefix=FILE"),
    ],
    ids=["beam", "samples"],
)
def test_what_translate_found_is_scored_as_it_was_found(use, toy, tmp_path, flags):
    """Also other segmentations than the tokeniser's, blank lines and long lines."""
    lines = [*toy.test[:6], "\x00\u2581", ". ".join(toy.test[:8])]
    prefix = tmp_path / "prefix"
    prefix.write_text("SU RI\n" * len(lines))
    flags = [flag.replace("FILE", str(prefix)) for flag in flags]
    answer = use("translate", *flags, stdin=lines)
    file = tmp_path / "found.jsonl"
    file.write_bytes(answer.out)
    found = [
        (line, rank, each)
        for line, record in enumerate(map(json.loads, answer.lines), start=1)
        for rank, each in enumerate(record["hypotheses"], start=1)
    ]
    *details, total = map(
        json.loads, use("score", f"--reference={file}", "--json").lines
    )
    for (line, rank, each), detail in zip(found, details, strict=True):
        assert (detail["line"], detail["rank"]) == (line, rank)
        assert detail["pieces"] == each["pieces"]
        assert len(each["pieces"]) == each["tokens"]
        log_p = pytest.approx(each["log_probability"], rel=1e-4, abs=1e-4)
        assert detail["log_probability"] == log_p
    assert total["sentences"] == len(found)
    total_log_p = math.fsum(each["log_probability"] for *_, each in found)
    assert total["log_probability"] == pytest.approx(total_log_p, rel=1e-4)


def test_checkpoints_are_chosen_by_name(score, pairs, trained):
    def by(which):
        return score(pairs, f"--checkpoint={which}").result["log_probability"]

    scores = open_run(trained.workdir).scores()
    assert scores.keys() == {50, 100}  # of equals the later one is the best
    best = max(scores, key=lambda step: (scores[step], step))
    by_step = {step: by(step) for step in (50, 75, 100)}
    assert len(set(by_step.values())) == len(by_step)
    assert by("latest") == by_step[100]
    assert by("best") == by_step[best]
    assert by("average:2") not in by_step.values()
    answer = score(pairs)  # training.average=2
    assert answer.result["log_probability"] == by("average:2")
    assert "averaged 2 checkpoints: steps 75, 100" in answer.err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_damaged_parameters_are_refused(score, pairs, monkeypatch, flags):
    def damaged(*names):
        return jax.tree.map(lambda x: x * jnp.nan, load_parameters(*names))

    monkeypatch.setattr(score_command, "load_parameters", damaged)
    answer = score(pairs, *flags)
    assert "scores are not numbers" in answer.complaint
    assert answer.out == b""


def test_align_writes_links_and_all_attention(use, pairs, tmp_path):
    output = tmp_path / "attention.npz"
    pairs = [*pairs, ("bo \u200b da", "SU \u2060 \u200b RI")]  # invisible words
    flags = pair_flags(tmp_path, pairs)
    answer = use("align", *flags, f"--output={output}", "--units=pieces")
    for words, (source, target) in zip(use("align", *flags).lines, pairs, strict=True):
        ends = [tuple(map(int, link.split("-"))) for link in words.split()]
        assert {t for _, t in ends} == {*range(len(target.split()))}
        assert {s for s, _ in ends} <= {*range(len(source.split()))}
    with np.load(output) as arrays:
        for line, links in enumerate(answer.lines):
            source, target = arrays[f"{line}/source"], arrays[f"{line}/target"]
            assert len(links.split()) == len(target) - 1
            cross = arrays[f"{line}/cross"]
            assert cross.shape[2:] == (len(target), len(source))
            np.testing.assert_allclose(cross.sum(axis=-1), 1, rtol=1e-5)
    assert line == len(pairs) - 1


PIECES = {
    "unbelievable": 3, "!": 1, "cats": 2, "\u4eca\u5929": 2, ">>deu<<": 1,
    "cats\u00a0!": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "target", "links", "words"),
    [
        ("cats !", "unbelievable !", [(0, 0), (1, 1), (0, 2), (2, 3)], "0-0 1-1"),
        ("unbelievable cats", "cats", [(1, 0), (4, 1)], "0-0 1-0"),
        # No piece of the target begins a word after the first.
        ("cats !", "\u4eca\u5929", [(2, 0), (1, 1)], "1-0 0-0"),
        (">>deu<< cats", "!", [(1, 0)], "1-0"),
        ("cats\u00a0! cats", "!", [(3, 0), (2, 0)], "1-0 0-0"),
        ("cats", "", [], ""),
    ],
)
def test_words_are_linked_as_their_pieces_are(source, target, links, words):
    def encode(texts):
        return [[4] * PIECES[text] + [3] for text in texts]

    pair = source, target
    pieces = [
        ["p"] * (sum(map(PIECES.get, filter(None, text.split(" ")))) + 1)
        for text in pair
    ]
    assert pharaoh(word_links(links, pair, pieces, (encode, encode))) == words
    with pytest.raises(InputError, match="pieces of several words"):
        word_links(links, pair, [pieces[0][1:], pieces[1]], (encode, encode))
