"""--mode=prepare: text in, a tokeniser and a tokenised corpus out."""

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


def test_the_workdir_holds_config_tokenizer_and_corpus(prepared, toy, trained):
    workdir, answer = prepared
    assert list(answer.result) == ["pairs", "dropped", "vocab_size", "direction"]
    assert answer.result["direction"] == "en-de"
    record = json.loads((workdir / "config.json").read_text())
    assert record["config"]["model"]["d_model"] == 32
    assert record["config"]["data"]["directory"] == str(toy.directory)
    assert record["direction"] == "en-de"
    model = (workdir / "tokenizer.model").read_bytes()
    assert record["tokenizer"]["sha256"] == hashlib.sha256(model).hexdigest()
    assert (trained.workdir / "tokenizer.model").read_bytes() == model
    names = {path.name for path in workdir.iterdir()}
    assert names == {"config.json", "tokenizer.model", "corpus"}  # nothing is trained


def test_dropped_pairs_are_counted(command, toy, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for language, extra in (("en", "bo\nbo\n\n"), ("de", "SU\nSU\nRI\n")):
        for split in ("train", "dev", "test"):
            lines = (toy.directory / f"{split}.{language}").read_text()
            (text / f"{split}.{language}").write_text(lines + extra)
    flags = (f"--config.data.directory={text}", f"--workdir={tmp_path / 'run'}")
    result = command(toy.flags[0], *flags, "--mode=prepare").result
    assert set(result["dropped"]) == {"empty", "too_long", "ratio", "duplicate"}
    assert result["dropped"]["empty"] == 1
    assert result["dropped"]["duplicate"] >= 1
    lines = (text / "train.en").read_text().count("\n")
    assert result["pairs"] + sum(result["dropped"].values()) == lines


def test_preparing_or_checking_again_changes_nothing(command, toy, prepared):
    workdir, first = prepared
    before = state(workdir)
    flags = (*toy.flags, f"--workdir={workdir}")
    assert command(*flags, "--mode=prepare").result == first.result
    checked = command(*flags, "--mode=check").result
    assert {
        "pairs", "dropped", "parameters", "tokens_per_update", "updates_per_epoch",
        "shapes", "real_token_share", "bytes_per_device",
    } <= set(checked)  # fmt: skip
    assert checked["pairs"] == first.result["pairs"]
    assert state(workdir) == before


def test_model_and_place_of_the_text_may_change_before_training(
    command, toy, prepared, tmp_path
):
    workdir = shutil.copytree(prepared[0], tmp_path / "own")
    flags = ("--config.model.d_ff=48", "--config.data.directory=elsewhere")
    flags += (f"--workdir={workdir}", "--mode=prepare")
    assert command(toy.flags[0], *flags).result == prepared[1].result
    record = json.loads((workdir / "config.json").read_text())
    assert record["config"]["model"]["d_ff"] == 48
