"""The report in a real browser: drawn, readable, silent, and alone."""

import pytest

from jaxformer.reports import run as report

from .synthetic_runs import make_run, make_text

pytestmark = pytest.mark.slow

TEXT = make_text()
LONG = "a_run_with_a_name_that_is_longer_than_narrow_windows_have_room_for"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of one run and of three."""
    folder = tmp_path_factory.mktemp("pages")
    runs = [
        make_run(text=TEXT),
        make_run("second", text=TEXT, errors=0.1, optimizer__warmup_steps=900),
        make_run(LONG, text=TEXT, errors=0.5, tokenizer="f00d"),
    ]
    made = {}
    for name, several in (("one", runs[:1]), ("three", runs)):
        made[name] = folder / f"{name}.html"
        report.write(report.gather(several, TEXT, examples=2), made[name])
    return made


@pytest.mark.parametrize("name", ["one", "three"])
def test_every_chart_is_drawn_with_what_it_shows(browser, pages, name):
    browser.open(pages[name])
    marks = browser.run(
        "Object.fromEntries([...document.querySelectorAll('[data-chart]')].map((each)"
        "=> [each.dataset.chart, each.querySelectorAll('.role-mark path').length]))"
    )
    runs = browser.run("pageData.runs")
    assert set(marks) == {
        "loss", "nll", "bleu", "learning_rate", "gradient_norm", "tokens_per_second",
        "bleu_by_length", "chrf_by_length",
    }  # fmt: skip
    assert min(marks.values()) > 0
    assert marks["bleu_by_length"] == sum(len(run["by_length"]) for run in runs)
    logged = sum(len(run["curves"]["train"]) for run in runs)
    assert marks["gradient_norm"] == logged + len(runs)  # points, and lines
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


def test_alignments_join_the_middles_of_pieces(browser, pages):
    browser.open(pages["three"])
    for details in browser.all("#sentences details:not([open]) summary"):
        details.click()
    data = browser.run("pageData.runs")
    examples = [each for run in data for each in run["worst"] + run["best"]]
    links = [each["alignment"]["links"] for each in examples]
    lines = (
        "[...document.querySelectorAll('.alignment')].map((each) =>"
        "[...each.querySelectorAll('line')].map((line) => [1, 2].map((end) =>"
        "[...each.querySelectorAll('p')[end - 1].children].findIndex((piece) =>"
        "Math.abs(piece.offsetLeft + piece.offsetWidth / 2"
        " - line[`x${end}`].baseVal.value) < 1))))"
    )
    browser.wait(lambda _: browser.run(lines) == links)
    assert min(map(len, links)) > 0


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("one", 320, "dark"), ("three", 320, "light"), ("three", 1000, "dark")],
)
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
