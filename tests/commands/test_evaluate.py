"""jaxformer evaluate: a text of the config, of the workdir or of the user, scored."""

import gzip
import json
import subprocess
import sys
from unittest.mock import patch

import pytest

from jaxformer.system.progress import track
from tests.comet_package import score
from tests.commands.runs import metrics, pair_flags


def test_the_result_has_the_promised_keys_for_a_split_and_for_files(use, toy, tmp_path):
    with patch("jaxformer.evaluation.evaluator.track", wraps=track) as tracked:
        answer = use("evaluate")
    result = answer.result
    (progress,) = tracked.call_args_list
    assert progress.args[1:] == ("scoring", 1)  # with the total, for an ETA
    assert list(result) == [
        "bleu", "signature", "bleu_lc_tok", "chrf", "nll", "ppl", "direction",
        "every_bleu", "sentences",
    ]  # fmt: skip
    assert (result["sentences"], result["direction"]) == (len(toy.test), "en-de")
    assert result["bleu"] > 60
    scores = {each["scorer"]: each["bleu"] for each in result["every_bleu"]}
    assert len(scores) == 7
    assert result["bleu"] == scores["sacreBLEU"]
    assert result["bleu_lc_tok"] == scores["sacreBLEU lower-cased"]
    for each in result["every_bleu"]:
        assert f"{each['bleu']:6.2f}  {each['scorer']:<30}  {each['signature']}" in (
            answer.err
        )
    flags = []
    for flag, language in (("source", "en"), ("reference", "de")):
        file = tmp_path / f"test.{language}.gz"
        file.write_bytes(gzip.compress((toy.directory / file.stem).read_bytes()))
        flags.append(f"--{flag}={file}")
    assert use("evaluate", *flags).result == result


def test_without_its_text_a_run_has_its_validation_set(
    use, trained, toy, toy_is_gone, tmp_path
):
    """It scores as at the end of training; text that moved is named by a flag."""
    result = use("evaluate", "--split=dev").result
    assert result["sentences"] == len(toy.dev)
    assert result["bleu"] == pytest.approx(trained.answer.result["bleu"])
    assert result["nll"] == pytest.approx(trained.answer.result["nll"], rel=1e-4)
    assert str(toy.directory) in use("evaluate", "--split=test").complaint
    (tmp_path / "test.en").write_text("bo\n")
    (tmp_path / "test.de").write_text("SU\n")
    moved = f"--config.data.directory={tmp_path}"
    assert use("evaluate", moved).result["sentences"] == 1


@pytest.mark.slow
def test_sacrebleu_gives_the_same_scores_for_evaluate_and_translate(use, toy, tmp_path):
    """To every digit, also with blank lines and lines that are split."""
    sources = [*toy.test, "", " ".join(toy.test * 2), toy.test[0]]
    pairs = [(line, toy.translate(line)) for line in sources]
    output = tmp_path / "evaluated"
    scored = use("evaluate", *pair_flags(tmp_path, pairs), f"--output={output}").result
    translated = use("translate", stdin=sources)
    assert "line 14 has 121 pieces, more than 32: translated in" in translated.err
    assert output.read_bytes() == translated.out
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", str(tmp_path / "reference"),
         "-i", str(output), "-m", "bleu", "chrf", "-w", "20"],
        capture_output=True, check=True,
    )  # fmt: skip
    bleu, chrf = json.loads(done.stdout)
    assert (bleu["score"], chrf["score"]) == (scored["bleu"], scored["chrf"])
    assert bleu["signature"] == scored["signature"]


def test_comet_scores_the_translations_with_their_sources_and_references(
    use, toy, stand_in_comet, tmp_path
):
    output = tmp_path / "translations"
    flags = (f"--comet={stand_in_comet.file}", f"--output={output}")
    answer = use("evaluate", *flags)
    result = answer.result
    (call,) = stand_in_comet.calls()
    references = (toy.directory / "test.de").read_text().splitlines()
    assert [each["src"] for each in call] == toy.test
    assert [each["mt"] for each in call] == output.read_text().splitlines()
    assert [each["ref"] for each in call] == references
    scores = list(map(score, call))
    assert result["comet"] == pytest.approx(sum(scores) / len(scores))
    signature = f"unbabel-comet:2.2.7|model:{stand_in_comet.file}"
    assert result["comet_signature"] == signature
    assert f"COMET {result['comet']:.4f} ({signature})" in answer.err
    assert "comet" not in use("evaluate").result


def test_perplexity_is_that_of_the_tokens_of_pairs_with_words(use, toy, tmp_path):
    pairs = [(line, toy.translate(line)) for line in toy.test[:2]]
    found = use("evaluate", *pair_flags(tmp_path, pairs)).result
    blank = [("", ""), *pairs, (" ", "")]
    assert use("evaluate", *pair_flags(tmp_path, blank)).result["nll"] == found["nll"]


def test_perplexity_is_that_of_all_batches(use):
    whole = use("evaluate").result["nll"]
    with (
        patch("jaxformer.evaluation.evaluator.MOST_TOKENS", 60),
        patch("jaxformer.evaluation.evaluator.track", wraps=track) as tracked,
    ):
        assert use("evaluate").result["nll"] == pytest.approx(whole, rel=1e-5)
    assert tracked.call_args.args[2] > 1


def test_an_ensemble_has_no_perplexity(use, trained):
    """That of its first model would stand beside the BLEU of all."""
    answer = use("evaluate", f"--ensemble={trained.workdir}", "--split=dev")
    assert (answer.result["nll"], answer.result["ppl"]) == (None, None)
    assert answer.result["bleu"] == metrics(trained.workdir, "final")[0]["bleu"]
    assert "ppl" not in answer.err
