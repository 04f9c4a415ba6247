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
    flags = ("--mode=export", "--format=huggingface")
    return lambda workdir, folder: (
        command(*flags, f"--workdir={workdir}", f"--output={folder}").result
    )


@pytest.fixture(scope="module")
def exported(export, trained, tmp_path_factory):
    """The toy's run as a Marian checkpoint."""
    folder = tmp_path_factory.mktemp("exported") / "marian"
    assert export(trained.workdir, folder)["format"] == "huggingface"
    return folder


@pytest.fixture(scope="module")
def import_(command, toy, exported):
    """Import a checkpoint, by default that of the toy's run."""
    common = (*toy.flags, "--mode=import")
    return lambda workdir, folder=exported, *flags: command(
        *common, f"--input={folder}", f"--workdir={workdir}", *flags
    )


@pytest.fixture(scope="module")
def imported(import_, tmp_path_factory):
    """A workdir, which tests do not change, and the command's answer."""
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
    assert answer.err.startswith(f"importing {exported}\n")
    assert f"--mode=train --workdir={workdir}" in answer.err
    files = {path.name: path.read_bytes() for path in exported.iterdir()}
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == files.pop(path.name), path
    assert files == {}


def test_an_imported_model_translates_and_trains_on(
    command, use, toy, trained, imported, tmp_path, metrics
):
    """On text that is then prepared with the imported tokeniser."""
    stdin = "".join(f"{line}\n" for line in toy.test).encode()
    workdir = shutil.copytree(imported[0], tmp_path / "own")
    answer = command("--mode=translate", f"--workdir={workdir}", stdin=stdin)
    assert answer.lines == use("translate", lines=toy.test).lines
    tokenizer = (workdir / "tokenizer.model").read_bytes()
    flags = ("--config.training.steps=2", "--config.training.log_every=1")
    result = command(*toy.flags, f"--workdir={workdir}", *flags).result
    assert result["step"] == 2
    losses = [line["loss"] for line in metrics(workdir, "train")]
    assert len(losses) == 2
    last = metrics(trained.workdir, "train")[-1]["loss"]
    assert max(losses) < 1.5 * last < 1  # a new model begins with log(60) = 4.1
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


def test_a_failed_import_leaves_nothing(
    import_, exported, trained, tmp_path, monkeypatch
):
    def fail(*_):
        raise InputError("the disk is full")

    assert f"{trained.workdir} exists already" in import_(trained.workdir).complaint
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
    assert model["dropout"] == 0.02  # the config's
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
