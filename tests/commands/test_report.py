"""--mode=report: what the page and its data say of a run that learnt a toy language."""

import json
import shutil

import pytest

from jaxformer.evaluation import significance
from jaxformer.workdir import Workdir


@pytest.fixture(autouse=True)
def few_trials(monkeypatch):
    monkeypatch.setattr(significance, "RESAMPLES", 50)
    monkeypatch.setattr(significance, "TRIALS", 50)


@pytest.fixture
def report(command, trained, tmp_path):
    """Report on the trained run with more flags; returns the Answer."""

    def run(*flags, workdir=trained.workdir):
        given = [flag.partition("=")[0] for flag in flags]
        output = [] if "--output" in given else [f"--output={tmp_path / 'page.html'}"]
        return command("--mode=report", f"--workdir={workdir}", *output, *flags)

    return run


def read(result):
    """The page and the data that a result names."""
    with open(result["output"], encoding="utf-8") as page:
        html = page.read()
    with open(result["json"], encoding="utf-8") as data:
        return html, json.load(data, parse_constant=pytest.fail)


def change(workdir, **sections):
    """Change the recorded config of a run."""
    record = json.loads(Workdir(workdir).config_file.read_text())
    for section, values in sections.items():
        record["config"][section] |= values
    Workdir(workdir).config_file.write_text(json.dumps(record))


def test_a_report_says_what_training_and_evaluation_said(
    command, report, trained, toy, tmp_path
):
    result = report().result
    assert list(result) == [
        "output", "json", "bleu", "signature", "direction", "sentences", "seconds",
    ]  # fmt: skip
    assert result["json"] == str(tmp_path / "page.json")
    html, data = read(result)
    evaluated = command("--mode=evaluate", f"--workdir={trained.workdir}").result
    assert result["bleu"] == pytest.approx(evaluated["bleu"])
    assert set(evaluated["signature"].split("|")) < set(result["signature"].split("|"))
    (run,) = data["runs"]
    assert run["name"] == "toy"
    assert run["scores"]["chrf"]["score"] == pytest.approx(evaluated["chrf"])
    assert run["scores"]["nll"] == pytest.approx(evaluated["nll"])
    assert data["text"]["sentences"] == result["sentences"] == len(toy.test)

    log = (trained.workdir / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in log]
    for kind in ("train", "eval", "final"):
        steps = [line["step"] for line in lines if line["kind"] == kind]
        assert [line["step"] for line in run["curves"][kind]] == steps
        assert steps
    assert run["learning_rate"]["largest_relative_difference"] < 1e-5
    assert run["skipped_updates"] == 0
    assert (run["steps"], run["planned_steps"]) == (100, 100)
    assert run["checkpoint"] == "average of the last 2 checkpoints"
    prepared = json.loads((trained.workdir / "corpus" / "report.json").read_text())
    assert run["corpus"] == {split: prepared[split] for split in ("train", "dev")}
    in_shapes = sum(shape["pairs"] for shape in run["batches"]["shapes"])
    assert in_shapes == prepared["train"]["kept"]
    assert str(toy.directory) not in html
    for each in run["worst"]:
        assert each["source"] == toy.test[each["line"] - 1]
        assert each["reference"] == toy.translate(each["source"])
        assert each["source"] in html
        alignment = each["alignment"]
        places = range(len(alignment["source"]))
        assert {source for source, _ in alignment["links"]} <= set(places)
        assert len(alignment["links"]) == len(alignment["target"])


@pytest.mark.slow
def test_parameters_and_batches_are_those_of_a_check(command, report, trained):
    checked = command("--mode=check", f"--workdir={trained.workdir}").result
    _, data = read(report("--examples=0").result)
    (run,) = data["runs"]
    assert run["parameters"] == checked["parameters"]
    layouts = {each["layout"]: each for each in run["batches"]["layouts"]}
    assert layouts["packed"]["used"]
    assert not layouts["buckets"]["used"]
    padding = 1 - checked["real_token_share"]
    assert layouts["packed"]["padding_share"] == pytest.approx(padding, abs=1e-3)
    assert layouts["packed"]["updates_per_epoch"] == checked["updates_per_epoch"]
    shapes = run["batches"]["shapes"]
    assert sum(shape["pairs"] for shape in shapes) == checked["pairs"]
    places = [
        shape["microbatches"] * shape["rows"]
        * (shape["source_length"] + shape["target_length"])
        for shape in shapes
    ]  # fmt: skip
    padded = [
        count * shape["padding_share"]
        for count, shape in zip(places, shapes, strict=True)
    ]
    assert sum(padded) / sum(places) == pytest.approx(padding, abs=1e-3)


def test_without_examples_there_is_no_sentence_in_either_file(report, own_run, toy):
    result = report(f"--compare={own_run}", "--examples=0").result
    html, data = read(result)
    text = json.dumps(data)
    for sentence in toy.test:
        if " " in sentence:
            for each in (sentence, toy.translate(sentence)):
                assert each not in html
                assert each not in text


def test_a_copy_of_a_run_does_not_differ_from_it(report, own_run):
    _, data = read(report(f"--compare={own_run}").result)
    assert [run["name"] for run in data["runs"]] == ["toy", "own"]
    (test,) = data["comparison"]["tests"]
    assert test["name"] == "own"
    for metric in ("bleu", "chrf"):
        assert test[metric]["difference"] == 0
        assert test[metric]["bootstrap_p"] == test[metric]["randomisation_p"] == 1
    assert data["comparison"]["config"] == []
    assert data["comparison"]["same_pieces"]


def test_runs_of_one_name_are_told_apart_by_their_folders(report, trained, tmp_path):
    other = tmp_path / "other" / trained.workdir.name
    shutil.copytree(trained.workdir, other)
    _, data = read(report(f"--compare={other}", "--examples=0").result)
    assert [run["name"] for run in data["runs"]] == [
        f"{trained.workdir.parent.name}/toy", "other/toy",
    ]  # fmt: skip


def test_the_page_is_in_the_workdir_unless_said_otherwise(command, own_run):
    result = command("--mode=report", f"--workdir={own_run}", "--examples=1").result
    assert result["output"] == str(own_run / "report.html")
    assert result["json"] == str(own_run / "report.json")
    _, data = read(result)
    assert len(data["runs"][0]["worst"]) == len(data["runs"][0]["best"]) == 1


def test_files_can_be_scored_instead_of_a_split(report, toy):
    files = [toy.directory / f"dev.{language}" for language in ("en", "de")]
    flags = [f"--source={files[0]}", f"--reference={files[1]}"]
    by_file = report(*flags).result
    _, data = read(by_file)
    assert data["text"]["name"] == "dev.en"
    by_split = report("--split=dev").result
    assert read(by_split)[1]["text"]["name"] == "the validation text"
    assert by_file["bleu"] == by_split["bleu"]


def test_without_a_test_text_the_validation_text_is_scored(report, own_run, toy):
    change(own_run, data={"test": ""})
    answer = report(workdir=own_run)
    assert answer.result["sentences"] == len(toy.dev)
    assert "names no test text" in answer.err


def test_a_run_that_has_learnt_nothing_yet_is_reported(report, own_run):
    shutil.rmtree(own_run / "checkpoints")
    answer = report(workdir=own_run)
    assert (answer.result["bleu"], answer.result["sentences"]) == (None, 0)
    html, data = read(answer.result)
    assert data["runs"][0]["scores"] is None
    assert data["runs"][0]["curves"]["train"]
    assert "no translations of it yet" in html
    (own_run / "metrics.jsonl").unlink()
    shutil.rmtree(own_run / "corpus")
    html, data = read(report(workdir=own_run).result)
    assert data["runs"][0]["steps"] == 0
    assert "Nothing has been logged yet" in html
    assert "no record of a corpus" in html


def test_one_of_two_runs_may_have_no_translations_yet(report, own_run):
    shutil.rmtree(own_run / "checkpoints")
    html, data = read(report(f"--compare={own_run}").result)
    assert [run["scores"] is None for run in data["runs"]] == [False, True]
    assert data["comparison"]["tests"] == []
    assert "the others have no translations yet" in html


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--compare={own},{own}",), "given twice"),
        (("--compare={trained}/../toy",), "given twice"),
        (("--compare={own}/nowhere",), "there is no run in"),
        (("--output={own}",), "no name of a page"),
        (("--output={own}/page.json",), "ends in .html"),
        (("--output={own}/config.json/page.html",), "cannot be written"),
        (("--source={own}/config.json",), "go together"),
        (("--split=tset",), "'tset'"),
    ],
)
def test_what_cannot_be_reported_is_refused(report, own_run, trained, flags, said):
    values = {"own": own_run, "trained": trained.workdir}
    complaint = report(*(flag.format(**values) for flag in flags)).complaint
    assert said in complaint


def test_another_direction_and_another_text_are_refused(report, own_run, toy, tmp_path):
    change(own_run, data={"target_language": "fr"})
    complaint = report(f"--compare={own_run}").complaint
    assert "own translates en-fr and toy en-de" in complaint
    moved = tmp_path / "text"
    shutil.copytree(toy.directory, moved)
    change(own_run, data={"target_language": "de", "directory": str(moved)})
    lines = (moved / "test.de").read_text().splitlines()
    (moved / "test.de").write_text("\n".join([*lines[:4], "SU", *lines[5:]]) + "\n")
    complaint = report(f"--compare={own_run}").complaint
    assert "toy and own have different texts, from line 5 of the reference" in complaint
    for language in ("en", "de"):
        (moved / f"test.{language}").write_text("bo\n" if language == "en" else "SU\n")
    complaint = report(f"--compare={own_run}").complaint
    assert f"of toy has {len(toy.test)} sentences and that of own 1;" in complaint


@pytest.mark.slow
def test_several_processes_report_as_one(report, start, trained, tmp_path):
    alone = report("--examples=1").result
    _, wanted = read(alone)
    output = tmp_path / "together.html"
    together = start(
        2, "--mode=report", f"--workdir={trained.workdir}", f"--output={output}",
        "--examples=1",
    ).results()  # fmt: skip
    _, found = read(together)
    assert together["bleu"] == alone["bleu"]
    for data in (wanted, found):
        data.pop("environment")
        data["runs"][0]["scores"]["nll"] = round(data["runs"][0]["scores"]["nll"], 4)
        data["runs"][0]["scores"]["ppl"] = round(data["runs"][0]["scores"]["ppl"], 3)
        for name in ("bleu", "chrf"):  # the other process had all resamples
            data["runs"][0]["scores"][name] = data["runs"][0]["scores"][name]["score"]
    assert found == wanted
