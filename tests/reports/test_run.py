"""The data of a report, its charts, and the page made of them."""

import html
import json
import math
import re

import pytest

from jaxformer.errors import InputError
from jaxformer.reports import run as report
from jaxformer.reports.page import COLOURS
from jaxformer.reports.run_charts import MAX_POINTS, make_charts

from .synthetic_runs import make_log, make_run, make_text

TEXT = make_text()


def gather(*runs, text=TEXT, examples=2):
    return report.gather(runs, text, examples=examples)


def words_of(data) -> str:
    """What a reader of the page's own HTML sees; without scripts and styles."""
    body = re.sub(r"(?s)<(script|style).*?</\1>", " ", report.render(data))
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def nodes_of(value):
    """Every object within a chart."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from nodes_of(each)


def rows_of(chart) -> list[dict]:
    """All rows that a chart holds; those of several layers once."""
    nodes = nodes_of(chart.to_dict())
    return next(node["values"] for node in nodes if "values" in node)


def test_a_learning_rate_that_departs_from_equation_3_is_told():
    (right,) = gather(make_run(), text=None)["runs"]
    assert right["learning_rate"]["largest_relative_difference"] < 1e-6
    log = make_log()
    log[40]["learning_rate"] *= 1.25
    (wrong,) = gather(make_run(metrics=log), text=None)["runs"]
    found = wrong["learning_rate"]
    assert found["largest_relative_difference"] == pytest.approx(0.25, rel=1e-5)
    rates = {point["step"]: point["learning_rate"] for point in found["formula"]}
    assert list(rates) == sorted(rates)
    assert {1, 200, 1000} <= rates.keys()  # the start, the peak and the end
    assert rates[200] == max(rates.values()) == pytest.approx(0.5 / math.sqrt(64 * 200))


def test_folders_are_not_told():
    runs = [make_run("one"), make_run("two", data__directory="/other/secret/text")]
    data = gather(*runs, text=None)
    assert data["runs"][0]["config"]["data.directory"] == "text"
    assert data["comparison"]["config"] == []  # the same name in another folder
    assert "secret" not in json.dumps(data)


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


def test_runs_beside_each_other_and_what_the_tests_mean():
    weak = make_run("weak", text=TEXT, errors=0.6)
    strong = make_run(
        "strong", text=TEXT, errors=0.1, optimizer__warmup_steps=300,
        training__label_smoothing=0.0, tokenizer="f00d",
    )  # fmt: skip
    data = gather(weak, strong, make_run("begun"))
    (test,) = data["comparison"]["tests"]
    assert test["name"] == "strong"
    assert test["bleu"]["difference"] > 10
    assert test["bleu"]["randomisation_p"] < 0.05
    seen = words_of(data)
    for part in (
        f"{test['bleu']['difference']:+.2f}", "null hypothesis", "another seed",
        test["bleu"]["bootstrap_signature"], test["bleu"]["randomisation_signature"],
        "optimizer.warmup_steps 200 300 200", "cut text into different pieces",
        "smooth labels differently",
    ):  # fmt: skip
        assert part in seen


def test_without_examples_no_sentence_is_anywhere():
    runs = [make_run("one", text=TEXT), make_run("two", text=TEXT, errors=0.1)]
    for data in (gather(runs[0], examples=0), gather(*runs, examples=0)):
        written = report.render(data) + json.dumps(data, ensure_ascii=False)
        translations = runs[0].translated.evaluation.translations
        for sentence in (*TEXT.sources, *TEXT.references, *translations):
            assert " " not in sentence or sentence not in written
        assert "Worst" not in words_of(data)


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        ([make_run()], ["it has no translations yet"]),
        ([make_run(metrics=[], corpus=None, plan=None, versions={})],
         ["Nothing has been logged yet", "no record of a corpus",
          "no tokenised corpus", "0 of 1,000 updates"]),
        ([make_run("one"), make_run("two", text=TEXT)],
         ["the first run has no translations yet"]),
        ([make_run("one", text=TEXT), make_run("two")],
         ["the others have no translations yet"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(runs, parts):
    is_translated = any(run.translated for run in runs)
    seen = words_of(gather(*runs, text=TEXT if is_translated else None))
    for part in parts:
        assert part in seen


@pytest.mark.parametrize(
    ("skipped", "said"), [(3, "3 updates were skipped"), (None, "were not recorded")]
)
def test_skipped_updates_and_numbers_that_are_not_finite(skipped, said):
    log = [{**line, "skipped_updates": skipped} for line in make_log()]
    log[3] |= {"loss": None, "gradient_norm": math.nan}
    data = gather(make_run(metrics=log), text=None)
    assert data["runs"][0]["curves"]["train"][3]["gradient_norm"] is None
    seen = words_of(data)
    assert said in seen
    assert "null" not in seen.partition("Config")[0]


def test_markup_in_a_sentence_is_text():
    text = TEXT._replace(sources=["</script><img src=x>", *TEXT.sources[1:]])
    run = make_run("<b>bold</b>", text=text, errors=1.0)
    page = report.render(gather(run, text=text, examples=40))
    assert "<img src=x>" not in page
    assert "<b>bold" not in page


def test_charts_draw_what_was_logged():
    data = gather(make_run(text=TEXT))
    charts, run = make_charts(data), data["runs"][0]
    lines = [line for kind in run["curves"].values() for line in kind]
    for name in ("loss", "nll", "bleu"):
        drawn = [(row["step"], row[name]) for row in rows_of(charts[name])]
        logged = [(line["step"], line[name]) for line in lines if name in line]
        assert sorted(drawn) == sorted(logged)
    bars = rows_of(charts["bleu_by_length"])
    assert [row["bleu"] for row in bars] == [each["bleu"] for each in run["by_length"]]


def test_each_run_has_one_colour_in_all_charts():
    names = ["one", "two", "three"]
    runs = [make_run(name, text=TEXT) for name in names]
    for chart in make_charts(gather(*runs)).values():
        for node in nodes_of(chart.to_dict()):
            if node.get("field") == "run" and "scale" in node:
                colours = dict(zip(*node["scale"].values(), strict=True))
                assert colours == dict(zip(names, COLOURS, strict=False))


def test_rates_are_drawn_on_equation_3():
    rows = rows_of(make_charts(gather(make_run(), text=None))["learning_rate"])
    rates = {
        kind: {row["step"]: row["learning_rate"] for row in rows if row["kind"] == kind}
        for kind in ("training", "equation 3")
    }
    logged = rates["training"]
    assert len(logged) == 100
    formula = [rates["equation 3"][step] for step in logged]
    assert formula == pytest.approx(list(logged.values()))


def test_a_long_log_is_thinned_in_charts_only():
    line = make_log()[0]
    log = [{**line, "step": step} for step in range(1, 3 * MAX_POINTS)]
    data = gather(make_run(metrics=log), text=None)
    assert len(data["runs"][0]["curves"]["train"]) == len(log)
    drawn = rows_of(make_charts(data)["gradient_norm"])
    assert len(drawn) <= MAX_POINTS
    assert drawn[-1]["step"] == log[-1]["step"]
