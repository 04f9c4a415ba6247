"""The corpus report as a page: what is found is in it, and text stays text."""

import html
import json
import re

import pytest

from jaxformer.reports.corpus import make_corpus_page


def side(words, pieces):
    return {"lengths": {"words": words, "pieces": pieces}}


@pytest.fixture(scope="module")
def corpus():
    return {
        "splits": {
            "train": {
                "pairs": 5_000,
                "files": [["text/a.en", "text/a.de"], ["text/b.tsv", "text/b.tsv"]],
                "source": side({3: 4_000, 7: 1_000}, {5: 5_000}),
                "target": side({4: 5_000}, {6: 5_000}),
                "ratio": {"percentiles": {}, "histogram_log2": {-0.5: 1, 1.0: 4_999}},
            }
        },
        "left_out": {"test": "no such file", "languages": "no such file"},
    }


@pytest.fixture(scope="module")
def page(corpus):
    return make_corpus_page(
        corpus,
        title="en-de",
        things=["train: 2 pairs swapped", "a < b"],
        sections={"languages": 'a.en:3  "<script>alert(1)</script>"'},
    )


def test_what_to_look_at_comes_first(page):
    assert "2 things to look at" in page
    assert page.index("train: 2 pairs swapped") < page.index("train: 5,000 pairs")
    assert page.count("Not looked at: no such file") == 1
    assert "text/a.en, text/a.de" in page
    assert "text/b.tsv<br>" in page


def test_text_of_the_corpus_is_never_markup(page):
    assert "<script>alert" not in page
    assert html.escape("<script>alert(1)</script>") in page
    assert "a &lt; b" in page


def test_charts_draw_every_sentence(page, corpus):
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page)[1])
    assert specs.keys() == {"train-words", "train-pieces", "train-ratio"}
    drawn = specs["train-words"]["data"]["values"]
    assert {"side": "source", "length": 3, "sentences": 4_000} in drawn
    assert sum(row["sentences"] for row in drawn) == 2 * 5_000
    ratios = specs["train-ratio"]["data"]["values"]
    assert ratios == [{"ratio": 0.71, "pairs": 1}, {"ratio": 2.0, "pairs": 4_999}]
    for name in specs:
        assert f'data-chart="{name}"' in page


def test_nothing_to_look_at_is_said(corpus):
    page = make_corpus_page(corpus, title="en-de", things=[], sections={})
    assert "Nothing found." in page
