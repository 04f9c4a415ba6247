"""What the flags of decoding do to --mode=translate, score and align."""

import itertools
import json
import math
import shutil

import numpy as np
import pytest

import jaxformer
from jaxformer.errors import InputError


@pytest.fixture
def translate(command, trained):
    """Translate lines by the trained run; returns the Answer."""

    def run(lines, *flags, workdir=trained.workdir):
        text = "".join(f"{line}\n" for line in lines).encode()
        return command("--mode=translate", f"--workdir={workdir}", *flags, stdin=text)

    return run


@pytest.fixture
def pair_flags(tmp_path, toy):
    """Flags that name three pairs, and the pairs."""
    pairs = [(line, toy.translate(line)) for line in toy.test[:3]]
    for name, side in zip(
        ("source", "reference"), zip(*pairs, strict=True), strict=True
    ):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in side))
    return pairs, [f"--{name}={tmp_path / name}" for name in ("source", "reference")]


def records(answer) -> list[dict]:
    return [json.loads(line) for line in answer.lines]


def test_n_best_are_json_lines_best_first(translate, toy):
    lines = [*toy.test[:3], ""]
    found = records(translate(lines, "--beam_size=4", "--n_best=3"))
    plain = translate(lines, "--beam_size=4").lines
    assert [record["line"] for record in found] == [1, 2, 3, 4]
    assert [record["hypotheses"][0]["text"] for record in found] == plain
    for record in found[:3]:
        scores = [hypothesis["score"] for hypothesis in record["hypotheses"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis["text"] for hypothesis in record["hypotheses"]}) == 3
        for hypothesis in record["hypotheses"]:
            penalty = ((5 + hypothesis["tokens"]) / 6) ** 0.6
            expected = hypothesis["log_probability"] / penalty
            assert hypothesis["score"] == pytest.approx(expected, rel=1e-5)


def test_a_penalty_is_chosen_by_name(translate, toy):
    (record,) = records(
        translate(toy.test[:1], "--json", "--length_penalty=power", "--alpha=1")
    )
    (best,) = record["hypotheses"]
    expected = best["log_probability"] / best["tokens"]
    assert best["score"] == pytest.approx(expected, rel=1e-5)


def test_log_probability_is_that_of_score(translate, command, trained, toy, tmp_path):
    (record,) = records(translate(toy.test[:1], "--json"))
    best = record["hypotheses"][0]
    for name, line in (("source", toy.test[0]), ("reference", best["text"])):
        (tmp_path / name).write_text(line + "\n")
    answer = command(
        "--mode=score", f"--workdir={trained.workdir}", "--details",
        f"--source={tmp_path / 'source'}", f"--reference={tmp_path / 'reference'}",
    )  # fmt: skip
    detail, result = map(json.loads, answer.lines)
    assert detail["line"] == 1
    assert len(detail["pieces"]) == len(detail["log_probabilities"]) == best["tokens"]
    assert detail["log_probability"] == pytest.approx(
        math.fsum(detail["log_probabilities"]), rel=1e-5
    )
    assert detail["log_probability"] == pytest.approx(best["log_probability"], rel=1e-4)
    assert result["log_probability"] == pytest.approx(best["log_probability"], rel=1e-4)


def test_samples_are_those_of_the_seed(translate, toy):
    flags = ("--temperature=3", "--beam_size=3", "--n_best=3")
    first, again = (translate(toy.test[:4], *flags, "--seed=5").lines for _ in range(2))
    other = translate(toy.test[:4], *flags, "--seed=6").lines
    assert first == again
    assert first != other


def test_a_prefix_begins_the_translation(translate, toy, tmp_path):
    lines = toy.test[:4]
    words = [toy.translate(line).split()[0] for line in reversed(lines)]
    (tmp_path / "prefixes").write_text("".join(f"{word}\n" for word in words[:3]))
    found = translate(lines, f"--prefix={tmp_path / 'prefixes'}").lines
    for translation, word in zip(found, words[:3], strict=False):
        assert translation.startswith(word)
    assert found[3] == translate(lines[3:]).lines[0]


def test_a_translation_is_at_least_min_length_long(translate, toy):
    short = translate(toy.test[:2], "--json")
    longest = max(r["hypotheses"][0]["tokens"] for r in records(short))
    found = translate(toy.test[:2], "--json", f"--min_length={longest + 3}")
    assert all(r["hypotheses"][0]["tokens"] >= longest + 3 for r in records(found))


def test_no_pair_of_pieces_twice(translate, toy):
    flags = ("--min_length=20", "--json", "--alignment")
    (record,) = records(translate(toy.test[:1], *flags, "--no_repeat_ngram=2"))
    pieces = record["hypotheses"][0]["pieces"][:-1]
    bigrams = list(itertools.pairwise(pieces))
    assert len(set(bigrams)) == len(bigrams)


def test_alignment_links_every_piece_to_one_of_the_source(translate, toy):
    (record,) = records(translate(toy.test[:1], "--alignment"))
    best = record["hypotheses"][0]
    links = [tuple(map(int, link.split("-"))) for link in best["alignment"].split()]
    assert [target for _, target in links] == list(range(len(best["pieces"]) - 1))
    assert all(source < len(best["source_pieces"]) - 1 for source, _ in links)


def test_a_run_that_votes_with_itself_changes_nothing(
    translate, trained, toy, tmp_path
):
    twin = tmp_path / "twin"
    shutil.copytree(trained.workdir, twin)
    alone = translate(toy.test[:5]).lines
    assert translate(toy.test[:5], f"--ensemble={twin},{twin}").lines == alone


def test_a_voter_with_another_tokeniser_is_refused(translate, trained, toy, tmp_path):
    twin = tmp_path / "twin"
    shutil.copytree(trained.workdir, twin)
    (twin / "tokenizer.model").write_bytes(b"nothing")
    answer = translate(toy.test[:1], f"--ensemble={twin}")
    assert answer.code == 2
    assert str(twin) in answer.complaint


def test_long_lines_are_split_cut_or_refused(translate, toy):
    long = " ".join(toy.test[:6])
    whole = translate([toy.test[0], long], "--max_source_length=9")
    assert len(whole.lines) == 2
    assert "line 2 has" in whole.err
    assert "parts" in whole.err
    cut = translate([long], "--max_source_length=9", "--long_lines=truncate").lines
    assert len(cut[0]) < len(whole.lines[1])
    refused = translate([long], "--max_source_length=9", "--long_lines=refuse")
    assert refused.code == 2
    assert "line 1 has" in refused.complaint


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--n_best=9", "--beam_size=2"], "n_best is 9"),
        (["--top_k=3"], "temperature"),
        (["--temperature=1", "--top_p=2"], "top_p is 2"),
        (["--temperature=-1"], "temperature is -1"),
        (["--prefix=/nowhere"], "/nowhere"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(translate, toy, flags, said):
    answer = translate(toy.test[:1], *flags)
    assert answer.code == 2
    assert said in answer.complaint


def test_align_writes_links_and_all_attention(command, trained, pair_flags, tmp_path):
    pairs, flags = pair_flags
    output = tmp_path / "attention.npz"
    answer = command(
        "--mode=align", f"--workdir={trained.workdir}", f"--output={output}", *flags
    )
    assert len(answer.lines) == len(pairs)
    with np.load(output) as arrays:
        for line, links in enumerate(answer.lines):
            source, target = arrays[f"{line}/source"], arrays[f"{line}/target"]
            assert len(links.split()) == len(target) - 1
            cross = arrays[f"{line}/cross"]
            assert cross.shape[2:] == (len(target), len(source))
            np.testing.assert_allclose(cross.sum(axis=-1), 1, rtol=1e-5)
    again = command(
        "--mode=align", f"--workdir={trained.workdir}", f"--output={output}", *flags
    )
    assert again.code == 2
    assert str(output) in again.complaint


def test_the_python_api_says_what_the_command_says(translate, trained, toy):
    translator = jaxformer.Translator(trained.workdir, beam_size=3, n_best=2)
    lines = toy.test[:4]
    expected = translate(lines, "--beam_size=3").lines
    assert translator(lines) == expected
    assert translator(lines[0]) == expected[0]
    found = translator.translate(lines)
    assert [len(hypotheses) for hypotheses in found] == [2] * 4
    assert [hypotheses[0].text for hypotheses in found] == expected
    (forced,) = translator.score(lines[:1], expected[:1])
    assert forced.log_probability == pytest.approx(
        found[0][0].log_probability, rel=1e-4
    )


def test_the_python_api_names_what_it_does_not_know(trained, tmp_path):
    with pytest.raises(TypeError, match="no option 'beams'"):
        jaxformer.Translator(trained.workdir, beams=3)
    with pytest.raises(InputError, match="there is no run in"):
        jaxformer.Translator(tmp_path)
