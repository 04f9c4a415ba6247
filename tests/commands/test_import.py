"""--mode=import: another program's checkpoint becomes a run like any other."""

import json
import shutil

import pytest

from jaxformer.errors import InputError
from tests.export.published import make_published

pytest.importorskip("safetensors", reason="not installed: extra `export`")


@pytest.fixture(scope="module")
def export(command):
    """Export a workdir as a Marian checkpoint; returns the result."""

    def run(workdir, folder):
        flags = ("--format=huggingface", f"--workdir={workdir}", f"--output={folder}")
        return command("--mode=export", *flags).result

    return run


@pytest.fixture(scope="module")
def exported(export, trained, tmp_path_factory):
    """The toy's run as a Marian checkpoint."""
    folder = tmp_path_factory.mktemp("exported") / "marian"
    assert export(trained.workdir, folder)["format"] == "huggingface"
    return folder


@pytest.fixture(scope="module")
def import_(command, toy, exported):
    """Import a checkpoint, by default that of the toy's run."""

    def run(workdir, folder=exported, *flags):
        flags = (f"--input={folder}", f"--workdir={workdir}", *flags)
        return command(*toy.flags, "--mode=import", *flags)

    return run


@pytest.fixture(scope="module")
def imported(import_, tmp_path_factory):
    """A workdir, and the command's answer; not to be changed."""
    workdir = tmp_path_factory.mktemp("imported") / "run"
    return workdir, import_(workdir)


def test_a_round_trip_gives_back_the_run(imported, trained, export, exported, tmp_path):
    workdir, answer = imported
    names = {path.name for path in workdir.iterdir()}
    assert names == {"config.json", "tokenizer.model", "checkpoints"}
    for name in ("tokenizer.model", "config.json"):
        assert (workdir / name).read_bytes() == (trained.workdir / name).read_bytes()
    record = json.loads((workdir / "config.json").read_text())
    again = export(workdir, tmp_path / "again")
    assert answer.result == {
        "step": 0, "direction": "en-de", "parameters": again["parameters"],
        "vocab_size": record["tokenizer"]["vocab_size"],
    }  # fmt: skip
    assert f"--mode=train --workdir={workdir}" in answer.err
    files = {path.name: path.read_bytes() for path in exported.iterdir()}
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == files.pop(path.name), path
    assert files == {}


def test_an_imported_model_translates_and_trains_on(
    command, toy, trained, imported, tmp_path
):
    """On text that is prepared then, with the tokeniser that was imported."""
    text = "".join(f"{line}\n" for line in toy.test).encode()
    workdir = shutil.copytree(imported[0], tmp_path / "own")
    ours, theirs = (
        command("--mode=translate", f"--workdir={folder}", stdin=text).lines
        for folder in (trained.workdir, workdir)
    )
    assert theirs == ours
    tokenizer = (workdir / "tokenizer.model").read_bytes()
    answer = command(
        *toy.flags, f"--workdir={workdir}", "--config.training.steps=2",
        "--config.training.log_every=1",
    )  # fmt: skip
    assert answer.result["step"] == 2
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 2
    assert max(losses) < 0.3  # of log(60) = 4.1 that a new model begins with
    assert (workdir / "tokenizer.model").read_bytes() == tokenizer
    report = json.loads((workdir / "corpus" / "report.json").read_text())
    record = json.loads((workdir / "config.json").read_text())
    assert report["tokenizer"] == record["tokenizer"]["sha256"]


@pytest.mark.parametrize("flag", ["--input", "--config"])
def test_a_missing_flag_is_named(command, toy, exported, tmp_path, flag):
    flags = (*toy.flags, f"--input={exported}", f"--workdir={tmp_path / 'new'}")
    kept = [given for given in flags if not given.startswith(flag)]
    assert f"{flag} is missing" in command("--mode=import", *kept).complaint
    assert list(tmp_path.iterdir()) == []


def test_a_workdir_that_exists_is_left_alone(import_, trained, tmp_path):
    (tmp_path / "file").write_text("mine")
    for workdir in (trained.workdir, tmp_path / "file"):
        assert f"{workdir} exists already" in import_(workdir).complaint
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failed_import_leaves_nothing(import_, exported, tmp_path, monkeypatch):
    def fail(*_):
        raise InputError("the disk is full")

    monkeypatch.setattr("jaxformer.training.checkpoint.Checkpoints.save", fail)
    assert import_(tmp_path / "run").complaint == "the disk is full"
    assert list(tmp_path.iterdir()) == []
    spoilt = shutil.copytree(exported, tmp_path / "spoilt")
    (spoilt / "target.spm").write_bytes(b"text")
    said = import_(tmp_path / "run", spoilt).complaint
    assert "not a SentencePiece model" in said
    assert list(tmp_path.iterdir()) == [spoilt]


@pytest.mark.slow
def test_a_published_model_is_fine_tuned(command, export, import_, toy, tmp_path):
    """One with two tokeniser models, biases everywhere and another activation."""
    pytest.importorskip("torch", reason="PyTorch is not installed: extra `torch`")
    pytest.importorskip("transformers", reason="not installed: extra `torch`")
    workdir, opus = tmp_path / "run", tmp_path / "opus"
    train = ((toy.directory / f"train.{side}").read_text() for side in ("en", "de"))
    make_published(opus, *(text.splitlines() for text in train))
    imported = import_(
        workdir, opus, "--config.training.steps=60",
        "--config.training.ema_decay=0.9", "--config.optimizer.warmup_steps=10",
    )  # fmt: skip
    model = json.loads((workdir / "config.json").read_text())["config"]["model"]
    assert (model["activation"], model["attention_bias"]) == ("swish", True)
    assert model["dropout"] == 0.0  # the config's
    dev = [f"--source={toy.directory}/dev.en", f"--reference={toy.directory}/dev.de"]
    before = command("--mode=score", f"--workdir={workdir}", *dev).result
    after = command("--mode=train", f"--workdir={workdir}").result
    assert after["step"] == 60
    assert after["nll"] < 0.5 * -before["log_probability"] / before["tokens"]
    again = export(workdir, tmp_path / "again")
    assert again["parameters"] == imported.result["parameters"]
    for name in ("source.spm", "target.spm"):
        assert (tmp_path / "again" / name).read_bytes() == (opus / name).read_bytes()
    report = json.loads((workdir / "corpus" / "report.json").read_text())
    assert [report["train"][side]["unknown"] for side in ("source", "target")] == [0, 0]
