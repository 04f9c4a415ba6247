"""The report in a real browser: drawn, readable, silent, and alone."""

import pytest

from jaxformer.reports import run_report as report
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


def test_charts_draw_what_was_logged_in_one_colour_for_each_run(browser, pages):
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
            for key, kind in {**kinds, "formula": "schedule"}.items()
            for line in {**run["curves"], **run["learning_rate"]}[key]
            if name in line
        }
    buckets = [bucket for run in runs for bucket in run["by_length"]]
    lengths = [bucket["chrf"] for bucket in buckets]
    assert [row["chrf"] for row in rows["chrf_by_length"]] == lengths
    thinned = browser.run("[0, 400, 1199].map((n) => thin([...Array(n).keys()]))")
    assert list(map(len, thinned)) == [0, 400, 400]
    assert thinned[2][-1] == 1198

    count = "each.querySelectorAll('.role-mark path').length"
    marks = dict(browser.read("[data-chart]", f"[each.dataset.chart, {count}]"))
    assert marks.keys() == specs.keys()
    assert min(marks.values()) > 0
    assert marks["bleu_by_length"] == len(buckets)
    assert marks["gradient_norm"] == len(rows["gradient_norm"]) + len(runs)  # lines
    browser.point_at(browser.all("[data-chart=bleu_by_length] .role-mark path")[0])
    browser.wait(lambda _: browser.texts("#vg-tooltip-element.visible"))
    (told,) = browser.texts("#vg-tooltip-element.visible")
    assert f"{buckets[0]['bleu']:.2f}" in told
    assert f"{buckets[0]['from']}-{buckets[0]['to']}" in told


def test_pieces_are_joined_with_those_they_are_aligned_with(browser, pages):
    browser.open(pages[3])
    assert "English to German" in browser.one("header p").text
    for summary in browser.all("#sentences details:not([open]) summary"):
        summary.click()
    runs = browser.run("pageData.runs")
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
