"""--mode=evaluate: a text of the config, of the workdir or of the user, scored."""

import gzip
import json
import subprocess
import sys

import pytest


def without_time(result):
    return {key: value for key, value in result.items() if key != "seconds"}


def test_the_result_has_the_promised_keys_for_a_split_and_for_files(use, toy, tmp_path):
    answer = use("evaluate")
    assert list(answer.result) == [
        "bleu", "signature", "bleu_lc_tok", "chrf", "nll", "ppl", "direction",
        "every_bleu", "sentences", "seconds",
    ]  # fmt: skip
    assert answer.result["sentences"] == len(toy.test)
    assert answer.result["direction"] == "en-de"
    assert answer.result["bleu"] > 60
    scores = answer.result["every_bleu"]
    assert scores[0]["bleu"] == answer.result["bleu"]
    assert len({each["signature"] for each in scores}) == len(scores) == 7
    for each in scores:
        assert f"{each['bleu']:6.2f}  {each['scorer']}  " in answer.err
        assert each["signature"] in answer.err
    flags = []
    for flag, language in (("source", "en"), ("reference", "de")):
        file = tmp_path / f"test.{language}.gz"
        file.write_bytes(gzip.compress((toy.directory / file.stem).read_bytes()))
        flags.append(f"--{flag}={file}")
    by_file = use("evaluate", *flags).result
    assert without_time(by_file) == without_time(answer.result)


def test_case_counts_in_bleu_alone(use, toy, pair_flags):
    pairs = [(line, toy.translate(line)) for line in toy.test]
    upper, lower = (
        use("evaluate", *pair_flags(each)).result
        for each in (pairs, [(source, target.lower()) for source, target in pairs])
    )
    assert lower["bleu"] < 1 < upper["bleu"]
    assert lower["bleu_lc_tok"] == pytest.approx(upper["bleu_lc_tok"])


@pytest.mark.parametrize(
    ("source", "reference", "said"),
    [
        ("{toy}/test.en", None, ["--source and --reference go together"]),
        (None, "{toy}/test.de", ["--source and --reference go together"]),
        ("{toy}/test.en", "{own}/short", ["test.en has 12 lines and", "short has 2;"]),
        ("{own}/empty", "{toy}/test.de", ["empty"]),
        ("{own}/binary", "{toy}/test.de", ["binary", "line 2"]),
        ("{own}/none", "{toy}/test.de", ["none", "read"]),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    use, toy, tmp_path, source, reference, said
):
    for name, content in (
        ("short", b"SU\nRI\n"),
        ("empty", b""),
        ("binary", b"a\n\xff"),
    ):
        (tmp_path / name).write_bytes(content)
    flags = [
        f"--{flag}={file.format(toy=toy.directory, own=tmp_path)}"
        for flag, file in (("source", source), ("reference", reference))
        if file is not None
    ]
    answer = use("evaluate", *flags)
    for part in said:
        assert part in answer.complaint
    assert answer.err.count("\n") == 1


def test_without_its_text_a_run_has_its_validation_set(
    use, trained, toy, toy_is_gone, tmp_path
):
    """It scores as at the end of training; text that moved is named by a flag."""
    result = use("evaluate", "--split=dev").result
    assert result["sentences"] == len(toy.dev)
    assert result["bleu"] == pytest.approx(trained.answer.result["bleu"])
    assert result["nll"] == pytest.approx(trained.answer.result["nll"], rel=1e-4)
    assert str(toy.directory) in use("evaluate", "--split=test").complaint
    assert "'tset'" in use("evaluate", "--split=tset").complaint
    (tmp_path / "test.en").write_text("bo\n")
    (tmp_path / "test.de").write_text("SU\n")
    moved = f"--config.data.directory={tmp_path}"
    assert use("evaluate", moved).result["sentences"] == 1


def test_sacrebleu_gives_the_same_scores_for_evaluate_and_translate(
    use, toy, pair_flags, tmp_path
):
    """To every digit, also with blank lines and lines that are split."""
    sources = [*toy.test, "", " ".join(toy.test * 2), toy.test[0]]
    pairs = [(line, toy.translate(line)) for line in sources]
    output = f"--output={tmp_path / 'evaluated'}"
    scored = use("evaluate", *pair_flags(pairs), output).result
    translated = use("translate", lines=sources)
    (tmp_path / "translated").write_bytes(translated.out)
    assert "line 14 has 101 pieces, more than 32: translated in" in translated.err
    assert (tmp_path / "evaluated").read_bytes() == translated.out
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", str(tmp_path / "reference"),
         "-i", str(tmp_path / "translated"), "-m", "bleu", "chrf", "-w", "20"],
        capture_output=True, check=True,
    )  # fmt: skip
    bleu, chrf = json.loads(done.stdout)
    assert (bleu["score"], chrf["score"]) == (scored["bleu"], scored["chrf"])
    assert bleu["signature"] == scored["signature"]
