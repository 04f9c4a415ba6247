"""The data of a report, and the page made of it."""

import html
import json
import math
import re

import pytest

from jaxformer.reports import run_report as report
from jaxformer.system.errors import InputError

from .synthetic_runs import SCHEDULE, make_log, make_run, make_text

TEXT = make_text()


def gather(*runs, text=TEXT, examples=2):
    return report.gather(*zip(*runs, strict=True), text, examples=examples)


def words_of(data) -> str:
    """What a reader of the page's own HTML sees; without scripts and styles."""
    body = re.sub(r"(?s)<(script|style).*?</\1>", " ", report.render(data))
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_a_learning_rate_that_departs_from_equation_3_is_told():
    right, _ = make_run()
    assert right["learning_rate"]["largest_relative_difference"] < 1e-6
    log = make_log()
    log[40]["learning_rate"] *= 1.25
    found = make_run(metrics=log)[0]["learning_rate"]
    assert found["largest_relative_difference"] == pytest.approx(0.25, rel=1e-5)
    log = make_log()
    for line in log[9:]:  # as training does after skipped updates
        line["skipped_updates"] = 9
        line["learning_rate"] = float(SCHEDULE(line["step"] - 1 - 9))
    skipped = make_run(metrics=log)[0]["learning_rate"]
    assert skipped["largest_relative_difference"] < 1e-6
    rates = {point["step"]: point["learning_rate"] for point in found["formula"]}
    assert list(rates) == sorted(rates)
    assert {1, 200, 1000} <= rates.keys()  # the start, the peak and the end
    assert rates[200] == max(rates.values()) == pytest.approx(0.5 / math.sqrt(64 * 200))


def test_folders_are_not_told():
    data = gather(make_run(), make_run(directory="/other/secret/text"), text=None)
    assert data["runs"][0]["config"]["data.directory"] == "text"
    (row,) = data["comparison"]["config"]
    assert row == {"key": "data.directory", "values": ["text", "text (another path)"]}
    assert "secret" not in json.dumps(data)
    files = "/secret/text/train.en,/secret/text/train.de"
    assert report.without_folders(files) == "train.en,train.de"


def test_names_are_the_shortest_that_tell_runs_apart(tmp_path):
    folders = [tmp_path / name for name in ("a/run", "b/run", "c/best")]
    assert report.unique_names(folders) == ["a/run", "b/run", "c/best"]
    assert report.unique_names(folders[1:]) == ["run", "best"]
    with pytest.raises(InputError, match=r"b/run is given twice"):
        report.unique_names([*folders, tmp_path / "a" / ".." / "b" / "run"])


def test_different_texts_and_directions_are_refused():
    texts = {"a": TEXT, "begun": None, "b": TEXT._replace(name="other")}
    assert report.require_one_text(texts) is TEXT
    other = [*TEXT.references[:-1], "other"]
    for change in {"references": other}, {"target_language": "fr"}:
        with pytest.raises(InputError, match=r"^b and a translate different"):
            report.require_one_text({**texts, "b": TEXT._replace(**change)})


def test_the_page_and_the_file_beside_it_hold_the_data(tmp_path):
    data = gather(make_run(text=TEXT))
    beside = report.write(data, tmp_path / "page.html")
    assert json.loads(beside.read_text("utf-8")) == data
    page = (tmp_path / "page.html").read_text("utf-8")
    within = re.search(r'(?s)application/json" id="data">(.*?)</script>', page)
    assert json.loads(within[1]) == data
    seen, scores = words_of(data), data["runs"][0]["scores"]
    mean, half = (scores["bleu"][key] for key in ("mean", "half_width"))
    for part in (
        f"{scores['bleu']['score']:.2f}", f"{scores['chrf']['score']:.2f}",
        f"{mean - half:.2f} to {mean + half:.2f}", scores["bleu"]["signature"],
        scores["chrf"]["signature"], "en-de, cased",
        "123,456 parameters", "1,000 of 1,000 updates", "10 too long", "20.0 %",
        "average:5", "No update was skipped",
        *(each["translation"] for each in data["runs"][0]["worst"]),
    ):  # fmt: skip
        assert part in seen


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({}, "average:5"), ({"training.patience": 5}, "best"),
        ({"training.ema_decay": 0.99}, "moving average"),
    ],
)  # fmt: skip
def test_the_page_names_the_parameters_and_the_flags_that_were_used(changes, used):
    data = gather(make_run(text=TEXT))
    data["runs"][0]["config"].update(changes)
    assert f"<td>{used}, beam_size=1</td>" in report.render(data)


@pytest.mark.parametrize("wrong", ["falsch", ""])
def test_a_weak_model_on_a_short_text_has_no_interval(wrong):
    text = make_text(12)
    weak = {"text": text, "errors": 1.0, "wrong": wrong}
    data = gather(make_run(**weak), make_run("other", **weak), text=text)
    assert data["runs"][0]["scores"]["bleu"]["half_width"] is None
    assert data["comparison"]["tests"][0]["bleu"]["difference"] == 0
    assert "no interval can be given" in words_of(data)


def test_runs_beside_each_other_and_what_the_tests_mean():
    strong = {"warmup_steps": 300, "label_smoothing": 0.0, "tokenizer": "f00d"}
    data = gather(
        make_run("weak", text=TEXT, errors=0.6),
        make_run("strong", text=TEXT, errors=0.1, **strong),
        make_run("begun"),
    )
    (test,) = data["comparison"]["tests"]
    assert test["name"] == "strong"
    assert test["bleu"]["difference"] > 10
    assert test["bleu"]["randomisation_p"] < 0.05
    seen = words_of(data)
    for part in (
        f"{test['bleu']['difference']:+.2f}", "null hypothesis", "another seed",
        test["bleu"]["randomisation_signature"],
        "optimizer.warmup_steps 200 300 200", "cut text into different pieces",
        "smooth labels differently",
    ):  # fmt: skip
        assert part in seen


def test_without_examples_no_sentence_is_anywhere():
    runs = [make_run(str(e), text=TEXT, errors=e, examples=0) for e in (0.1, 0.3)]
    sentences = [*TEXT.sources, *TEXT.references, *runs[0][1]]
    for data in (gather(runs[0], examples=0), gather(*runs, examples=0)):
        written = report.render(data) + json.dumps(data, ensure_ascii=False)
        assert not [each for each in sentences if " " in each and each in written]
        assert "Worst" not in words_of(data)


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        ([make_run()], ["it has no translations yet"]),
        ([make_run(metrics=[], is_prepared=False)],
         ["Nothing has been logged yet", "no record of a corpus",
          "no tokenised corpus", "0 of 1,000 updates"]),
        ([make_run(metrics=make_log(skipped_updates=3))], ["3 updates were skipped"]),
        ([make_run(metrics=make_log(skipped_updates=None))], ["were not recorded"]),
        ([make_run("one"), make_run("two", text=TEXT)],
         ["the first run has no translations yet"]),
        ([make_run("one", text=TEXT), make_run("two")],
         ["the others have no translations yet"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(runs, parts):
    is_translated = any(translations for _, translations in runs)
    seen = words_of(gather(*runs, text=TEXT if is_translated else None))
    assert [part for part in parts if part not in seen] == []


def test_numbers_that_are_not_finite_are_left_out():
    log = make_log()
    log[3] |= {"loss": None, "gradient_norm": math.nan}
    data = gather(make_run(metrics=log), text=None)
    assert data["runs"][0]["curves"]["train"][3]["gradient_norm"] is None
    assert "null" not in words_of(data).partition("Config")[0]


def test_markup_in_a_sentence_is_text():
    text = TEXT._replace(sources=["</script><img src=x>", *TEXT.sources[1:]])
    run = make_run("<b>bold</b>", text=text, errors=1.0, examples=40)
    page = report.render(gather(run, text=text))
    assert "<img src=x>" not in page
    assert "<b>bold" not in page


@pytest.mark.parametrize("target", ["missing", "/dev/null", "own.json"])
def test_data_of_a_report_replaces_no_link(tmp_path, target):
    """To read a device may have no end, and a link may lead anywhere."""
    (tmp_path / "own.json").write_text('{"runs": []}')
    report.require_own(tmp_path / "own.json")
    report.require_own(tmp_path / "new.json")
    (tmp_path / "page.json").symlink_to(target)
    with pytest.raises(InputError, match=r"page\.json is where .* another file"):
        report.require_own(tmp_path / "page.json")
