"""--mode=prepare and --mode=check on the command line: text in, one report out."""

import hashlib
import json
import shutil

import pytest


@pytest.fixture(scope="module")
def prepared(command, toy, tmp_path_factory):
    """A workdir in which only `prepare` has run, and its Answer."""
    workdir = tmp_path_factory.mktemp("prepared") / "run"
    return workdir, command(*toy.flags, f"--workdir={workdir}", "--mode=prepare")


def state(workdir):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in workdir.rglob("*")
        if path.is_file()
    }


def test_result_is_one_line_of_json_with_the_promised_keys(prepared, toy):
    result = prepared[1].result
    assert list(result) == ["pairs", "dropped", "vocab_size", "direction"]
    lines = (toy.directory / "train.en").read_text().count("\n")
    assert result["pairs"] + sum(result["dropped"].values()) == lines
    assert set(result["dropped"]) == {"empty", "too_long", "ratio", "duplicate"}
    assert result["direction"] == "en-de"


def test_what_was_dropped_is_counted(command, toy, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for language, extra in (("en", "bo\nbo\n\n"), ("de", "SU\nSU\nRI\n")):
        for split in ("train", "dev", "test"):
            lines = (toy.directory / f"{split}.{language}").read_text()
            (text / f"{split}.{language}").write_text(lines + extra)
    result = command(
        f"--config={toy.config}", f"--config.data.directory={text}",
        f"--workdir={tmp_path / 'run'}", "--mode=prepare",
    ).result  # fmt: skip
    assert result["dropped"]["empty"] == 1
    assert result["dropped"]["duplicate"] >= 1


def test_the_workdir_records_its_config_and_its_tokenizer(prepared, toy):
    workdir, _ = prepared
    record = json.loads((workdir / "config.json").read_text())
    assert record["config"]["model"]["d_model"] == 32
    assert record["config"]["data"]["directory"] == str(toy.directory)
    assert record["direction"] == "en-de"
    model = (workdir / "tokenizer.model").read_bytes()
    assert record["tokenizer"]["sha256"] == hashlib.sha256(model).hexdigest()
    assert {"jax", "flax", "sentencepiece"} <= set(record["versions"])


def test_nothing_is_trained(prepared):
    workdir, _ = prepared
    assert not (workdir / "checkpoints").exists()
    assert not (workdir / "metrics.jsonl").exists()


def test_preparing_again_changes_nothing(command, toy, prepared):
    workdir, first = prepared
    before = state(workdir)
    again = command(*toy.flags, f"--workdir={workdir}", "--mode=prepare")
    assert again.result == first.result
    assert state(workdir) == before


def test_the_same_text_gives_the_same_workdir(prepared, trained):
    ours, theirs = (path / "tokenizer.model" for path in (prepared[0], trained[0]))
    assert ours.read_bytes() == theirs.read_bytes()


def test_check_reports_what_the_run_would_be(command, toy, prepared):
    workdir, first = prepared
    before = state(workdir)
    result = command(*toy.flags, f"--workdir={workdir}", "--mode=check").result
    assert {
        "pairs", "dropped", "parameters", "tokens_per_update", "updates_per_epoch",
        "shapes", "real_token_share", "bytes_per_device",
    } <= set(result)  # fmt: skip
    assert result["pairs"] == first.result["pairs"]
    assert state(workdir) == before


def test_what_is_not_learnt_yet_may_become_another_model(
    command, toy, prepared, tmp_path
):
    workdir = shutil.copytree(prepared[0], tmp_path / "own")
    wider = command(
        *toy.flags, f"--workdir={workdir}", "--mode=prepare", "--config.model.d_ff=48"
    )
    assert wider.result == prepared[1].result
    record = json.loads((workdir / "config.json").read_text())
    assert record["config"]["model"]["d_ff"] == 48


def test_text_may_move_once_it_is_prepared(command, toy, prepared, tmp_path):
    workdir = shutil.copytree(prepared[0], tmp_path / "own")
    again = command(
        f"--config={toy.config}", "--config.data.directory=elsewhere",
        f"--workdir={workdir}", "--mode=prepare",
    )  # fmt: skip
    assert again.result == prepared[1].result
