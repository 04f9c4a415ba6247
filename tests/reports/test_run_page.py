"""The report in a real browser: drawn, readable, silent, and alone."""

import json

import pytest

from jaxformer.evaluation import significance
from jaxformer.reports import run as report

from .invented import gather, invent_run, invent_text

pytestmark = pytest.mark.slow

TEXT = invent_text()
LONG = "a_run_with_a_name_that_is_longer_than_narrow_windows_have_room_for"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of one run, of three, and of one that has only begun."""
    folder = tmp_path_factory.mktemp("pages")
    one = invent_run(text=TEXT)
    runs = [
        one,
        invent_run("second", text=TEXT, errors=0.1, optimizer__warmup_steps=900),
        invent_run(LONG, text=TEXT, errors=0.5, tokenizer="f00d"),
    ]
    begun = invent_run(metrics=[], corpus=None, batches=None)
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(significance, "RESAMPLES", 50)
        patch.setattr(significance, "TRIALS", 50)
        for name, several, text in (
            ("one", [one], TEXT), ("three", runs, TEXT), ("begun", [begun], None),
        ):  # fmt: skip
            path = folder / f"{name}.html"
            report.write(gather(*several, text=text), path)
            made[name] = path
    return made


@pytest.mark.parametrize("name", ["one", "three"])
def test_every_chart_is_drawn_with_what_it_shows(browser, pages, name):
    browser.open(pages[name])
    charts = {each.get_attribute("data-chart"): each for each in browser.all(".chart")}
    assert {"loss", "nll", "ppl", "bleu", "learning_rate", "gradient_norm",
            "tokens_per_second", "bleu_by_length", "chrf_by_length",
            "length_ratio"} == set(charts)  # fmt: skip
    marks = {
        key: browser.run(
            f"document.querySelectorAll('[data-chart={key}] svg .role-mark path'"
            ").length"
        )
        for key in charts
    }
    assert min(marks.values()) > 0
    data = browser.run("pageData")
    assert data == json.loads(pages[name].with_suffix(".json").read_text("utf-8"))
    bars = sum(len(run["by_length"]) for run in data["runs"])
    assert marks["bleu_by_length"] == bars
    logged = sum(len(run["curves"]["train"]) for run in data["runs"])
    assert marks["gradient_norm"] == logged + len(data["runs"])  # points, and lines
    assert "English to German" in browser.one("header p").text


def test_pointing_at_a_bar_tells_its_numbers(browser, pages):
    browser.open(pages["one"])
    bar = browser.all("[data-chart=bleu_by_length] svg .role-mark path")[0]
    browser.point_at(bar)
    browser.wait(lambda _: browser.texts("#vg-tooltip-element.visible"))
    bucket = browser.run("pageData.runs[0].by_length[0]")
    (told,) = browser.texts("#vg-tooltip-element.visible")
    assert f"{bucket['bleu']:.2f}" in told
    assert f"{bucket['from']}-{bucket['to']}" in told


def test_alignments_join_pieces(browser, pages):
    browser.open(pages["one"])
    data = browser.run("pageData.runs[0]")
    examples = data["worst"] + data["best"]
    links = [len(each["alignment"]["links"]) for each in examples]
    drawn = browser.run(
        "[...document.querySelectorAll('.alignment')]"
        ".map((each) => each.querySelectorAll('line').length)"
    )
    assert drawn == links
    assert min(links) > 0


def test_a_run_that_has_only_begun_has_a_page(browser, pages):
    browser.open(pages["begun"])
    assert browser.all(".chart") == []
    assert "Nothing has been logged yet" in browser.one("main").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1000])
@pytest.mark.parametrize("name", ["one", "three"])
def test_nothing_runs_out_of_the_window(browser, pages, name, width, scheme):
    with browser.seen_by(scheme=scheme, width=width):
        browser.open(pages[name])
        assert browser.run("document.documentElement.scrollWidth") <= width
        widths = browser.run(
            "[...document.querySelectorAll('.chart')].map((each) => ["
            "each.querySelector('svg').getBoundingClientRect().width,"
            "each.clientWidth])"
        )
        assert all(0 < drawn <= room for drawn, room in widths)
        ink, paper = browser.run(
            "['color', 'backgroundColor'].map((key) => "
            "getComputedStyle(document.body)[key].match(/\\d+/g).map(Number))"
        )
        assert (sum(ink[:3]) > sum(paper[:3])) == (scheme == "dark")
