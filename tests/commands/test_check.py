"""jaxformer check reports what a run would take, and trains nothing."""

import functools
import logging
import shutil
import tempfile

import pytest

from jaxformer.corpus.prepared import open_prepared
from jaxformer.runs import estimates
from jaxformer.runs.estimates import report_quality, report_verdict
from jaxformer.runs.run import open_run
from jaxformer.training.memory import Microbatch, StepMemory
from tests.commands.runs import config_flags, text_of

D, F, HEADS, SIZE = 32, 64, 2, 16  # of the toy's config
PAIRS = [
    (f"{a} dog sees {b} .", f"ein Hund sieht {b} {a} .")
    for a in "abcdef"
    for b in "xyz"
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of 18 pairs, one of them twice, and a blank one."""
    folder = tmp_path_factory.mktemp("text")
    pairs = [*PAIRS, PAIRS[0], ("", "leer")]
    for lines, language in zip(zip(*pairs, strict=True), ("en", "de"), strict=True):
        (folder / f"train.{language}").write_text(text_of(lines))
    return folder


@pytest.fixture(scope="module")
def check(command, toy, text):
    """Check a run on that text with more flags; returns the Answer."""
    changes = {
        "data.directory": text, "data.dev": "train", "data.vocab_size": 60,
        "data.deduplicate": True, "batches.row_multiple": 8,
        "training.tokens_per_microbatch": 256, "training.tokens_per_update": 256,
    }  # fmt: skip
    flags = [f"--config.{name}={value}" for name, value in changes.items()]
    return functools.partial(command, "check", toy.flags[0], *flags)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def result(check, workdir):
    """A whole check, in which the train step is compiled for eight devices."""
    return check(workdir=workdir).result


def test_the_text_is_reported(result, text):
    """Dev is train here, so all of it overlaps; the blank source is named."""
    assert result["pairs"] == len(PAIRS)
    dropped = {"empty": 1, "too_long": 0, "ratio": 0, "duplicate": 1}
    assert result["dropped"] == dropped
    train, dev = result["corpus"]["splits"].values()
    assert train["pairs"] == len(PAIRS) + 2
    blank = {"place": [f"{text}/train.en", 20]}
    assert train["findings"]["source_blank"]["examples"] == [blank]
    assert dev["findings"]["pair_overlap"]["pairs"] == len(PAIRS) + 1
    assert sum(train["lengths"]["target"]["pieces"].values()) == len(PAIRS)
    assert "test.en" in result["corpus"]["left_out"]["test"]


def test_a_terminal_gets_the_report_alone(check, workdir, result, text, tmp_path):
    """With what preparing has dropped; --output=FILE.tsv lists every finding."""
    found = f"--output={tmp_path}/found.tsv"
    answer = check(found, workdir=workdir, is_terminal=True)
    assert (answer.code, answer.out) == (0, b"")
    assert "train: preparing drops 1 empty, 1 duplicate\n" in answer.err
    verdict = answer.err[answer.err.rindex("verdict ") :]
    assert f"{result['warnings']} warnings about the text" in verdict
    rows = (tmp_path / "found.tsv").read_text().split("\n")
    assert f"train\t{text}/train.en\t20\tsource_blank\t\tleer" in rows


def test_a_terminal_gets_json_on_request(check, workdir, quick_check):
    answer = check("--json", workdir=workdir, is_terminal=True)
    assert answer.result["pairs"] == len(PAIRS)


def test_tokens_are_those_of_the_text(result, workdir):
    train = open_prepared(workdir).train
    updates = result["updates_per_epoch"]
    tokens = {side: getattr(train, side).lengths.sum() for side in train._fields}
    assert result["tokens_per_update"] == round(tokens["target"] / updates)
    assert result["source_tokens_per_update"] == round(tokens["source"] / updates)
    ((rows, source, target),) = result["shapes"]
    assert (rows % 8, source, target) == (0, 32, 32)
    assert result["positions_per_update"] == {"source": rows * 32, "target": rows * 32}
    share = sum(tokens.values()) / updates / (rows * 64)
    assert result["real_token_share"] == pytest.approx(share, abs=1e-4)


def test_parameters_and_memory_are_counted_and_nothing_is_trained(result, workdir):
    """Memory holds parameters and Adam's two moments, float32, on every device."""
    attention = 4 * D * HEADS * SIZE
    feed_forward = 2 * D * F + F + D
    assert result["parameters_by_part"] == {
        "embedding": open_prepared(workdir).tokenizer.vocab_size * D,
        "encoder/self_attention": attention,
        "encoder/feed_forward": feed_forward,
        "encoder/norm": 2 * 2 * D,
        "decoder/self_attention": attention,
        "decoder/cross_attention": attention,
        "decoder/feed_forward": feed_forward,
        "decoder/norm": 3 * 2 * D,
    }
    assert result["parameters"] == sum(result["parameters_by_part"].values())
    assert result["bytes_per_device"] > 3 * 4 * result["parameters"]
    assert result["fits"] is True
    assert result["largest_microbatches"] is None  # without --memory_gib
    assert result["seconds_per_update_estimate"] > 0
    names = {path.name for path in workdir.iterdir()}
    assert names == {".lock", "config.json", "tokenizer.model", "corpus"}


def test_a_value_that_is_tried_is_not_recorded(result, command, workdir):
    before = (workdir / "config.json").read_bytes()
    keys = "--config.model.d_ff=96", "--config.data.max_foreign=0.9"
    tried = command("check", *keys, workdir=workdir).result
    assert tried["parameters"] > result["parameters"]
    assert (workdir / "config.json").read_bytes() == before


def test_the_record_of_a_run_follows_its_text(workdir, text, command, tmp_path):
    run, corrected = tmp_path / "run", tmp_path / "text"
    shutil.copytree(workdir, run, ignore=shutil.ignore_patterns("corpus", "*.model"))
    shutil.copytree(text, corrected)
    for file in corrected.glob("train.*"):
        file.write_text(file.read_text().replace("a", "ab"))
    command("check", f"--config.data.directory={corrected}", workdir=run)
    this = open_run(run)
    assert this.config.data.directory == str(corrected)
    assert this.record.text == open_prepared(run).report["text"]


def test_without_a_workdir_only_the_page_is_left(check, tmp_path, monkeypatch):
    """--memory_gib also searches the largest microbatch."""
    searched = []

    def largest_microbatch(learner, shape, budget, *, unit, tokens_per_update):
        searched.append(learner.init.args[0].rematerialise)
        assert (budget, unit, tokens_per_update) == (2**30, 8, 512)
        return Microbatch(640, 2**29, is_whole_update=True)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(estimates, "step_memory", lambda *_, **__: StepMemory(1, 2, 3))
    monkeypatch.setattr(estimates, "largest_microbatch", largest_microbatch)
    page = tmp_path / "page.html"
    update = "--config.training.tokens_per_update=512"
    answer = check(f"--output={page}", "--memory_gib=1", update)
    result = answer.result
    assert list(tmp_path.iterdir()) == [page]
    assert "dev: 1 pair of 20 with a blank source</a>: correct" in page.read_text()
    assert searched == [False, True]
    assert result["bytes_per_device"] == 1 + 2 + 3  # as the search counts
    assert result["largest_microbatches"]["rematerialised"]["tokens"] == 640
    for said in (
        "kept only if a run is given",
        "18 of 20 pairs kept, dropped: 1 empty, 1 duplicate",
        f"{result['parameters']:,} parameters",
        "up to 2 microbatches an update",
        "dev: 19 pairs of 20 with a source that train has too",
        "train: preparing drops 1 empty, 1 duplicate",
        "rematerialise=True --config.training.tokens_per_microbatch=640 takes 0.50 GiB",
        "verdict     fits: 0.00 GiB of 1.00 GiB",
    ):
        assert said in answer.err


def test_the_verdict_says_first_whether_the_run_fits(caplog):
    figures = {
        "bytes_per_device": 2**31, "bytes_available": 2**30, "fits": False,
        "updates_per_epoch": 1200, "seconds_per_update_estimate": 0.5, "epochs": 2.5,
        "flops_per_update": 10**9, "largest_microbatches": None, "warnings": 3,
        "load": 99.5,
    }  # fmt: skip
    found = {"plain": None, "rematerialised": {"flags": "--config.x=True"}}
    with caplog.at_level(logging.INFO, logger="jaxformer"):
        report_verdict(figures, steps=3000)
        figures["epochs"] = 25000.0
        for largest in found, dict.fromkeys(found):
            report_verdict(figures | {"largest_microbatches": largest}, steps=3000)
    first, cure, count, epoch, epochs, _, busy = caplog.messages[0].splitlines()
    assert first.startswith("verdict     does NOT fit: 2.00 GiB of 1.00 GiB")
    assert "3 warnings about the text, listed above" in count
    assert "the machine was busy, with a load of 99.5 on" in busy
    assert "0:10:00 an epoch of 1,200 updates" in epoch
    assert "2.5 epochs in training.steps=3,000, about 0:25:00" in epochs
    assert "lower training.tokens_per_microbatch; --memory_gib=0 finds" in cure
    assert "\n            add --config.x=True\n" in caplog.messages[1]
    assert " 25,000 epochs in training.steps" in caplog.messages[1]
    assert "\n            lower batches.row_multiple, the length" in caplog.messages[2]


def test_scores_of_the_nearest_number_of_pairs_are_quoted(caplog):
    """Nearest by factor: 3,000 pairs are nearer to 1,000 than to 10,000."""
    with caplog.at_level(logging.INFO, logger="jaxformer"):
        found = report_quality(3_000)
    assert {row["pairs"] for row in found} == {1_000}
    assert all(row["bleu"] for row in found)
    assert (
        "1,000 pairs of everyday English-German, at most 7,200 updates: BLEU"
        in caplog.messages[0]
    )
    recipe = "own_text_rows:few, the choice of jaxformer new: BLEU 20.3 with 10,000"
    assert f"quality     {recipe}" in caplog.messages[0]
    best = f"{found[0]['bleu'][0]:.1f} with tatoeba_rows:tiny_1000"
    assert best in caplog.messages[0]
    assert {row["pairs"] for row in report_quality(9_000)} == {10_000}


@pytest.mark.parametrize("pairs", [0, 100, 10**8])
def test_nothing_is_quoted_for_other_amounts_of_text(pairs, caplog):
    assert report_quality(pairs) == []
    assert not caplog.messages


def test_nothing_is_quoted_for_the_built_in_grammar(check, monkeypatch):
    """Its sentences are easier than those of the table."""
    monkeypatch.setattr(estimates, "step_memory", lambda *_, **__: StepMemory(1, 2, 3))
    text = {"corpus": "builtin:grammar", "train": 900, "dev": 9, "vocab_size": 300}
    answer = check(*config_flags("data", **text, test=9))
    assert answer.result["measured_quality"] == []
    assert "verdict" in answer.err
