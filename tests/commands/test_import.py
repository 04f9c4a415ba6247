"""jaxformer import: another program's checkpoint becomes a run like any other."""

import hashlib
import json
import re
import shutil
from os.path import relpath
from unittest import mock

import pytest

from jaxformer.runs import estimates
from jaxformer.system.errors import InputError
from jaxformer.text.tokenizer import Tokenizer
from tests.commands.runs import config_flags, losses
from tests.commands.test_export import program_of_card, run_program

pytest.importorskip("safetensors", reason="not installed: extra `export`")


@pytest.fixture(scope="module")
def export(command):
    """Export a workdir as a Marian checkpoint; returns the result."""
    return lambda workdir, folder: (
        command(
            "export", "--format=huggingface", f"--output={folder}", workdir=workdir
        ).result
    )  # fmt: skip


@pytest.fixture(scope="module")
def exported(export, trained, tmp_path_factory):
    """The toy's run as a Marian checkpoint."""
    folder = tmp_path_factory.mktemp("exported") / "marian"
    assert export(trained.workdir, folder)["format"] == "huggingface"
    return folder


@pytest.fixture(scope="module")
def import_(command, toy, exported):
    """Import a checkpoint, by default that of the toy's run."""
    return lambda workdir, folder=exported, *flags: command(
        "import", *toy.flags, f"--input={folder}", *flags, workdir=workdir
    )


@pytest.fixture
def nllb(toy, tmp_path, transformers):
    """An untrained NLLB for the text of the toy."""
    text = [(toy.directory / f"train.{side}").read_text() for side in ("en", "de")]
    given = tmp_path / "nllb", "".join(text).splitlines()
    transformers("make_m2m100", *given, is_nllb=True)
    return given[0]


@pytest.fixture(scope="module")
def imported(import_, tmp_path_factory):
    """A workdir, which tests do not change, and the command's answer."""
    workdir = tmp_path_factory.mktemp("imported") / "run"
    return workdir, import_(workdir)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.*")}


def test_a_round_trip_gives_back_the_run(imported, trained, export, exported, tmp_path):
    workdir, answer = imported
    files, originals = contents(workdir), contents(trained.workdir)
    assert files.keys() == {"config.json", "tokenizer.model"}
    assert files["tokenizer.model"] == originals["tokenizer.model"]
    record, original = (json.loads(each["config.json"]) for each in (files, originals))
    for each in (record, original):
        del each["sha256"], each["run"]
    told = {"text": None, "imported": "marian"}  # an export does not tell its text
    assert record == {**original, **told}
    again = export(workdir, tmp_path / "again")
    found, expected = contents(tmp_path / "again"), contents(exported)
    assert found.pop("README.md") != expected.pop("README.md")  # which has its scores
    assert found == expected
    assert answer.result == {
        "step": 0, "direction": "en-de", "parameters": again["parameters"],
        "vocab_size": json.loads(files["config.json"])["tokenizer"]["vocab_size"],
    }  # fmt: skip
    assert answer.err.startswith(f"importing {exported}\n")
    assert f"jaxformer train {workdir}" in answer.err


def test_an_imported_model_translates_and_trains_on(
    command, use, toy, trained, imported, tmp_path
):
    """On text that is then prepared with the imported tokeniser."""
    workdir = shutil.copytree(imported[0], tmp_path / "own")
    answer = command("translate", workdir=workdir, stdin=toy.test)
    assert answer.lines == use("translate", stdin=toy.test).lines
    tokenizer = (workdir / "tokenizer.model").read_bytes()
    flags = config_flags("training", steps=2, log_every=1)
    assert command("train", *toy.flags, *flags, workdir=workdir).result["step"] == 2
    last = losses(trained.workdir)[100]
    found = losses(workdir)
    assert found.keys() == {1, 2}
    assert max(found.values()) < 1.5 * last < 1  # a new model begins with log(60) = 4.1
    assert (workdir / "tokenizer.model").read_bytes() == tokenizer
    report = json.loads((workdir / "corpus" / "report.json").read_text())
    assert report["tokenizer"] == hashlib.sha256(tokenizer).hexdigest()


def test_a_failed_import_leaves_nothing(
    import_, exported, trained, tmp_path, monkeypatch
):
    assert f"{trained.workdir} exists already" in import_(trained.workdir).complaint
    spoilt = shutil.copytree(exported, tmp_path / "spoilt")
    for content in (b"text", b""):
        (spoilt / "target.spm").write_bytes(content)
        complaint = import_(tmp_path / "run", spoilt).complaint
        assert "not a SentencePiece model" in complaint
    tokenizer = "--config.data.tokenizer=mine.model"
    complaint = import_(tmp_path / "run", exported, tokenizer).complaint
    assert (
        "leave out data.tokenizer=mine.model: the checkpoint has its own" in complaint
    )
    (spoilt / "source.spm").unlink()
    assert "source.spm cannot be read" in import_(tmp_path / "run", spoilt).complaint
    with mock.patch("jaxformer.text.tokenizer._MOST_BYTES", 99):
        assert "more than 99 bytes" in import_(tmp_path / "run").complaint
    (spoilt / "vocab.json").write_text(r'{"\ud800": 0}')
    assert "vocab.json is not a JSON" in import_(tmp_path / "run", spoilt).complaint
    full = mock.Mock(side_effect=InputError("the disk is full"))
    monkeypatch.setattr("jaxformer.training.checkpoint.Checkpoints.save", full)
    assert import_(tmp_path / "run").complaint == "the disk is full"
    assert list(tmp_path.iterdir()) == [spoilt]


@pytest.mark.nightly
def test_a_published_model_is_fine_tuned(command, import_, toy, tmp_path, transformers):
    """One with two tokeniser models, biases everywhere and another activation."""
    workdir, opus = tmp_path / "run", tmp_path / "opus"
    train = ((toy.directory / f"train.{side}").read_text() for side in ("en", "de"))
    transformers("make_published", opus, *(text.splitlines() for text in train))
    training = config_flags("training", steps=60, ema_decay=0.9)
    flags = (*training, "--config.optimizer.warmup_steps=10")
    assert import_(workdir, opus, *flags).code == 0
    model = json.loads((workdir / "config.json").read_text())["config"]["model"]
    assert (model["activation"], model["biases"]) == ("swish", "all")
    assert model["dropout"] == 0.02  # the config's
    dev = [f"--source={toy.directory}/dev.en", f"--reference={toy.directory}/dev.de"]
    before = command("score", *dev, workdir=workdir).result
    after = command("train", workdir=workdir).result
    assert after["step"] == 60
    assert after["nll"] < 0.5 * -before["log_probability"] / before["tokens"]
    report = json.loads((workdir / "corpus" / "report.json").read_text())
    assert [report["train"][side]["unknown"] for side in ("source", "target")] == [0, 0]


@pytest.mark.slow
def test_a_model_that_is_told_the_target_language(
    command, import_, toy, tmp_path, nllb
):
    """The tag of targets is given: it is in no text, and no score counts it."""
    workdir = tmp_path / "run"
    flags = config_flags("training", steps=3, save_every=3, eval_every=3)
    flags += config_flags("data", character_coverage=0.9999)
    assert import_(workdir, nllb, *flags).code == 0
    data = json.loads((workdir / "config.json").read_text())["config"]["data"]
    assert (data["tag"], data["target_tag"]) == (">>eng_Latn<<", ">>deu_Latn<<")
    assert command("train", workdir=workdir).result["step"] == 3
    report = json.loads((workdir / "corpus" / "report.json").read_text())
    assert report["train"]["dropped"]["empty"] == 0
    found = command("translate", "--json", workdir=workdir, stdin=toy.test).lines
    best = [json.loads(line)["hypotheses"][0] for line in found]
    assert {each["pieces"][0] for each in best} == {">>deu_Latn<<"}
    assert not any(">>" in each["text"] for each in best)
    hypotheses = tmp_path / "found.jsonl"
    hypotheses.write_text("".join(f"{line}\n" for line in found))
    again = command("score", "--json", f"--reference={hypotheses}", workdir=workdir)
    scores = [json.loads(line)["log_probability"] for line in again.lines[:-1]]
    expected = [each["log_probability"] for each in best]
    assert scores == pytest.approx(expected, abs=1e-3)
    pairs = [f"--source={toy.directory}/dev.en", f"--reference={toy.directory}/dev.de"]
    plain, in_json = (
        command("score", *how, *pairs, workdir=workdir) for how in ([], ["--json"])
    )
    last = json.loads(in_json.lines[-1])
    for key, value in plain.result.items():
        assert last[key] == pytest.approx(value, rel=1e-6)
    lines = command("align", *pairs, workdir=workdir).lines
    words = [len(line.split()) for line in pairs_of_dev(toy)]
    for line, count in zip(lines, words, strict=True):
        links = [link.split("-") for link in line.split()]
        assert max(int(target) for _, target in links) == count - 1
    for side in ("en", "de"):
        (tmp_path / f"odd.{side}").write_text("a ☃\n")
    odd = f"--config.data.test={relpath(tmp_path / 'odd', toy.directory)}"
    quoted = mock.patch.object(estimates, "report_quality", return_value=[])
    with quoted as report_quality:
        checked = command("check", odd, workdir=workdir)
    report_quality.assert_called_with(0)  # of models that begin at random
    assert "words unknown to the tokeniser" in checked.err
    assert "data.character_coverage=1" not in checked.err  # its vocabulary stays
    other, unknown = (
        command("translate", f"--target_tag=>>{code}<<", workdir=workdir, stdin="a")
        for code in ("eng_Latn", "fra_Latn")
    )
    assert other.code == 0
    assert "has no tag '>>fra_Latn<<' for targets" in unknown.complaint


@pytest.mark.slow
@pytest.mark.parametrize("is_nllb", [False, True])
def test_the_program_of_the_card_translates_as_we_do(
    command, import_, export, toy, tmp_path, transformers, is_nllb
):
    workdir, published = tmp_path / "run", tmp_path / "published"
    text = (toy.directory / "train.de").read_text().splitlines() + ["ade ode ude"] * 999
    transformers("make_m2m100", published, text, is_nllb=is_nllb)
    flags = config_flags("decoding", beam_size=1)
    assert import_(workdir, published, *flags).code == 0
    assert "de" in Tokenizer.load(workdir / "tokenizer.model").pieces()  # no language
    export(workdir, tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "imported from published and not trained further" in card
    lines = toy.test[:8]
    program = program_of_card(tmp_path / "exported", lines)
    ours = command("translate", workdir=workdir, stdin=lines).lines
    # An untrained model writes tags, which Transformers leaves out, and does not end;
    # the program's limit is that of the longest source.
    ours = [re.sub(r">>\w+<<", "", line) for line in ours]
    found = run_program(program, [])
    assert all(new.startswith(own) for new, own in zip(found, ours, strict=True))
    assert len({*ours}) > 4


@pytest.mark.slow
def test_a_mixed_model_uses_the_target_tag_of_each_corpus(
    command, import_, toy, tmp_path, nllb
):
    """As a model of this direction alone does, with the same parameters."""
    whole, alone = tmp_path / "whole", tmp_path / "alone"

    def corpus(name, target):
        return {"name": name, "source_language": "en", "target_language": target}

    corpora = [corpus("a", "de"), corpus("b", "en")]
    flags = config_flags("data", corpora=json.dumps(corpora))
    assert import_(whole, nllb, *flags).code == 0
    assert import_(alone, nllb).code == 0
    data = json.loads((whole / "config.json").read_text())["config"]["data"]
    found = [(each["tag"], each["target_tag"]) for each in data["corpora"]]
    english = ">>eng_Latn<<"
    assert found == [(english, ">>deu_Latn<<"), (english, english)]
    for name in ("score", "align"):
        of_corpus = command(name, "--split=a/test", workdir=whole)
        assert of_corpus.code == 0
        expected = command(name, "--split=test", workdir=alone)
        found, one = (
            [line.partition('"seconds"')[0] for line in each.lines]
            for each in (of_corpus, expected)
        )
        assert found == one
    sums = command("score", "--split=a/test", workdir=whole).result
    greedy = "--config.decoding.beam_size=1"
    scores = command("evaluate", greedy, "--split=a/test", workdir=whole).result
    mean = -sums["log_probability"] / sums["tokens"]
    assert scores["nll"] == pytest.approx(mean, rel=1e-5)
    files = [f"--source={toy.directory}/dev.en", f"--reference={toy.directory}/dev.de"]
    for how in (["evaluate"], ["report"], ["translate_corpus", "--output=n", files[0]]):
        wrong = *how, "--split=a/test", f"--target_tag={english}"
        refused = command(*wrong, workdir=whole)
        assert "--split=a/test, whose targets have >>deu_Latn<<" in refused.complaint
    for how in (["translate"], ["score", *files], ["align", *files]):
        refused = command(*how, f"--tag={english}", workdir=whole, stdin="a")
        assert (refused.code, refused.complaint.count("\n")) == (2, 0)
        assert "translates to >>deu_Latn<<, >>eng_Latn<<" in refused.complaint
    programs = {"huggingface": "README.md", "ctranslate2": "translate.py"}
    for kind, program in programs.items():
        folder = tmp_path / kind
        how = f"--format={kind}", f"--output={folder}"
        assert command("export", *how, workdir=whole).code == 0
        written = (folder / program).read_text()
        assert "raise SystemExit(" in written
        assert ">>deu_Latn<<" in written
    told = command(
        "evaluate", greedy, f"--tag={english}", f"--target_tag={english}", *files,
        workdir=whole,
    )  # fmt: skip
    assert told.result["direction"] == "en-en"
    for wrong, said in (
        ([{**corpora[0], "target_tag": ">>xx<<"}, corpora[1]], "no piece '>>xx<<'"),
        (["a"], "data.corpora"),
    ):
        flags = config_flags("data", corpora=json.dumps(wrong))
        refused = import_(tmp_path / "no", nllb, *flags)
        assert (refused.code, refused.complaint.count("\n")) == (2, 0)
        assert said in refused.complaint


def pairs_of_dev(toy):
    return (toy.directory / "dev.de").read_text().splitlines()
