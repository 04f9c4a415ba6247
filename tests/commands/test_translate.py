"""--mode=translate: N lines in, N lines out; its flags, and the same from Python."""

import itertools
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxformer
from jaxformer.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def expected(use, toy):
    """The run's translations of the toy's test sentences, by their text."""
    lines = use("translate", lines=toy.test).lines
    return dict(zip(toy.test, lines, strict=True))


def test_every_line_is_translated_and_their_order_is_kept(
    command, trained, toy, expected
):
    """A byte order mark and \\r\\n are no text, and only \\n ends a line."""
    right = sum(toy.translate(line) == expected[line] for line in toy.test)
    assert right >= 0.75 * len(toy.test)
    lines = [*toy.test, "", "   ", "\t"]
    random.Random(1).shuffle(lines)
    wanted = [expected.get(line, "") for line in lines]
    longest = max(toy.test, key=len)
    for separator in ("\u2028", "\x85", "\r"):
        lines.append(longest.replace(" ", separator))
        wanted.append(expected[longest])
    lines += ["Привет 你好", "🙂", toy.test[0]]  # the last one lacks its newline
    answer = command(
        "--mode=translate", f"--workdir={trained.workdir}",
        stdin=b"\xef\xbb\xbf" + "\r\n".join(lines).encode(),
    )  # fmt: skip
    found = answer.lines
    assert found[: len(wanted)] == wanted
    assert (len(found), found[-1]) == (len(lines), expected[toy.test[0]])
    assert command("--mode=translate", f"--workdir={trained.workdir}").lines == []


def test_neighbours_and_the_size_of_batches_change_nothing(use, toy, expected):
    long = " ".join(toy.test)  # takes another shape
    first = toy.test[0]
    answer = use("translate", "--batch_tokens=40", lines=[first, long])
    assert answer.lines[0] == expected[first]


def test_text_that_is_not_utf_8_is_refused_by_line(command, trained):
    """The lines before it are translated."""
    answer = command(
        "--mode=translate", f"--workdir={trained.workdir}", stdin=b"bo\nda\n\xe4\nfe\n"
    )
    assert answer.code == 2
    assert answer.out.count(b"\n") == 2
    assert answer.err.endswith(
        "standard input, line 3: byte 1 of the line is not UTF-8; "
        "convert the text to UTF-8\n"
    )


@pytest.mark.slow
def test_a_line_is_answered_before_the_next_one_is_read(trained):
    with subprocess.Popen(
        [sys.executable, "-m", "jaxformer.main", "--mode=translate",
         f"--workdir={trained.workdir}"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        for _ in range(2):
            process.stdin.write("bo da\n")
            process.stdin.flush()
            assert process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait(timeout=60) == 0


@pytest.mark.slow
def test_a_process_of_one_device_translates_the_same(start, trained, toy, expected):
    flags = ("--mode=translate", f"--workdir={trained.workdir}")
    stdin = "".join(f"{line}\n" for line in toy.test).encode()
    process = start(1, *flags, stdin=stdin, devices=1)
    assert process.wait(120) == [0], process.stderr()
    assert process.stdout().splitlines() == list(expected.values())


def test_a_workdir_is_not_changed_and_needs_nothing_outside_itself(
    command, own_run, toy, expected, toy_is_gone, monkeypatch
):
    moved = own_run.rename(own_run.with_name("moved"))
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*")}
    monkeypatch.chdir(moved)
    stdin = f"{toy.test[0]}\n".encode()
    answer = command("--mode=translate", "--workdir=.", stdin=stdin)
    assert answer.lines == [expected[toy.test[0]]]
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == before


def test_a_damaged_run_is_refused(command, own_run, tmp_path):
    model = own_run / "tokenizer.model"
    for damage, workdir, said in (
        (lambda: None, tmp_path / "none", "no run in"),
        (lambda: None, own_run / "config.json", "cannot be read"),
        (lambda: shutil.rmtree(own_run / "checkpoints"), own_run, "no checkpoint"),
        (lambda: model.write_bytes(b"none"), own_run, "not a SentencePiece model"),
        (model.unlink, own_run, "cannot be read"),
    ):
        damage()
        answer = command("--mode=translate", f"--workdir={workdir}", stdin=b"bo\n")
        assert said in answer.complaint
        assert answer.err.count("\n") == 1
    assert not (tmp_path / "none").exists()


# Flags --------------------------------------------------------------------------------


def hypotheses(answer) -> list[list[dict]]:
    records = [json.loads(line) for line in answer.lines]
    assert [record["line"] for record in records] == [*range(1, len(records) + 1)]
    return [record["hypotheses"] for record in records]


def test_n_best_are_json_lines_best_first(use, toy):
    lines = [*toy.test[:3], ""]
    answer = use("translate", "--beam_size=4", "--n_best=3", lines=lines)
    *found, (blank,) = hypotheses(answer)
    plain = use("translate", "--beam_size=4", lines=lines).lines
    assert [each[0]["text"] for each in found] + [blank["text"]] == plain
    for each in found:
        scores = [hypothesis["score"] for hypothesis in each]
        assert len({hypothesis["text"] for hypothesis in each}) == len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        for hypothesis in each:
            penalty = ((5 + hypothesis["tokens"]) / 6) ** 0.6
            expected = hypothesis["log_probability"] / penalty
            assert hypothesis["score"] == pytest.approx(expected, rel=1e-5)


def test_rules_of_the_search_and_alignments(use, toy):
    flags = ("--min_length=10", "--no_repeat_ngram=2", "--alignment")
    flags += ("--length_penalty=power", "--alpha=1")
    ((best,),) = hypotheses(use("translate", *flags, lines=toy.test[:1]))
    expected = best["log_probability"] / best["tokens"]
    assert best["score"] == pytest.approx(expected, rel=1e-5)
    assert best["tokens"] >= 10
    bigrams = list(itertools.pairwise(best["pieces"][:-1]))
    assert len(set(bigrams)) == len(bigrams)
    links = [tuple(map(int, link.split("-"))) for link in best["alignment"].split()]
    assert [target for _, target in links] == list(range(len(best["pieces"]) - 1))
    assert all(source < len(best["source_pieces"]) - 1 for source, _ in links)


def test_a_prefix_begins_the_translation(use, toy, expected, tmp_path):
    """A file with fewer lines than the input is enough."""
    lines = toy.test[:4]
    words = [toy.translate(line).split()[0] for line in reversed(lines)]
    (tmp_path / "prefixes").write_text("".join(f"{word}\n" for word in words[:3]))
    found = use("translate", f"--prefix={tmp_path / 'prefixes'}", lines=lines).lines
    for translation, word in zip(found, words[:3], strict=False):
        assert translation.startswith(word)
    assert found[3] == expected[lines[3]]


def test_an_ensemble_of_equal_runs_changes_nothing(use, own_run, toy, expected):
    flag = f"--ensemble={own_run},{own_run}"
    found = use("translate", flag, lines=toy.test[:5]).lines
    assert found == [expected[line] for line in toy.test[:5]]
    (own_run / "tokenizer.model").write_bytes(b"nothing")
    assert str(own_run) in use("translate", flag, lines=["bo"]).complaint


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--n_best=9", "--beam_size=2"], "n_best is 9"),
        (["--top_k=3"], "temperature"),
        (["--temperature=1", "--top_p=2"], "top_p is 2"),
        (["--prefix=/nowhere"], "/nowhere"),
        (["--max_source_length=2", "--long_lines=refuse"], "line 1 has"),
    ],
)
def test_flags_that_contradict_are_refused(use, toy, flags, said):
    assert said in use("translate", *flags, lines=toy.test[:1]).complaint


def test_python_and_the_command_agree(use, trained, toy, tmp_path):
    translator = jaxformer.Translator(trained.workdir, beam_size=3, n_best=2)
    lines = toy.test[:4]
    expected = use("translate", "--beam_size=3", lines=lines).lines
    assert translator(lines) == expected
    assert translator(lines[0]) == expected[0]
    found = translator.translate(lines)
    assert [len(each) for each in found] == [2] * 4
    assert [each[0].text for each in found] == expected
    (forced,) = translator.score(lines[:1], expected[:1])
    probability = found[0][0].log_probability
    assert forced.log_probability == pytest.approx(probability, rel=1e-4)
    with pytest.raises(TypeError, match="'beams'"):
        jaxformer.Translator(trained.workdir, beams=3)
    with pytest.raises(InputError, match="there is no run in"):
        jaxformer.Translator(tmp_path)
