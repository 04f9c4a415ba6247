"""The corpus report as a page: what is found is in it, and text stays text."""

import json
import re

from jaxformer.reports.corpus import make_corpus_page

LENGTHS = {
    "source": {"words": {3: 4_000, 7: 1_000}, "pieces": {5: 5_000}},
    "target": {"words": {4: 5_000}, "pieces": {6: 5_000}},
}
FILES = [("text/a.en", "text/a.de", 0), ("b.tsv", "b.tsv", 4_000)]
CORPUS = {
    "splits": {"train": {"pairs": 5_000, "files": FILES, "lengths": LENGTHS}},
    "left_out": {"test": "no such file", "languages": "no such file"},
}


def test_findings_are_text_and_charts_draw_every_sentence():
    page = make_corpus_page(
        CORPUS,
        title="en-de",
        warnings=["train: 2 pairs swapped", "a < b"],
        sections={"findings": ["train:", 'a.en:3  "<script>alert(1)</script>"']},
    )
    assert "<p>2 warnings:</p>" in page
    assert page.index("train: 2 pairs swapped") < page.index("train: 5,000 pairs")
    assert page.count("Not inspected: no such file") == 1
    assert "text/a.en, text/a.de" in page
    assert "b.tsv<br>" in page
    assert "<script>alert" not in page
    assert "<pre>train:\na.en:3  &#34;&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "a &lt; b" in page
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page)[1])
    assert specs.keys() == {"train-words", "train-pieces"}
    drawn = specs["train-words"]["data"]["values"]
    assert {"side": "source", "length": 3, "sentences": 4_000} in drawn
    assert sum(row["sentences"] for row in drawn) == 2 * 5_000
    assert all(f'data-chart="{name}"' in page for name in specs)


def test_no_warning_is_said():
    page = make_corpus_page(CORPUS, title="en-de", warnings=[], sections={})
    assert "<p>No warnings</p>" in page
