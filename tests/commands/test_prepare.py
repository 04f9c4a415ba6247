"""jaxformer prepare: text in, a tokeniser and a tokenised corpus out."""

import hashlib
import json
import shutil

import pytest

from tests.commands.runs import config_flags
from tests.runs.test_workdir import tokenizer_of


@pytest.fixture(scope="module")
def prepared(command, toy, tmp_path_factory):
    """A workdir in which only `prepare` has run, and its Answer."""
    workdir = tmp_path_factory.mktemp("prepared") / "run"
    return workdir, command("prepare", *toy.flags, workdir=workdir)


def test_the_workdir_holds_config_tokenizer_and_corpus(prepared, toy, trained):
    workdir, answer = prepared
    sizes = ["vocab_size", "source_vocab_size"]
    assert list(answer.result) == ["pairs", "dropped", *sizes, "direction"]
    assert answer.result["direction"] == "en-de"
    assert set(answer.result["dropped"]) == {"empty", "too_long", "ratio", "duplicate"}
    lines = (toy.directory / "train.en").read_text().count("\n")
    assert answer.result["pairs"] + sum(answer.result["dropped"].values()) == lines
    record = json.loads((workdir / "config.json").read_text())
    assert record["config"]["model"]["d_model"] == 32
    assert record["config"]["data"]["directory"] == str(toy.directory)
    assert record["direction"] == "en-de"
    model = (workdir / "tokenizer.model").read_bytes()
    assert record["tokenizer"]["sha256"] == hashlib.sha256(model).hexdigest()
    assert (trained.workdir / "tokenizer.model").read_bytes() == model
    names = {path.name for path in workdir.iterdir()}  # nothing is trained
    assert names == {".lock", "config.json", "tokenizer.model", "corpus"}


def test_model_and_folder_of_the_text_may_change_before_training(
    command, toy, prepared, tmp_path
):
    workdir = shutil.copytree(prepared[0], tmp_path / "own")
    moved = shutil.copytree(toy.directory, tmp_path / "moved")
    flags = ("--config.model.d_ff=48", f"--config.data.directory={moved}")
    result = command("prepare", toy.flags[0], *flags, workdir=workdir).result
    assert result == prepared[1].result
    record = json.loads((workdir / "config.json").read_text())
    assert record["config"]["model"]["d_ff"] == 48


def test_a_trained_run_is_prepared_again_only_with_its_text(
    command, toy, trained, tmp_path
):
    workdir = shutil.copytree(trained.workdir, tmp_path / "own")
    shutil.rmtree(workdir / "corpus")
    other = shutil.copytree(toy.directory, tmp_path / "other")
    with (other / "train.en").open("a") as file, (other / "train.de").open("a") as de:
        file.write("bo da\n")
        de.write("SU RI\n")
    flags = toy.flags[0], f"--config.data.directory={other}"
    complaint = command("train", *flags, workdir=workdir).complaint
    assert "is not what they were trained on; put the text or the corpus" in complaint
    assert not (workdir / "corpus").exists()
    assert command("prepare", *toy.flags, workdir=workdir).code == 0


def test_a_run_has_its_text_by_whatever_path(command, toy, tmp_path, monkeypatch):
    """Every command refuses other text, also one that would not read it."""

    def paths(folder, train="train", dev="dev"):
        given = {
            key: f"{folder}/{name}.en,{folder}/{name}.de"
            for key, name in (("train", train), ("dev", dev), ("test", dev))
        }
        return config_flags("data", corpus="files", **given)

    folder, same = toy.directory, f"{toy.directory}/../{toy.directory.name}"
    command("prepare", *toy.flags, *paths(folder), workdir=tmp_path)
    answer = command("prepare", *toy.flags, *paths(same), workdir=tmp_path)
    assert "as it was prepared" in answer.err

    def score(flags):
        return command("score", *flags, "--split=dev", workdir=tmp_path).complaint

    for other in paths(folder, dev="train"), paths(folder, dev="gone"):
        assert "use another run folder" in score(other)
    assert "no checkpoint" in score(paths(same))
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    hashes = [json.loads((tmp_path / "corpus" / "report.json").read_text())["text"]]
    monkeypatch.setattr("jaxformer.corpus.survey._hash_text", lambda _: hashes.pop())
    again = paths(f"{same}/../{folder.name}")
    assert command("check", *toy.flags, *again, workdir=tmp_path).code == 0
    assert not hashes


def test_a_tokeniser_of_ones_own_is_used_and_never_replaced(command, toy, tmp_path):
    own = tokenizer_of(["x y z"], tmp_path / "tokenizer.model")
    flags = (*toy.flags, f"--config.data.vocab_size={own.vocab_size}")
    answer = command("prepare", *flags, workdir=tmp_path)
    assert answer.result["vocab_size"] == own.vocab_size
    assert "using a tokeniser of 11 ids" in answer.err
    assert (tmp_path / "tokenizer.model").read_bytes() == own.source_model
    shutil.rmtree(tmp_path / "corpus")
    assert command("prepare", *flags, workdir=tmp_path).result == answer.result


def test_a_given_tokeniser_is_used_and_not_needed_again(command, toy, tmp_path):
    own = tokenizer_of(["x y z"], tmp_path / "own.model")
    run, given = tmp_path / "run", f"--config.data.tokenizer={tmp_path}/own.model"
    answer = command("prepare", *toy.flags, given, workdir=run)
    assert answer.result["vocab_size"] == own.vocab_size
    assert command("prepare", *toy.flags, workdir=run).result == answer.result
    (tmp_path / "own.model").unlink()
    assert command("prepare", *toy.flags, given, workdir=run).result == answer.result
