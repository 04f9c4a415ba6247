"""jaxformer translate: N lines in, N lines out; its flags, and the same from Python."""

import gzip
import itertools
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

import jaxformer
from jaxformer.evaluation.metrics import sentence_metric
from jaxformer.evaluation.minimum_bayes_risk import expected_utilities
from jaxformer.system.errors import InputError
from tests.comet_package import score
from tests.commands.cluster import ROOT
from tests.commands.conftest import TARGET


@pytest.fixture(scope="module")
def expected(use, toy):
    """The run's translations of the toy's test sentences, by their text."""
    lines = use("translate", stdin=toy.test).lines
    return dict(zip(toy.test, lines, strict=True))


def test_every_line_is_translated_and_their_order_is_kept(use, toy, expected):
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
    text = b"\xef\xbb\xbf" + "\r\n".join(lines).encode()
    found = use("translate", stdin=text).lines
    assert found[: len(wanted)] == wanted
    assert (len(found), found[-1]) == (len(lines), expected[toy.test[0]])
    assert use("translate").lines == []


def test_a_person_at_a_terminal_is_told_what_to_do(use, toy, tmp_path):
    said = " and press Enter; Ctrl-D ends.\n"
    (tmp_path / "one").write_text("bo\n")
    file, page = f"--source={tmp_path / 'one'}", f"--output={tmp_path / 'page.html'}"
    for mode, flags, is_terminal, is_told in [
        ("translate", [], True, True),
        ("translate", [], False, False),
        ("translate", [file], True, False),
        ("visualize", [page], True, True),
    ]:
        answer = use(mode, *flags, stdin=toy.test[:1], is_terminal=is_terminal)
        assert (answer.code, answer.err.count(said)) == (0, is_told)


def test_a_file_is_translated_to_a_file(use, toy, expected, tmp_path):
    output = tmp_path / "x.de"
    flags = (f"--source={toy.directory / 'test.en'}", f"--output={output}")
    assert use("translate", *flags).lines == []
    assert output.read_text().splitlines() == [expected[line] for line in toy.test]
    use("translate", *flags, "--json")
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [each["source"] for each in found] == toy.test


def test_a_document_keeps_all_but_its_text(use, toy, trained, tmp_path):
    """Byte order mark, line ends, tags and placeholders; its output has no newline."""
    page = "\ufeff<p>bo da <b>fe</b> {x} <br>\r\n<code>bo</code></p> gi"
    (tmp_path / "x.html").write_bytes(page.encode())
    flags = ("--markup=html", f"--source={tmp_path / 'x.html'}")
    found = use("translate", *flags).out.decode()
    assert (found[:4], found[-1].isalpha()) == ("\ufeff<p>", True)
    for kept in ("<b>", "</b>", "{x}", "<br>\r\n<code>bo</code></p> "):
        assert found.count(kept) == 1
    assert "bo da" not in found
    assert use("translate", "--markup=html", stdin=page.encode()).out.decode() == found
    packed = tmp_path / "x.html.gz"
    packed.write_bytes(gzip.compress(page.encode()))
    own = "--markup=html", f"--source={packed}"
    assert use("translate", *own).out.decode() == found
    use("translate", *flags, f"--output={tmp_path / 'y.html'}")
    assert (tmp_path / "y.html").read_bytes().decode() == found
    translator = jaxformer.Translator(trained.workdir)
    assert translator.translate_document(page, markup="html") == found
    (tmp_path / "own").write_text("bo\n")
    own = f"--placeholders={tmp_path / 'own'}"
    assert use("translate", *flags, own).out.decode().count("bo") == 2


def test_text_that_is_not_utf_8_is_refused_by_line(use):
    """The lines before it are translated."""
    answer = use("translate", stdin=b"bo\nda\n\xe4\nfe\n")
    assert (answer.code, answer.out.count(b"\n")) == (2, 2)
    assert "standard input, line 3: byte 1 of the line is not UTF-8;" in answer.err


@pytest.mark.slow
def test_one_device_answers_each_line_before_the_next_one_is_read(
    trained, toy, expected
):
    """The model was trained on eight devices."""
    command = [sys.executable, "-m", "jaxformer.main", "--mode=translate"]
    with subprocess.Popen(
        [*command, f"--workdir={trained.workdir}"], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
    ) as process:  # fmt: skip
        for line in toy.test:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{expected[line]}\n"
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_workdir_is_not_changed_and_needs_nothing_outside_itself(
    command, own_run, toy, expected, toy_is_gone, monkeypatch
):
    moved = own_run.rename(own_run.with_name("moved"))
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*")}
    monkeypatch.chdir(moved)
    answer = command("translate", workdir=".", stdin=toy.test[:1])
    assert answer.lines == [expected[toy.test[0]]]
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == before


# Flags --------------------------------------------------------------------------------


def hypotheses(answer) -> list[list[dict]]:
    records = [json.loads(line) for line in answer.lines]
    assert [record["line"] for record in records] == [*range(1, len(records) + 1)]
    return [record["hypotheses"] for record in records]


def test_n_best_are_json_lines_best_first(use, toy):
    lines = [*toy.test[:3], "☃ ☃", "☃", "\u200b"]
    answer = use("translate", "--beam_size=4", "--n_best=3", stdin=lines)
    *found, (copy,), _, (blank,) = hypotheses(answer)
    assert answer.err.count("character, copied: 2") == 1
    plain = use("translate", "--beam_size=4", stdin=lines).lines
    assert [each[0]["text"] for each in found] == plain[:3]
    assert [copy["text"], "☃", blank["text"]] == plain[3:] == [*lines[3:5], ""]
    for each in found:
        scores = [hypothesis["score"] for hypothesis in each]
        assert len({hypothesis["text"] for hypothesis in each}) == len(scores) == 3
        assert scores == sorted(scores, reverse=True)


def test_rules_of_the_search_and_alignments(use, toy):
    flags = ("--min_length=10", "--no_repeat_ngram=2", "--alignment")
    flags += ("--length_penalty=power", "--alpha=1")
    ((best,),) = hypotheses(use("translate", *flags, stdin=toy.test[:1]))
    expected = best["log_probability"] / best["tokens"]
    assert best["score"] == pytest.approx(expected, rel=1e-5)
    assert best["tokens"] >= 10
    bigrams = list(itertools.pairwise(best["pieces"][:-1]))
    assert len(set(bigrams)) == len(bigrams)
    links = [tuple(map(int, link.split("-"))) for link in best["alignment"].split()]
    assert [target for _, target in links] == list(range(len(best["pieces"]) - 1))
    assert all(source < len(best["source_pieces"]) - 1 for source, _ in links)


def test_one_line_has_a_prefix_and_an_ensemble_of_equal_runs_changes_nothing(
    use, trained, toy, expected, tmp_path
):
    """The other lines of the file of prefixes are blank; batches are small."""
    (tmp_path / "prefixes").write_text("SU\n\n\n\n\n\n")
    lines = [*toy.test[:5], " ".join(toy.test)]
    flags = [f"--ensemble={trained.workdir},{trained.workdir}"]
    flags += ["--config.decoding.batch_tokens=40"]
    prefix = f"--prefix={tmp_path / 'prefixes'}"
    first, *found = use("translate", *flags, prefix, stdin=lines).lines
    assert first.startswith("SU")
    assert not expected[lines[0]].startswith("SU")
    assert found[:4] == [expected[line] for line in lines[1:5]]


def test_products_in_bfloat16_translate_nearly_the_same(use, trained, toy):
    """Also where the other members of an ensemble have float32 in their configs.

    The fastest type is chosen by a test.
    """
    automatic = use("translate", "--dtype=auto", stdin=toy.test[:1])
    assert "times as fast here as float32" in automatic.err
    ensemble = f"--ensemble={trained.workdir}"
    exact, *others = (
        [json.loads(line)["hypotheses"][0] for line in answer.lines]
        for answer in (
            use("translate", "--json", *flags, stdin=toy.test)
            for flags in ((), ("--dtype=bfloat16",), ("--dtype=bfloat16", ensemble))
        )
    )
    values = [[each["log_probability"] for each in found] for found in (exact, *others)]
    assert values[0] != values[1]
    for found, rounded in zip(others, values[1:], strict=True):
        same = [a["text"] == b["text"] for a, b in zip(exact, found, strict=True)]
        assert sum(same) >= 0.9 * len(same)
        near = [abs(a - b) < 0.1 for a, b in zip(values[0], rounded, strict=True)]
        assert sum(near) >= 0.9 * len(near)
    np.testing.assert_allclose(values[1], values[2], atol=1e-4)


def test_translate_keeps_freed_memory_and_export_does_not(
    use, toy, tmp_path, keep_memory
):
    export = "--format=ctranslate2", f"--output={tmp_path / 'exported'}"
    for mode, flags, is_kept in (("translate", (), True), ("export", export, False)):
        keep_memory.reset_mock()
        assert use(mode, *flags, stdin=toy.test[:1]).code == 0
        assert keep_memory.called == is_kept


def test_phrases_of_a_line_are_in_its_translation(use, toy, expected, tmp_path):
    """The other lines of the file are blank, and keep their translations."""
    lines = [*toy.test[:3], ""]
    words = expected[toy.test[3]].split()
    absent = [word for word in words if word not in expected[lines[1]].split()][:2]
    (tmp_path / "phrases").write_text("\n" + "\t".join(absent) + "\n\t\n\n")
    flags = f"--phrases={tmp_path / 'phrases'}", "--beam_size=4"
    first, found, *others = use("translate", *flags, stdin=lines).lines
    assert len(absent) > 0
    for word in absent:
        assert f" {word}" in f" {found}"
    plain = use("translate", "--beam_size=4", stdin=lines).lines
    assert [first, *others] == [plain[0], *plain[2:]]


def test_the_terms_of_a_glossary_are_in_the_translations_of_their_sentences(
    use, trained, toy, expected, tmp_path
):
    """Others stay as they are. What cannot be met is said in one line."""
    lines, file = toy.test[:4], tmp_path / "terms.tsv"
    term = lines[1].split()[0]
    lacking = next(each for each in lines[3].split() if each != term)
    word = next(each for each in TARGET if each not in expected[lines[1]].split())
    file.write_text(f"{term}\t{word}\n{lacking} \t\u4f60\tnote\n")
    answer = use("translate", f"--glossary={file}", "--beam_size=4", stdin=lines)
    plain = use("translate", "--beam_size=4", stdin=lines).lines
    for line, found, before in zip(lines, answer.lines, plain, strict=True):
        assert f" {word}" in f" {found}" if term in line.split() else found == before
    reason = "terms that are left out: '\u4f60' (a character that the vocabulary lacks)"
    assert answer.err.count(f"line 4: {reason}\n") == 1
    translator = jaxformer.Translator(trained.workdir, beam_size=4, glossary=file)
    assert translator("\n".join(lines)) == "\n".join(answer.lines)


def test_python_and_the_command_agree(use, trained, toy, tmp_path):
    translator = jaxformer.Translator(trained.workdir, beam_size=3, n_best=2)
    lines = toy.test[:4]
    expected = use("translate", "--beam_size=3", stdin=lines).lines
    assert translator(lines) == expected
    found = translator.translate(lines)
    assert [len(each) for each in found] == [2] * 4
    assert [each[0].text for each in found] == expected
    with pytest.raises(TypeError, match="'beams'"):
        jaxformer.Translator(trained.workdir, beams=3)
    with pytest.raises(InputError, match="there is no run in"):
        jaxformer.Translator(tmp_path)


@pytest.mark.parametrize("utility", ["chrf", "comet"])
def test_samples_are_chosen_by_minimum_bayes_risk(use, toy, stand_in_comet, utility):
    """The choice is one of the samples. COMET is called once for a block."""
    sampling = ["--temperature=2", "--beam_size=8", "--seed=3"]
    all_samples = use("translate", *sampling, "--n_best=8", "--json", stdin=toy.test)
    flags = [*sampling, f"--choose={utility}"]
    flags += [f"--comet={stand_in_comet.file}"] * (utility == "comet")
    chosen = use("translate", *flags, stdin=toy.test).lines
    metric = sentence_metric("chrf", "de")
    for samples, text in zip(hypotheses(all_samples), chosen, strict=True):
        texts = [each["text"] for each in samples]
        (utilities,) = expected_utilities([""], [texts], metric)
        if utility == "comet":
            utilities = {
                a: sum(score({"src": "", "mt": a, "ref": b}) for b in texts)
                for a in texts
            }
        assert text == max(texts, key=utilities.get)
    assert chosen != use("translate", *sampling, stdin=toy.test).lines
    if utility == "comet":
        (call,) = stand_in_comet.calls()
        assert {each["src"] for each in call} == {*toy.test}
