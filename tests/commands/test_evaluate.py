"""--mode=evaluate: which pairs it scores, by which parameters, and what it says."""

import gzip
import json
import subprocess
import sys

import pytest


@pytest.fixture
def evaluate(command, trained):
    """Evaluate the trained run with more flags; returns the Answer."""

    def run(*flags):
        return command("--mode=evaluate", f"--workdir={trained.workdir}", *flags)

    return run


def without_time(result):
    return {key: value for key, value in result.items() if key != "seconds"}


def test_result_is_one_line_of_json_with_the_promised_keys(evaluate, toy):
    answer = evaluate()
    assert list(answer.result) == [
        "bleu", "signature", "bleu_lc_tok", "chrf", "nll", "ppl", "direction",
        "every_bleu", "sentences", "seconds",
    ]  # fmt: skip
    assert answer.result["sentences"] == len(toy.test)
    assert answer.result["direction"] == "en-de"
    assert answer.result["bleu"] > 60
    first, *others = answer.result["every_bleu"]
    assert first["bleu"] == answer.result["bleu"]
    assert len({each["signature"] for each in (first, *others)}) == 7
    for each in (first, *others):
        assert f"{each['bleu']:6.2f}  {each['scorer']}  " in answer.err
        assert each["signature"] in answer.err


def test_files_and_splits_are_the_same_pairs(evaluate, toy, tmp_path):
    files = {}
    for flag, language in (("source", "en"), ("reference", "de")):
        files[flag] = tmp_path / f"test.{language}.gz"
        text = (toy.directory / f"test.{language}").read_bytes()
        files[flag].write_bytes(gzip.compress(text))
    by_file = evaluate(*(f"--{flag}={path}" for flag, path in files.items()))
    assert without_time(by_file.result) == without_time(evaluate().result)


def test_the_validation_set_scores_as_it_did_at_the_end_of_training(evaluate, trained):
    result = evaluate("--split=dev").result
    assert result["bleu"] == pytest.approx(trained.answer.result["bleu"])
    assert result["nll"] == pytest.approx(trained.answer.result["nll"], rel=1e-4)


def test_case_counts_in_bleu_and_not_in_the_lower_cased_one(evaluate, toy, tmp_path):
    text = (toy.directory / "test.de").read_text()
    reference = tmp_path / "lower.de"
    reference.write_text(text.lower())
    result = evaluate(
        f"--source={toy.directory / 'test.en'}", f"--reference={reference}"
    ).result
    assert result["bleu"] < 1
    assert result["bleu_lc_tok"] == pytest.approx(evaluate().result["bleu_lc_tok"])


def test_one_file_of_two_is_refused(evaluate, toy):
    for flag in ("source", "reference"):
        complaint = evaluate(f"--{flag}={toy.directory / 'test.en'}").complaint
        assert "--source and --reference go together" in complaint


def test_files_of_different_length_are_refused_with_both_counts(
    evaluate, toy, tmp_path
):
    short = tmp_path / "short.de"
    short.write_text("SU\nRI\n")
    answer = evaluate(f"--source={toy.directory / 'test.en'}", f"--reference={short}")
    for part in (str(short), "2", "test.en", str(len(toy.test))):
        assert part in answer.complaint
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "empty"), (b"bo\n\xff\n", "line 2"), (None, "read")]
)
def test_a_file_that_cannot_be_used_is_refused(evaluate, toy, tmp_path, content, said):
    source = tmp_path / "source.en"
    if content is not None:
        source.write_bytes(content)
    answer = evaluate(f"--source={source}", f"--reference={toy.directory / 'test.de'}")
    assert str(source) in answer.complaint
    assert said in answer.complaint


def test_an_unknown_split_is_refused(evaluate):
    assert "'tset'" in evaluate("--split=tset").complaint


def test_without_the_text_only_the_validation_set_is_left(evaluate, toy, toy_is_gone):
    assert evaluate("--split=dev").result["sentences"] == len(toy.dev)
    assert str(toy.directory) in evaluate("--split=test").complaint


def test_text_that_moved_is_found_by_flag(command, toy, own_run, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for language in ("en", "de"):
        (moved / f"test.{language}").write_text("bo\n" if language == "en" else "SU\n")
    answer = command(
        "--mode=evaluate", f"--workdir={own_run}", f"--config={toy.config}",
        f"--config.data.directory={moved}",
    )  # fmt: skip
    assert answer.result["sentences"] == 1


def test_sacrebleu_gives_the_same_scores_for_evaluate_and_translate(
    evaluate, command, trained, toy, tmp_path
):
    """To every digit, also with blank lines and lines that are split."""
    sources = [*toy.test, "", " ".join(toy.test * 2), toy.test[0]]
    references = [toy.translate(line) for line in sources]
    for name, lines in (("source", sources), ("reference", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    scored = evaluate(
        f"--source={tmp_path / 'source'}",
        f"--reference={tmp_path / 'reference'}",
        f"--output={tmp_path / 'evaluated'}",
    ).result
    translated = command(
        "--mode=translate", f"--workdir={trained.workdir}",
        stdin=(tmp_path / "source").read_bytes(),
    )  # fmt: skip
    (tmp_path / "translated").write_bytes(translated.out)
    assert "line 14 has 101 pieces, more than 32: translated in" in translated.err
    for name in ("evaluated", "translated"):
        done = subprocess.run(
            [sys.executable, "-m", "sacrebleu", str(tmp_path / "reference"),
             "-i", str(tmp_path / name), "-m", "bleu", "chrf", "-w", "20"],
            capture_output=True, check=True,
        )  # fmt: skip
        bleu, chrf = json.loads(done.stdout)
        assert (bleu["score"], chrf["score"]) == (scored["bleu"], scored["chrf"])
        assert bleu["signature"] == scored["signature"]
