"""--mode=report: the page and its data for a run of the toy language."""

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
def compared(use, trained, tmp_path_factory):
    """The result of a report of the trained run beside a copy of it."""
    folder = tmp_path_factory.mktemp("compared")
    copy = shutil.copytree(trained.workdir, folder / "copy")
    page = folder / "page.html"
    return use("report", f"--compare={copy}", f"--output={page}").result


def test_a_report_agrees_with_training_and_evaluation(
    use, compared, trained, toy, metrics
):
    assert list(compared) == [
        "output", "json", "bleu", "signature", "direction", "sentences", "seconds",
    ]  # fmt: skip
    html, data = read(compared)
    evaluated = use("evaluate").result
    assert compared["bleu"] == pytest.approx(evaluated["bleu"])
    signatures = [set(e["signature"].split("|")) for e in (evaluated, compared)]
    assert signatures[0] < signatures[1]
    run = data["runs"][0]
    assert run["name"] == "toy"
    assert run["scores"]["chrf"]["score"] == pytest.approx(evaluated["chrf"])
    assert run["scores"]["nll"] == pytest.approx(evaluated["nll"])
    assert data["text"]["sentences"] == compared["sentences"] == len(toy.test)

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
    assert "All sentences have equal scores" in html
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
def test_bad_input_is_refused(use, own_run, flags, said):
    other = own_run.with_name("other")
    shutil.copytree(own_run, other)
    change(other, test="dev")
    flags = [flag.format(own=own_run, other=other) for flag in flags]
    assert said in use("report", *flags).complaint
