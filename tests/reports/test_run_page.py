"""The report in a real browser: drawn, readable, silent, and alone."""

import pytest

from jaxformer.reports import run as report

from .synthetic_runs import make_run, make_text

pytestmark = pytest.mark.slow

TEXT = make_text()
LONG = "a_run_with_a_name_that_is_longer_than_narrow_windows_have_room_for"
RUNS = [
    make_run(text=TEXT),
    make_run("second", text=TEXT, errors=0.1, optimizer__warmup_steps=900),
    make_run(LONG, text=TEXT, errors=0.5, tokenizer="f00d"),
]


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Write the page of the first runs."""
    folder = tmp_path_factory.mktemp("pages")

    def write(count):
        path = folder / f"{count}.html"
        if not path.exists():
            report.write(report.gather(RUNS[:count], TEXT, examples=2), path)
        return path

    return write


@pytest.mark.parametrize("count", [1, 3])
def test_charts_and_alignments_are_drawn(browser, write, count):
    browser.open(write(count))
    runs = browser.run("pageData.runs")
    marks = browser.run(
        "Object.fromEntries([...document.querySelectorAll('[data-chart]')].map((each)"
        "=> [each.dataset.chart, each.querySelectorAll('.role-mark path').length]))"
    )
    assert len(marks) == 8
    assert min(marks.values()) > 0
    assert marks["bleu_by_length"] == sum(len(run["by_length"]) for run in runs)
    logged = sum(len(run["curves"]["train"]) for run in runs)
    assert marks["gradient_norm"] == logged + len(runs)  # points, and lines
    assert "English to German" in browser.one("header p").text

    bar = browser.all("[data-chart=bleu_by_length] svg .role-mark path")[0]
    browser.point_at(bar)
    browser.wait(lambda _: browser.texts("#vg-tooltip-element.visible"))
    bucket = runs[0]["by_length"][0]
    (told,) = browser.texts("#vg-tooltip-element.visible")
    assert f"{bucket['bleu']:.2f}" in told
    assert f"{bucket['from']}-{bucket['to']}" in told

    for summary in browser.all("#sentences details:not([open]) summary"):
        summary.click()
    examples = [each for run in runs for each in run["worst"] + run["best"]]
    links = [each["alignment"]["links"] for each in examples]
    lines = (  # the pieces in whose middles each line begins and ends
        "[...document.querySelectorAll('.alignment')].map((each) =>"
        "[...each.querySelectorAll('line')].map((line) => [1, 2].map((end) =>"
        "[...each.querySelectorAll('p')[end - 1].children].findIndex((piece) =>"
        "Math.abs(piece.offsetLeft + piece.offsetWidth / 2"
        " - line[`x${end}`].baseVal.value) < 1))))"
    )
    browser.wait(lambda _: browser.run(lines) == links)
    assert min(map(len, links)) > 0


@pytest.mark.parametrize(
    ("count", "width", "scheme"),
    [(1, 320, "dark"), (3, 320, "light"), (3, 1000, "dark")],
)
def test_nothing_runs_out_of_the_window(browser, write, count, width, scheme):
    with browser.seen_by(scheme=scheme, width=width):
        browser.open(write(count))
        assert browser.run("document.documentElement.scrollWidth") <= width
        widths = browser.run(
            "[...document.querySelectorAll('.chart')].map((each) => [each"
            ".querySelector('svg').getBoundingClientRect().width, each.clientWidth])"
        )
        assert all(0 < drawn <= room for drawn, room in widths)
        ink, paper = browser.run(
            "['color', 'backgroundColor'].map((key) => "
            "getComputedStyle(document.body)[key].match(/\\d+/g).map(Number))"
        )
        assert (sum(ink[:3]) > sum(paper[:3])) == (scheme == "dark")
