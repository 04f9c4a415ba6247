"""The words of the corpus report: warnings first, then every finding."""

import copy
import json
from dataclasses import replace

import pytest

from jaxformer.inspection.findings import describe, warnings, without_text
from jaxformer.inspection.text_findings import inspect_corpus


@pytest.fixture(scope="module")
def clean(config):
    """The report on the built-in corpus: 1,500 pairs, 50 of dev and 50 of test."""
    return inspect_corpus(config)


def finding(pairs=1, texts=("Hallo", "Hello"), **labels):
    examples = [{"place": ("text/a.en", 3), "text": texts}] * min(pairs, 20)
    described = {"pairs": pairs, "count": pairs, "examples": examples}
    inner = {
        name: {**described, "pairs": n, "labels": {}} for name, n in labels.items()
    }
    return {**described, "labels": inner}


def planted(clean, split, **findings):
    corpus = copy.deepcopy(clean)
    corpus["splits"][split]["findings"] |= findings
    return corpus


def test_a_clean_corpus_has_no_warning(clean, config):
    assert warnings(clean, config) == []
    text = describe(clean, [])
    assert text.startswith("corpus      no warnings\nlengths ")
    assert "train source words " in text
    left_out = {"left_out": {"train": "no file", "test": "no file"}}
    assert describe(clean | left_out, []).count("not inspected: no file") == 1


def titles(corpus, config):
    return [each.title for each in warnings(corpus, config)]


NEITHER = finding(6, nl=4, fr=2)


@pytest.mark.parametrize(
    ("kind", "found", "warning"),
    [
        ("swapped", finding(1), "1 pair of 1,500 with source and target swapped"),
        ("swapped", finding(0), None),
        ("source_blank", finding(2), "2 pairs of 1,500 with a blank source"),
        # 1.5 are usual, and 3 deviations more
        ("source_in_neither", finding(5, nl=5), None),
        ("source_in_neither", NEITHER, "source in neither language (4 nl, 2 fr)"),
        ("target_unknown", finding(26), None),  # 15 are usual
        ("target_unknown", finding(27), "with target words unknown to the tokeniser"),
        ("identical_sides", finding(15), None),  # 7.5 are usual
        ("identical_sides", finding(16), "with the same text on both sides"),
        ("target_overlap", finding(700), None),
        ("source_repeated", finding(900, most=19), None),
        ("source_repeated", finding(900, most=20), "the source of an earlier pair"),
    ],
)
def test_only_what_chance_does_not_explain_is_warned_of(
    clean, config, kind, found, warning
):
    said = titles(planted(clean, "train", **{kind: found}), config)
    assert len(said) == (warning is not None)
    assert all(line.startswith("train: ") and line.endswith(warning) for line in said)


def test_repeated_pairs_matter_where_they_are_kept(clean, config):
    for split, deduplicate, count in (
        ("train", True, 0), ("train", False, 1), ("dev", True, 1),
    ):  # fmt: skip
        corpus = planted(clean, split, pair_repeated=finding(7))
        assert len(titles(corpus, replace(config, deduplicate=deduplicate))) == count


def test_warnings_are_ordered_by_what_is_lost_and_then_by_their_share(clean, config):
    """Those of few pairs are one line."""
    corpus = planted(clean, "train", source_blank=finding(2), swapped=finding(1))
    corpus = planted(corpus, "test", pair_overlap=finding(3), source_overlap=finding(4))
    corpus["splits"]["train"]["dropped"] = {"too_long": 225, "ratio": 15}
    first = "train: 225 pairs of 1,500, 15%, are dropped by data.max_length=60; raise"
    found = warnings(corpus, config)
    assert [each.title for each in found] == [
        f"{first} it",
        "test: 4 pairs of 50 with a source that train has too",
        "test: 3 pairs of 50 that train has too",
        "train: 2 pairs of 1,500 with a blank source",
        "train: 1 pair of 1,500 with source and target swapped",
    ]
    small = [each._replace(share=0.0009) for each in found[3:]]
    text = describe(corpus, [*found[:3], *small])
    assert text.startswith(f"corpus      5 warnings\n            - {first}")
    assert (
        "- 2 of less than 0.1%: train: 2 pairs of 1,500 with a blank source; tr" in text
    )


def test_what_preparing_drops_is_no_warning(clean, config):
    kinds = {
        "swapped": "swapped", "source_in_neither": "language",
        "identical_sides": "copy", "mojibake": "mojibake", "quotes": "quotes",
    }  # fmt: skip
    corpus = planted(clean, "train", **dict.fromkeys(kinds, finding(90)))
    for count in range(len(kinds) + 1):
        drop = tuple(kinds.values())[:count]
        assert len(titles(corpus, replace(config, drop=drop))) == len(kinds) - count


def test_examples_are_quoted_and_listed_with_their_lines(clean, config):
    overlap = finding(1)
    overlap["examples"][0] = {**overlap["examples"][0], "train": ("b\n.en", 7)}
    corpus = planted(
        clean, "train", swapped=finding(1, ("Ha\u2028llo", "word " * 90)),
        source_blank=finding(40), source_characters=finding(3, U=3),
        pair_repeated=finding(9, most=9), pair_overlap=overlap,
    )  # fmt: skip
    text = describe(corpus, warnings(corpus, config))
    assert '  a.en:3  "Ha\\u2028llo"\n                      "word word ' in text
    assert "  a.en:3, :3, :3, :3, :3 and 35 more\n" in text
    assert "  3 x U  a.en:3, :3, :3" in text
    assert '  9 x "Hallo"  a.en:3, :3, :3 and 6 more' in text
    assert '  a.en:3 = b\\n.en:7  "Hallo"' in text
    assert max(map(len, text.splitlines())) <= 100


def test_json_quotes_no_text(clean):
    corpus = planted(clean, "train", swapped=finding(1, ("secret", "geheim")))
    said = json.dumps(without_text(corpus))
    assert "secret" not in said
    assert '"examples": [{"place": ["text/a.en", 3]}]' in said
