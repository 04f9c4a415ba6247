"""jaxformer report: the page and its data for a run of the toy language."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxformer.commands import report
from jaxformer.evaluation import significance
from tests.commands.runs import metrics
from tests.decoding.tiny import Numbers


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(significance, "RESAMPLES", 50)
    monkeypatch.setattr(significance, "TRIALS", 50)


def read(result):
    """The page and the data that a result names."""
    html, data = (Path(result[key]).read_text("utf-8") for key in ("output", "json"))
    return html, json.loads(data, parse_constant=pytest.fail)


def test_a_line_in_several_parts_has_no_links():
    translator = SimpleNamespace(
        tokenizer=Numbers(), longest=3, attention=lambda *pair: pair,
        text=SimpleNamespace(sentences=lambda text: text.split(" / ")),
    )  # fmt: skip
    assert report.aligned(translator, "4 5", "6") == ("4 5", "6")
    assert report.aligned(translator, "4 5 6", "7") is None
    assert report.aligned(translator, "7", "4 5 6") is None
    assert report.aligned(translator, "4 / 5", "6") is None
    translator.longest = None
    assert report.aligned(translator, "4 5 6", "7") == ("4 5 6", "7")


def test_a_report_agrees_with_training_and_evaluation(use, trained, toy, tmp_path):
    """Also beside a copy of the run, which does not differ from it."""
    copy = shutil.copytree(trained.workdir, tmp_path / "copy")
    flags = (f"--compare={copy}", f"--output={tmp_path / 'page.html'}")
    result = use("report", *flags).result
    assert list(result) == [
        "output", "json", "bleu", "signature", "direction", "sentences",
    ]  # fmt: skip
    html, data = read(result)
    evaluated = use("evaluate").result
    assert result["bleu"] == pytest.approx(evaluated["bleu"])
    signatures = [set(each["signature"].split("|")) for each in (evaluated, result)]
    assert signatures[0] < signatures[1]
    assert data["text"]["sentences"] == result["sentences"] == len(toy.test)
    run = data["runs"][0]
    assert run["scores"]["chrf"]["score"] == pytest.approx(evaluated["chrf"])
    assert run["scores"]["nll"] == pytest.approx(evaluated["nll"])

    for kind in ("train", "eval", "final"):
        assert run["curves"][kind] == metrics(trained.workdir, kind) != []
    assert run["learning_rate"]["largest_relative_difference"] < 1e-5
    assert (run["steps"], run["planned_steps"], run["skipped_updates"]) == (100, 100, 0)
    assert f"{run['parameters']:,} parameters" in trained.answer.err
    prepared = json.loads((trained.workdir / "corpus" / "report.json").read_text())
    assert run["corpus"] == {split: prepared[split] for split in ("train", "dev")}
    assert 0 < run["batches"]["padding_share"] < 0.5
    assert str(toy.directory) not in html
    for each in run["worst"]:
        assert each["source"] == toy.test[each["line"] - 1]
        assert each["reference"] == toy.translate(each["source"])
        links = each["alignment"]["links"]
        assert [target for _, target in links] == [*range(len(links))]
        assert len(links) == len(each["alignment"]["target"])

    (test,) = data["comparison"]["tests"]
    names = run["name"], data["comparison"]["first"], test["name"]
    assert names == ("toy", "toy", "copy")
    for metric in ("bleu", "chrf"):
        assert test[metric]["difference"] == 0
        assert test[metric]["randomisation_p"] == 1
    assert "the configs are equal" in html
    assert "All sentences have equal scores" in html
    assert "cannot be compared" not in html


def test_without_a_test_text_the_validation_text_is_scored(command, own_run, toy):
    flags = ("--examples=1", "--config.data.test=")
    metrics = own_run / "metrics.jsonl"
    assert f"{metrics} lacks" not in command("report", *flags, workdir=own_run).err
    lines = metrics.read_bytes()
    metrics.write_bytes(lines[: lines.rindex(b"\n", 0, -1) + 1])
    other = shutil.copytree(own_run, own_run.with_name("other"))
    answer = command("report", *flags, f"--choose={other}", workdir=own_run)
    assert f"{metrics} lacks its last lines: curves are incomplete" in answer.err
    result = answer.result
    assert result["output"] == str(own_run / "report.html")
    assert result["json"] == str(own_run / "report.json")
    _, data = read(result)
    assert data["text"] == {"name": "dev", "sentences": 12, "direction": "en-de"}
    assert data["runs"][0]["search"] == "choose=other:1"  # folders may be private
    (example,) = data["runs"][0]["worst"]
    assert example["source"] in toy.dev


def test_a_run_that_is_not_trained_yet_is_reported(command, own_run):
    shutil.rmtree(own_run / "checkpoints")
    shutil.rmtree(own_run / "corpus")
    result = command("report", workdir=own_run).result
    assert (result["bleu"], result["sentences"]) == (None, 0)
    html, data = read(result)
    assert data["runs"][0]["curves"]["train"]
    assert "no translations yet" in html
    assert "no record of a corpus" in html
