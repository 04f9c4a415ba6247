"""The words of the corpus report: what to look at first, then all of it."""

import copy
import json

import pytest

from jaxformer.data import grammar, sources
from jaxformer.data.tokenizer import train_tokenizer
from jaxformer.inspection.bars import choose_edges, count_ranges, draw_histograms
from jaxformer.inspection.corpus import inspect_corpus
from jaxformer.inspection.findings import describe, figures, find_things

SIDES = ("source", "target")


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The report on the built-in corpus, in which nothing is to be found."""
    config = sources.CorpusConfig(
        corpus="builtin:grammar", source_language="en", target_language="de",
        directory="", train="", dev="", test="", train_source="", train_target="",
        dev_source="", dev_target="", test_source="", test_target="", data_dir="",
        download=False, builtin_pairs=1500, builtin_eval_pairs=50, vocab_size=400,
        vocab_sentences=10_000, character_coverage=1.0, max_length=60, max_ratio=3.0,
        deduplicate=True, seed=0,
    )  # fmt: skip
    pairs = grammar.generate("train", 1500, 0)
    tokenizer = train_tokenizer(
        (side for pair in pairs for side in (pair.source, pair.target)),
        tmp_path_factory.mktemp("tokenizer") / "model",
        vocab_size=400, character_coverage=1.0, max_sentences=10_000, seed=0,
    )  # fmt: skip
    return inspect_corpus(config, tokenizer)


def things(corpus, *, deduplicate=True):
    return list(find_things(corpus, deduplicate=deduplicate))


def text(corpus):
    return "\n".join(describe(corpus, deduplicate=True))


def changed(corpus, change):
    corpus = copy.deepcopy(corpus)
    change(corpus["splits"]["train"], corpus)
    return corpus


def test_a_clean_corpus_gives_nothing(clean):
    assert things(clean) == []
    said = text(clean)
    assert said.startswith("corpus      nothing found; looked for swapped pairs")
    assert "train, 1,500 pairs" in said
    for section in ("languages", "characters", "overlap"):
        assert f"\n{section} " not in said


def test_lines_fit_a_terminal(clean):
    def change(train, corpus):
        example = {"place": ("x" * 30, 3), "source": "a " * 90, "target": "b" * 150}
        train["languages"]["swapped"] = {"pairs": 1, "examples": [example]}

    assert max(map(len, text(changed(clean, change)).splitlines())) <= 100


@pytest.mark.parametrize(("count", "is_said"), [(0, False), (1, True)])
def test_one_swapped_pair_is_to_be_looked_at(clean, count, is_said):
    def change(train, corpus):
        example = {"place": ("text/a.en", 3), "source": "Hallo", "target": "Hello"}
        train["languages"]["swapped"] = {"pairs": count, "examples": [example] * count}

    corpus = changed(clean, change)
    expected = ["train: 1 pair of 1,500 with source and target swapped"]
    assert things(corpus) == (expected if is_said else [])
    assert ('a.en:3  "Hallo"' in text(corpus)) == is_said


def test_a_few_unusual_sentences_are_shown_and_no_reason_to_look(clean):
    def change(train, corpus):
        example = {"place": ("a.en", 3), "source": "Quito, Ecuador", "target": "Quito"}
        train["languages"]["source_in_neither"] = {"pairs": 5, "examples": [example]}

    corpus = changed(clean, change)
    assert things(corpus) == []
    assert 'a.en:3  "Quito, Ecuador"' in text(corpus)
    corpus["splits"]["train"]["languages"]["source_in_neither"]["pairs"] = 6
    assert len(things(corpus)) == 1  # of 1,500, 1.5 are usual and 3 deviations more


def test_overlap_comes_first(clean):
    def change(train, corpus):
        train["source"]["blank"]["pairs"] = 2
        corpus["overlap"]["test"]["pair"]["pairs"] = 3
        corpus["overlap"]["test"]["source"]["pairs"] = 4

    first, second = things(changed(clean, change))
    assert first == (
        "test: 4 pairs of 50 with a source that train has too, 3 with the same target"
    )
    assert second == "train: 2 pairs with a blank source"


def test_a_source_in_test_that_a_target_is_in_train_is_no_overlap(clean):
    def change(train, corpus):
        corpus["overlap"]["test"]["target"]["pairs"] = 4

    assert things(changed(clean, change)) == []


def test_unknown_words_are_a_share(clean):
    def change(train, corpus):
        train["target"]["words"] = 1000
        train["target"]["unknown"]["count"] = 2

    assert things(changed(clean, change)) == [
        "train: 0.2 % of the target words are unknown to the tokeniser"
    ]


def test_pairs_that_came_before_matter_where_they_are_kept(clean):
    def change(train, corpus):
        train["repeated_pairs"]["extra"] = 7

    corpus = changed(clean, change)
    assert things(corpus) == []
    assert things(corpus, deduplicate=False) == ["train: 7 pairs that came before"]


def test_what_was_left_out_is_said(clean):
    corpus = copy.deepcopy(clean)
    corpus["left_out"] = {"languages": "run: pip install 'jaxformer[report]'"}
    assert "not looked at: run: pip install 'jaxformer[report]'" in text(corpus)


def test_figures_quote_no_text(clean):
    def change(train, corpus):
        example = {"place": ("a.en", 3), "source": "secret", "target": "geheim"}
        train["languages"]["swapped"] = {"pairs": 1, "examples": [example]}

    found = json.dumps(figures(changed(clean, change)))
    assert "secret" not in found
    assert '"swapped": {"pairs": 1, "examples": [{"place": ["a.en", 3]}]}' in found


# Bars


def test_ranges_hold_every_sentence_once():
    sides = [{length: 50 - abs(length - 20) for length in range(60)}, {75: 3}]
    sides[0] = {length: count for length, count in sides[0].items() if count > 0}
    edges = choose_edges(sides)
    for side in sides:
        assert sum(count_ranges(side, edges)) == sum(side.values())
    assert edges == sorted(set(edges))
    assert len(edges) <= 13


def test_ranges_of_one_length():
    assert choose_edges([{4: 2}, {4: 2}]) == [1, 2, 3, 4, 5]
    assert choose_edges([{0: 1}, {0: 1}]) == [0, 1]


def test_bars_are_as_long_as_their_counts():
    lines = list(draw_histograms("words", [{1: 40, 2: 20}, {1: 10, 2: 0}]))
    assert [line.count("█") for line in lines] == [0, 24 + 6, 12]
