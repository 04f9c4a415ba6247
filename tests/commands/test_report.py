"""--mode=report: the page and its data for a run of the toy language."""

import json
import shutil
from pathlib import Path

import pytest

from jaxformer.workdir import Workdir


def read(result):
    """The page and the data that a result names."""
    html, data = (Path(result[key]).read_text("utf-8") for key in ("output", "json"))
    return html, json.loads(data, parse_constant=pytest.fail)


def change_test(workdir, name):
    """Change the test text in a run's recorded config."""
    file = Workdir(workdir).config_file
    record = json.loads(file.read_text())
    record["config"]["data"]["test"] = name
    file.write_text(json.dumps(record))


def test_a_run_and_its_copy_agree_with_training_and_evaluation(
    use, trained, toy, metrics, tmp_path
):
    copy = shutil.copytree(trained.workdir, tmp_path / "copy")
    page = tmp_path / "page.html"
    result = use("report", f"--compare={copy}", f"--output={page}").result
    html, data = read(result)
    assert result.keys() == {
        "output", "json", "bleu", "signature", "direction", "sentences", "seconds",
    }  # fmt: skip
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
    assert run["batches"]["layout"] == "packed"
    assert 0 < run["batches"]["padding_share"] < 0.5
    assert str(toy.directory) not in html
    for each in run["worst"]:
        assert each["source"] == toy.test[each["line"] - 1]
        assert each["reference"] == toy.translate(each["source"])
        assert each["source"] in html
        targets = [target for _, target in each["alignment"]["links"]]
        assert targets == [*range(len(each["alignment"]["target"]))]

    (test,) = data["comparison"]["tests"]
    names = run["name"], data["comparison"]["first"], test["name"]
    assert names == ("toy", "toy", "copy")
    for metric in ("bleu", "chrf"):
        assert test[metric]["difference"] == 0
        assert test[metric]["bootstrap_p"] == test[metric]["randomisation_p"] == 1
    assert "the configs are equal" in html
    assert "All sentences have equal scores" in html
    assert "cannot be compared" not in html


def test_the_validation_text_is_scored_without_a_test_text(command, own_run, toy):
    change_test(own_run, "")
    flags = ("--mode=report", f"--workdir={own_run}", "--examples=1")
    result = command(*flags).result
    assert result["output"] == str(own_run / "report.html")
    assert result["json"] == str(own_run / "report.json")
    _, data = read(result)
    assert data["text"] == {"name": "dev", "sentences": 12, "direction": "en-de"}
    (example,) = data["runs"][0]["worst"]
    assert example["source"] in toy.dev


def test_a_run_that_is_not_trained_yet_is_reported(command, own_run):
    shutil.rmtree(own_run / "checkpoints")
    shutil.rmtree(own_run / "corpus")
    result = command("--mode=report", f"--workdir={own_run}").result
    assert (result["bleu"], result["sentences"]) == (None, 0)
    html, data = read(result)
    assert data["runs"][0]["curves"]["train"]
    assert "no translations yet" in html
    assert "no record of a corpus" in html


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--compare={own},{own}", "given twice"),
        ("--compare={own}/nowhere", "there is no run in"),
        ("--output={own}", "does not end in .html"),
        ("--output={own}/config.json/page.html", "cannot be written"),
        ("--split=tset", "'tset'"),
        ("--compare={own}", "own and toy translate different texts"),
    ],
)
def test_bad_input_is_refused(use, own_run, flag, said):
    change_test(own_run, "dev")
    assert said in use("report", flag.format(own=own_run)).complaint
