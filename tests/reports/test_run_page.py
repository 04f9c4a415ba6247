"""The report in a real browser: drawn, readable, silent, and alone."""

import pytest

from jaxformer.reports import run as report
from jaxformer.reports.page import COLOURS

from .synthetic_runs import make_run, make_text

pytestmark = pytest.mark.slow

TEXT = make_text()
LONG = "a_run_with_a_name_that_is_longer_than_narrow_windows_have_room_for"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of the first runs, by their number."""
    runs = [
        make_run(text=TEXT),
        make_run("second", text=TEXT, errors=0.1, warmup_steps=900),
        make_run(LONG, text=TEXT, errors=0.5, tokenizer="f00d"),
    ]
    files = {n: tmp_path_factory.mktemp("pages") / f"{n}.html" for n in (1, 3)}
    for count, file in files.items():
        shown = zip(*runs[:count], strict=True)
        report.write(report.gather(*shown, TEXT, examples=2), file)
    return files


@pytest.mark.parametrize("count", [1, 3])
def test_charts_and_alignments_are_drawn(browser, pages, count):
    browser.open(pages[count])
    runs = browser.run("pageData.runs")
    marks = dict(
        browser.read(
            "[data-chart]",
            "[each.dataset.chart, each.querySelectorAll('.role-mark path').length]",
        )
    )
    assert len(marks) == 8
    assert min(marks.values()) > 0
    assert marks["bleu_by_length"] == sum(len(run["by_length"]) for run in runs)
    logged = sum(len(run["curves"]["train"]) for run in runs)
    assert marks["gradient_norm"] == logged + len(runs)  # points, and lines
    assert "English to German" in browser.one("header p").text

    browser.point_at(browser.all("[data-chart=bleu_by_length] .role-mark path")[0])
    browser.wait(lambda _: browser.texts("#vg-tooltip-element.visible"))
    bucket = runs[0]["by_length"][0]
    (told,) = browser.texts("#vg-tooltip-element.visible")
    assert f"{bucket['bleu']:.2f}" in told
    assert f"{bucket['from']}-{bucket['to']}" in told

    for summary in browser.all("#sentences details:not([open]) summary"):
        summary.click()
    examples = [each for run in runs for each in run["worst"] + run["best"]]
    links = [each["alignment"]["links"] for each in examples]
    assert min(map(len, links)) > 0
    ends = (  # the pieces in whose middles each line begins and ends
        "[...each.querySelectorAll('line')].map((line) => [1, 2].map((end) =>"
        "[...each.querySelectorAll('p')[end - 1].children].findIndex((piece) =>"
        "Math.abs(piece.offsetLeft + piece.offsetWidth / 2"
        " - line[`x${end}`].baseVal.value) < 1)))"
    )
    browser.wait(lambda _: browser.read(".alignment", ends) == links)


def test_charts_hold_what_was_logged_in_one_colour_for_each_run(browser, pages):
    browser.open(pages[3])
    specs, runs = browser.run("specs"), browser.run("pageData.runs")
    scale = {"domain": [run["name"] for run in runs], "range": [*COLOURS[:3]]}
    assert all(spec["encoding"]["color"]["scale"] == scale for spec in specs.values())
    rows = {name: spec["data"]["values"] for name, spec in specs.items()}
    kinds = {"train": "training", "eval": "validation", "final": "averaged"}
    for name in ("loss", "bleu", "learning_rate"):
        fields = ("run", "kind", "step", name)
        assert {tuple(row[field] for field in fields) for row in rows[name]} == {
            (run["name"], kind, line["step"], line[name])
            for run in runs
            for key, kind in {**kinds, "formula": "equation 3"}.items()
            for line in {**run["curves"], **run["learning_rate"]}[key]
            if name in line
        }
    lengths = [bucket["chrf"] for run in runs for bucket in run["by_length"]]
    assert [row["chrf"] for row in rows["chrf_by_length"]] == lengths
    thinned = browser.run("[0, 400, 1199].map((n) => thin([...Array(n).keys()]))")
    assert list(map(len, thinned)) == [0, 400, 400]
    assert thinned[2][-1] == 1198


@pytest.mark.parametrize(
    ("count", "width", "scheme"),
    [(1, 320, "dark"), (3, 320, "light"), (3, 1000, "dark")],
)
def test_nothing_runs_out_of_the_window(browser, pages, count, width, scheme):
    with browser.seen_by(scheme=scheme, width=width):
        browser.open(pages[count])
        assert browser.run("document.documentElement.scrollWidth") <= width
        drawn = "each.querySelector('svg').getBoundingClientRect().width"
        rooms = browser.read(".chart", f"[{drawn}, each.clientWidth]")
        assert all(0 < drawn <= room for drawn, room in rooms)
        ink, paper = browser.run(
            "['color', 'backgroundColor'].map((key) => "
            "getComputedStyle(document.body)[key].match(/\\d+/g).map(Number))"
        )
        assert (sum(ink[:3]) > sum(paper[:3])) == (scheme == "dark")
