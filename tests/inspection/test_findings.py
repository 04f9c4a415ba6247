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


def said(corpus, config):
    return [f"{each.title}: {each.cure}" for each in warnings(corpus, config)]


NEITHER = finding(6, nl=4, fr=2)
LINES = "correct the lines listed in --output=findings.tsv"


@pytest.mark.parametrize(
    ("kind", "found", "warning"),
    [
        ("swapped", finding(1), "source and target swapped: set data.drop=swapped"),
        ("swapped", finding(0), None),
        ("source_characters", finding(2), f"odd characters in the source: {LINES}"),
        # 1.5 are usual, and 3 deviations more
        ("source_in_neither", finding(5, nl=5), None),
        ("source_in_neither", NEITHER, "language (4 nl, 2 fr): set data.drop=language"),
        ("target_unknown", finding(26), None),  # 15 are usual
        ("target_unknown", finding(27), f"words unknown to the tokeniser: {LINES}"),
        ("identical_sides", finding(15), None),  # 7.5 are usual
        ("identical_sides", finding(16), "text on both sides: set data.drop=copy"),
        ("target_overlap", finding(700), None),
        ("source_repeated", finding(900, most=19), None),
        ("source_repeated", finding(900, most=20), f"of an earlier pair: {LINES}"),
    ],
)
def test_only_what_chance_does_not_explain_is_warned_of(
    clean, config, kind, found, warning
):
    lines = said(planted(clean, "train", **{kind: found}), config)
    assert len(lines) == (warning is not None)
    assert all(line.startswith("train: ") and line.endswith(warning) for line in lines)


def test_repeated_pairs_matter_where_they_are_kept(clean, config):
    for split, deduplicate, cure in (
        ("train", False, "set data.deduplicate=True"), ("dev", True, LINES),
    ):  # fmt: skip
        corpus = planted(clean, split, pair_repeated=finding(7))
        (line,) = said(corpus, replace(config, deduplicate=deduplicate))
        assert line.endswith(f"that repeat an earlier pair: {cure}")


def test_warnings_are_ordered_by_what_is_lost_and_then_by_their_share(clean, config):
    corpus = planted(clean, "train", mojibake=finding(2), swapped=finding(1))
    corpus = planted(corpus, "test", pair_overlap=finding(3), target_unknown=finding(4))
    lost = {"too_long": 225, "empty": 16, "ratio": 15, "copy": 3}
    corpus["splits"]["train"]["dropped"] = lost
    config = replace(config, drop=("copy",), character_coverage=0.9999)
    assert said(corpus, config) == [
        "train: 225 pairs of 1,500, 15%, are dropped by data.max_length=60: raise it",
        f"train: 16 pairs of 1,500, 1%, are dropped as empty: {LINES}",
        "test: 4 pairs of 50 with target words unknown to the tokeniser: set "
        "data.character_coverage=1, or add training text that has the characters, or "
        f"{LINES}",
        "test: 3 pairs of 50 that train has too: remove the lines of train listed in "
        "--output=findings.tsv",
        "train: 2 pairs of 1,500 with a side that was decoded wrongly: set "
        "data.drop=copy,mojibake",
        "train: 1 pair of 1,500 with source and target swapped: set "
        "data.drop=copy,swapped",
    ]
    rare = planted(clean, "train", target_unknown=finding(27))
    (line,) = said(rare, config)
    assert line.endswith(f"set data.character_coverage=1, or {LINES}")
    lost["copy"] = 151
    assert f"train: 151 pairs of 1,500, 10%, are dropped as copy: {LINES}" in said(
        corpus, config
    )
    given = replace(config, tokenizer="own.model")  # which has no key
    assert f"unknown to the tokeniser: {LINES}" in "".join(said(corpus, given))
    lost["copy"] = 3
    text = describe(corpus, config, warnings(corpus, config))
    assert text.startswith("corpus      6 warnings\n            - train: 225 pairs of")
    assert "set data.drop=copy,mojibake,swapped to drop 2 of these from train\n" in text
    assert " train: preparing drops 225 too long, 16 empty, 15 ratio, 3 copy\n" in text


def test_what_preparing_drops_is_no_warning(clean, config):
    kinds = {
        "swapped": "swapped", "source_in_neither": "language", "quotes": "quotes",
        "mojibake": "mojibake", "source_blank": "", "pair_repeated": "",
    }  # fmt: skip
    corpus = planted(clean, "train", **dict.fromkeys(kinds, finding(90)))
    for count in range(5):
        drop = replace(config, drop=tuple(kinds.values())[:count])
        assert len(said(corpus, drop)) == 4 - count
        assert describe(corpus, drop, []).count(", dropped:") == 2 + count


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
