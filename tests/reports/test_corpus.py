"""The corpus report as a page: what is found is in it, and text stays text."""

import pytest

from jaxformer.inspection.findings import Finding
from jaxformer.reports.page import render

LENGTHS = {
    "source": {"words": {3: 4_000, 7: 1_000}, "pieces": {5: 5_000}},
    "target": {"words": {4: 5_000}, "pieces": {6: 5_000}},
}
FILES = [("text/a.en", "text/a.de", 0), ("b.tsv", "b.tsv", 4_000)]
CORPUS = {
    "splits": {"train": {"pairs": 5_000, "files": FILES, "lengths": LENGTHS}},
    "left_out": {"test": "no such file", "languages": "no such file"},
}


def make_page(warnings, sections):
    found = [Finding(title, "drop < 9", 1, 10, "swapped") for title in warnings]
    sections |= {"notes": ["not inspected: no such file"]}
    values = {"title": "en-de", "warnings": found, "sections": sections}
    return render("corpus.html", data={"train": LENGTHS}, corpus=CORPUS, **values)


def test_findings_are_text():
    warnings = ["train: 2 pairs swapped", "a < b"]
    sections = {
        "findings": ["train: 2 pairs swapped:", '  a.en:3  "<script>alert(1)</script>"']
    }
    page = make_page(warnings, sections)
    for part in (
        "<p>2 warnings:</p>", "text/a.en, text/a.de", "b.tsv<br>", "a &lt; b",
        '<li><a href="#train%3A%202%20pairs%20swapped">train: 2 pairs swapped</a>: dr',
        '<b id="train%3A%202%20pairs%20swapped">train: 2 pairs swapped:</b>\n'
        "  a.en:3  &#34;&lt;script&gt;",
    ):  # fmt: skip
        assert part in page
    assert page.index("train: 2 pairs swapped") < page.index("train: 5,000 pairs")
    assert page.count("not inspected: no such file") == 1
    assert "<script>alert" not in page
    assert "<p>No warnings</p>" in make_page([], {})


@pytest.mark.slow
def test_charts_draw_every_sentence(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(make_page(["set data.drop=" + 20 * "entities,"], {}))
    with browser.seen_by(width=390):
        browser.open(page)
        assert browser.run("document.documentElement.scrollWidth") <= 390
    charts = ["train-words", "train-pieces"]
    assert browser.read("[data-chart]:has(svg)", "each.dataset.chart") == charts
    drawn = browser.run("specs['train-words'].data.values")
    assert {"side": "source", "length": 3, "sentences": 4_000} in drawn
    assert {"side": "target", "length": 5, "sentences": 0} in drawn  # the end of a line
    assert sum(row["sentences"] for row in drawn) == 2 * 5_000
