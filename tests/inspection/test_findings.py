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
    text = describe(clean, config, [])
    assert text.startswith("corpus      no warnings\nlengths ")
    assert "train source words " in text
    left_out = {"left_out": {"train": "no file", "test": "no file"}}
    assert describe(clean | left_out, config, []).count("not inspected: no file") == 1


def titles(corpus, config):
    return [each.title for each in warnings(corpus, config)]


NEITHER = finding(6, nl=4, fr=2)


@pytest.mark.parametrize(
    ("kind", "found", "warning"),
    [
        ("swapped", finding(1), "1 pair of 1,500 with source and target swapped"),
        ("swapped", finding(0), None),
        ("source_characters", finding(2), "with odd characters in the source"),
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


def test_warnings_are_ordered_and_end_with_their_cure(clean, config):
    """First what is lost, then by the share of pairs."""
    corpus = planted(
        clean, "train", swapped=finding(1), shifted=finding(40), mojibake=finding(2),
        pair_repeated=finding(3), target_unknown=finding(60),
    )  # fmt: skip
    corpus = planted(corpus, "test", pair_overlap=finding(3), swapped=finding(4))
    lost = {"too_long": 225, "empty": 16, "ratio": 15, "copy": 3}
    corpus["splits"]["train"]["dropped"] = lost
    config = replace(
        config, drop=("copy",), deduplicate=False, character_coverage=0.9999
    )
    found = warnings(corpus, config)
    lines = "correct the lines listed in --output=findings.tsv"
    assert [f"{each.title}: {each.cure}" for each in found] == [
        "train: 225 pairs of 1,500, 15%, are dropped by data.max_length=60: raise it",
        f"train: 16 pairs of 1,500, 1%, are dropped as blank: {lines}",
        f"test: 4 pairs of 50 with source and target swapped: {lines}",
        "test: 3 pairs of 50 that train has too: remove them from train, by the texts "
        "in --output=findings.tsv",
        "train: 60 pairs of 1,500 with target words unknown to the tokeniser: set "
        f"data.character_coverage=1, or {lines}",
        "train: 40 pairs of 1,500 in blocks that fit better shifted by a line: "
        f"{lines}",
        "train: 3 pairs of 1,500 that repeat an earlier pair: set "
        "data.deduplicate=True",
        "train: 2 pairs of 1,500 with a side that was decoded wrongly: set "
        "data.drop=copy,mojibake",
        "train: 1 pair of 1,500 with source and target swapped: set "
        "data.drop=copy,swapped",
    ]
    text = describe(corpus, config, found)
    assert text.startswith("corpus      9 warnings\n            - train: 225 pairs of")
    assert (
        " to drop all of these kinds, set data.drop=copy,mojibake,swapped\n"
        "            train: preparing drops 225 too_long, 16 empty, 15 ratio, 3 copy\n"
    ) in text


def test_what_preparing_drops_is_neither_a_warning_nor_listed(clean, config):
    kinds = {
        "swapped": "swapped", "source_in_neither": "language",
        "identical_sides": "copy", "mojibake": "mojibake", "quotes": "quotes",
        "source_blank": "empty",
    }  # fmt: skip
    corpus = planted(clean, "train", **dict.fromkeys(kinds, finding(90)))
    for count in range(len(kinds)):
        drop = replace(config, drop=tuple(kinds.values())[:count])
        assert len(titles(corpus, drop)) == len(kinds) - 1 - count
        assert describe(corpus, drop, []).count("train: 90 pairs") == 5 - count


def test_examples_are_quoted_and_listed_with_their_lines(clean, config):
    overlap = finding(1)
    overlap["examples"][0] = {**overlap["examples"][0], "train": ("b\n.en", 7)}
    corpus = planted(
        clean, "dev", swapped=finding(1, ("Ha\u2028llo", "word " * 90)),
        source_blank=finding(40), source_characters=finding(3, U=3),
        pair_repeated=finding(9, most=9), pair_overlap=overlap,
    )  # fmt: skip
    text = describe(corpus, config, warnings(corpus, config))
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
