"""--mode=import: another program's checkpoint becomes a run like any other."""

import json
import shutil

import pytest

from jaxformer.errors import InputError
from tests.export.published import make_published

pytest.importorskip("safetensors", reason="not installed: extra `export`")


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.fixture(scope="module")
def exported(command, trained, tmp_path_factory):
    """The toy's run as a Marian checkpoint."""
    folder = tmp_path_factory.mktemp("exported") / "marian"
    answer = command(
        "--mode=export", "--format=huggingface", f"--workdir={trained.workdir}",
        f"--output={folder}",
    )  # fmt: skip
    assert answer.result["format"] == "huggingface"
    return folder


@pytest.fixture(scope="module")
def imported(command, toy, exported, tmp_path_factory):
    """And back: a workdir, and what the command said; not to be changed."""
    workdir = tmp_path_factory.mktemp("imported") / "run"
    answer = command(
        *toy.flags, "--mode=import", f"--input={exported}", f"--workdir={workdir}"
    )
    return workdir, answer


def test_a_round_trip_gives_back_run_and_tokeniser(imported, trained):
    workdir, answer = imported
    names = {path.name for path in workdir.iterdir()}
    assert names == {"config.json", "tokenizer.model", "checkpoints"}
    assert [path.name for path in workdir.parent.iterdir()] == ["run"]
    for name in ("tokenizer.model", "config.json"):
        assert (workdir / name).read_bytes() == (trained.workdir / name).read_bytes()
    record = json.loads((workdir / "config.json").read_text())
    assert answer.result["vocab_size"] == record["tokenizer"]["vocab_size"]
    assert answer.result["step"] == 0
    assert answer.result["direction"] == "en-de"
    assert f"--mode=train --workdir={workdir}" in answer.err


def test_a_round_trip_gives_back_every_parameter(command, imported, exported, tmp_path):
    again = tmp_path / "again"
    answer = command(
        "--mode=export", "--format=huggingface", f"--workdir={imported[0]}",
        f"--output={again}",
    )  # fmt: skip
    assert answer.result["parameters"] == imported[1].result["parameters"]
    assert contents(again) == contents(exported)


def test_an_imported_model_translates(command, toy, trained, imported):
    text = "".join(f"{line}\n" for line in toy.test).encode()
    ours, theirs = (
        command("--mode=translate", f"--workdir={workdir}", stdin=text).lines
        for workdir in (trained.workdir, imported[0])
    )
    assert theirs == ours


def test_training_goes_on_from_what_was_imported(command, toy, imported, tmp_path):
    """With the tokeniser that was imported, on text that is prepared then."""
    workdir = shutil.copytree(imported[0], tmp_path / "own")
    (before,) = (workdir / "tokenizer.model",)
    hashed = before.read_bytes()
    answer = command(
        *toy.flags, f"--workdir={workdir}", "--config.training.steps=2",
        "--config.training.log_every=1",
    )  # fmt: skip
    assert answer.result["step"] == 2
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 2
    assert max(losses) < 0.3  # of log(60) = 4.1 that a new model begins with
    assert before.read_bytes() == hashed
    report = json.loads((workdir / "corpus" / "report.json").read_text())
    record = json.loads((workdir / "config.json").read_text())
    assert report["tokenizer"] == record["tokenizer"]["sha256"]


@pytest.mark.parametrize(
    ("left_out", "said"), [("--input", "--input is missing"), ("--config", "--config")]
)
def test_what_is_missing_is_one_sentence(
    command, toy, exported, tmp_path, left_out, said
):
    flags = [
        *toy.flags, "--mode=import", f"--input={exported}",
        f"--workdir={tmp_path / 'new'}",
    ]  # fmt: skip
    kept = [flag for flag in flags if not flag.startswith(left_out)]
    assert said in command(*kept).complaint
    assert list(tmp_path.iterdir()) == []


def test_a_workdir_that_holds_anything_is_left_alone(
    command, toy, exported, trained, tmp_path
):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for workdir in (trained.workdir, tmp_path / "full", tmp_path / "full" / "mine"):
        complaint = command(
            *toy.flags, "--mode=import", f"--input={exported}", f"--workdir={workdir}"
        ).complaint
        assert f"--workdir={workdir} is not empty" in complaint
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine"]


def test_what_cannot_be_imported_leaves_nothing(command, toy, exported, tmp_path):
    spoilt = shutil.copytree(exported, tmp_path / "spoilt")
    (spoilt / "target.spm").write_bytes(b"text")
    complaint = command(
        *toy.flags, "--mode=import", f"--input={spoilt}", f"--workdir={tmp_path / 'w'}"
    ).complaint
    assert "not a SentencePiece model" in complaint
    assert not [path for path in tmp_path.iterdir() if path != spoilt]


def test_a_save_that_fails_leaves_nothing(
    command, toy, exported, tmp_path, monkeypatch
):
    def fail(*_):
        raise InputError("the disk is full")

    monkeypatch.setattr("jaxformer.training.checkpoint.Checkpoints.save", fail)
    answer = command(
        *toy.flags,
        "--mode=import",
        f"--input={exported}",
        f"--workdir={tmp_path / 'w'}",
    )
    assert answer.complaint == "the disk is full"
    assert list(tmp_path.iterdir()) == []


# --- a published model ----------------------------------------------------------------


@pytest.mark.slow
def test_a_published_model_is_fine_tuned(command, toy, tmp_path):
    """Two tokeniser models, biases everywhere and another activation."""
    pytest.importorskip("torch", reason="PyTorch is not installed: extra `torch`")
    transformers = pytest.importorskip(
        "transformers", reason="Transformers is not installed: extra `torch`"
    )
    transformers.utils.logging.disable_progress_bar()
    sources, targets = (
        (toy.directory / f"train.{language}").read_text().splitlines()
        for language in ("en", "de")
    )
    make_published(tmp_path / "opus", sources, targets)
    workdir = tmp_path / "run"
    imported = command(
        *toy.flags, "--mode=import", f"--input={tmp_path / 'opus'}",
        f"--workdir={workdir}", "--config.training.steps=60",
        "--config.training.ema_decay=0.9", "--config.optimizer.warmup_steps=10",
        "--config.training.log_every=10",
    )  # fmt: skip
    hashed = (workdir / "tokenizer.model").read_bytes()
    model = json.loads((workdir / "config.json").read_text())["config"]["model"]
    assert (model["activation"], model["attention_bias"]) == ("swish", True)
    assert model["dropout"] == 0.0  # the config's
    started = command(
        "--mode=score", f"--workdir={workdir}",
        f"--source={toy.directory / 'dev.en'}",
        f"--reference={toy.directory / 'dev.de'}",
    ).result  # fmt: skip
    ended = command("--mode=train", f"--workdir={workdir}").result
    assert ended["step"] == 60
    assert ended["nll"] < 0.5 * -started["log_probability"] / started["tokens"]
    assert (workdir / "tokenizer.model").read_bytes() == hashed
    parameters = imported.result["parameters"]
    again = command(
        "--mode=export", "--format=huggingface", f"--workdir={workdir}",
        f"--output={tmp_path / 'again'}",
    ).result  # fmt: skip
    assert again["parameters"] == parameters
    for name in ("source.spm", "target.spm"):
        before = (tmp_path / "opus" / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == before
    report = json.loads((workdir / "corpus" / "report.json").read_text())
    assert report["train"]["source"]["unknown"] == 0
    assert report["train"]["target"]["unknown"] == 0
