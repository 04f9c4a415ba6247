"""--mode=report: what the page and its data say of a run that learnt a toy language."""

import json
import shutil

import pytest

from jaxformer.evaluation import significance
from jaxformer.workdir import Workdir


@pytest.fixture(autouse=True, scope="module")
def few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(significance, "RESAMPLES", 50)
        patch.setattr(significance, "TRIALS", 50)
        yield


def read(result):
    """The page and the data that a result names."""
    with open(result["output"], encoding="utf-8") as page:
        html = page.read()
    with open(result["json"], encoding="utf-8") as data:
        return html, json.load(data, parse_constant=pytest.fail)


def change(workdir, **values):
    """Change the section `data` of a run's recorded config."""
    record = json.loads(Workdir(workdir).config_file.read_text())
    record["config"]["data"] |= values
    Workdir(workdir).config_file.write_text(json.dumps(record))


@pytest.fixture(scope="module")
def compared(command, trained, tmp_path_factory):
    """The result of a report of the trained run beside a copy of it."""
    folder = tmp_path_factory.mktemp("compared")
    copy = shutil.copytree(trained.workdir, folder / "copy")
    return command(
        "--mode=report", f"--workdir={trained.workdir}", f"--compare={copy}",
        f"--output={folder / 'page.html'}",
    ).result  # fmt: skip


def test_a_report_says_what_training_and_evaluation_said(
    command, compared, trained, toy
):
    assert list(compared) == [
        "output", "json", "bleu", "signature", "direction", "sentences", "seconds",
    ]  # fmt: skip
    html, data = read(compared)
    evaluated = command("--mode=evaluate", f"--workdir={trained.workdir}").result
    assert compared["bleu"] == pytest.approx(evaluated["bleu"])
    signatures = [set(e["signature"].split("|")) for e in (evaluated, compared)]
    assert signatures[0] < signatures[1]
    run = data["runs"][0]
    assert run["name"] == "toy"
    assert run["scores"]["chrf"]["score"] == pytest.approx(evaluated["chrf"])
    assert run["scores"]["nll"] == pytest.approx(evaluated["nll"])
    assert data["text"]["sentences"] == compared["sentences"] == len(toy.test)

    log = (trained.workdir / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in log]
    for kind in ("train", "eval", "final"):
        found = [line for line in lines if line["kind"] == kind]
        assert run["curves"][kind] == found != []
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
        links = each["alignment"]["links"]
        assert [target for _, target in links] == [*range(len(links))]
        assert len(links) == len(each["alignment"]["target"])


def test_a_copy_of_a_run_does_not_differ_from_it(compared):
    html, data = read(compared)
    (test,) = data["comparison"]["tests"]
    assert (data["comparison"]["first"], test["name"]) == ("toy", "copy")
    for metric in ("bleu", "chrf"):
        assert test[metric]["difference"] == 0
        assert test[metric]["bootstrap_p"] == test[metric]["randomisation_p"] == 1
    assert "the configs are equal" in html
    assert "No sentence has another score" in html
    assert "cannot be compared" not in html


def test_without_a_test_text_the_validation_text_is_scored(command, own_run, toy):
    change(own_run, test="")
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
    assert data["runs"][0]["scores"] is None
    assert data["runs"][0]["curves"]["train"]
    assert "no translations yet" in html
    assert "no record of a corpus" in html


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--compare={own},{own}",), "given twice"),
        (("--compare={own}/nowhere",), "there is no run in"),
        (("--output={own}",), "does not end in .html"),
        (("--output={own}/config.json/page.html",), "cannot be written"),
        (("--source={own}/config.json",), "go together"),
        (("--split=tset",), "'tset'"),
        (("--compare={other}",), "other and toy translate different texts"),
    ],
)
def test_what_cannot_be_reported_is_refused(command, own_run, trained, flags, said):
    other = own_run.with_name("other")
    shutil.copytree(own_run, other)
    change(other, test="dev")
    flags = [flag.format(own=own_run, other=other) for flag in flags]
    answer = command("--mode=report", f"--workdir={trained.workdir}", *flags)
    assert said in answer.complaint


@pytest.mark.nightly
def test_several_processes_report_as_one(command, start, trained, tmp_path):
    found = []
    for count, name in ((1, "alone"), (2, "together")):
        flags = ("--examples=1", f"--output={tmp_path / name}.html")
        flags = ("--mode=report", f"--workdir={trained.workdir}", *flags)
        result = start(count, *flags).results() if count > 1 else command(*flags).result
        _, data = read(result)
        (run,) = data["runs"]
        run["scores"]["nll"] = round(run["scores"]["nll"], 4)
        run["scores"]["ppl"] = round(run["scores"]["ppl"], 3)
        for metric in ("bleu", "chrf"):  # the other processes have all resamples
            run["scores"][metric] = run["scores"][metric]["score"]
        found.append(data)
    assert found[0] == found[1]
