"""What is planted in a corpus is found, with the file and the line it is in."""

import gzip
import json
import sys
from collections import Counter
from dataclasses import replace

import pytest

from jaxformer.data import grammar
from jaxformer.data.sources import CorpusConfig, read_pairs
from jaxformer.data.tokenizer import train_tokenizer
from jaxformer.inspection.corpus import inspect_corpus

FRENCH = "Le vieux marin raconte toujours les mêmes histoires quand il fait froid."
CONFIG = CorpusConfig(
    corpus="files", source_language="en", target_language="de", directory="", train="",
    dev="", test="", train_source="", train_target="", dev_source="", dev_target="",
    test_source="", test_target="", data_dir="", download=False, builtin_pairs=0,
    builtin_eval_pairs=0, vocab_size=400, vocab_sentences=10_000,
    character_coverage=1.0, max_length=60, max_ratio=3.0, deduplicate=True, seed=0,
)  # fmt: skip


def write(folder, name, pairs):
    """Write NAME.en and NAME.de.gz."""
    source, target = ("".join(f"{p[side]}\n" for p in pairs) for side in (0, 1))
    (folder / f"{name}.en").write_bytes(source.encode())
    (folder / f"{name}.de.gz").write_bytes(gzip.compress(target.encode()))


def configure(folder):
    """A corpus of a folder: train is what the globs a*.en and a*.de.gz match."""
    names = {"train": "a*", "dev": "dev", "test": "test"}
    return replace(
        CONFIG,
        **{f"{split}_source": f"{folder}/{n}.en" for split, n in names.items()},
        **{f"{split}_target": f"{folder}/{n}.de.gz" for split, n in names.items()},
    )


def sentences(split, count):
    found = dict.fromkeys(
        (p.source, p.target) for p in grammar.generate(split, count, 0)
    )
    return [pair for pair in found if min(len(side.split()) for side in pair) > 5]


def places(found):
    return [tuple(place) for place in found["places"]]


@pytest.fixture(scope="module")
def clean():
    return sentences("train", 4000), sentences("dev", 200), sentences("test", 200)


@pytest.fixture(scope="module")
def tokenizer(clean, tmp_path_factory):
    return train_tokenizer(
        (side for pair in clean[0] for side in pair),
        tmp_path_factory.mktemp("tokenizer") / "model",
        vocab_size=400, character_coverage=1.0, max_sentences=10_000, seed=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(clean, tmp_path_factory):
    """Two files of train, a1 and a2, with planted lines; dev and test overlap."""
    folder = tmp_path_factory.mktemp("text")
    train, dev, test = ([*pairs] for pairs in clean)
    first, second = train[:900], train[900:]
    first[9] = (f"a\u2028b {first[9][0]}", f"{first[9][1]}\x85")  # line 10 stays one
    first[19] = first[19][::-1]
    first[29] = (first[29][0], FRENCH)
    second[4] = (second[4][0], second[4][0])
    second[6] = (second[6][0], "")
    second[8] = ("cafe\u0301 \u200b \u200b", second[8][1])
    second[10] = first[1]
    second[11] = first[1]
    second[12] = (first[2][0], second[12][1])
    test[3] = first[5]
    test[4] = (first[6][0], test[4][1])
    dev[2] = (dev[2][0], second[7][1])
    write(folder, "a1", first)
    write(folder, "a2", second)
    write(folder, "dev", dev)
    write(folder, "test", test)
    return folder


@pytest.fixture(scope="module")
def found(folder, tokenizer):
    return inspect_corpus(configure(folder), tokenizer)


def test_it_is_json(found):
    json.dumps(found)
    assert found["left_out"] == {}
    assert list(found["splits"]) == ["train", "dev", "test"]


def test_swapped_and_foreign_lines_are_named(found, folder):
    languages = found["splits"]["train"]["languages"]
    expected = {
        "swapped": [(f"{folder}/a1.en", 20)],
        "source_in_target_language": [],
        "target_in_source_language": [(f"{folder}/a2.de.gz", 5)],
        "source_in_neither": [],
        "target_in_neither": [(f"{folder}/a1.de.gz", 30)],
    }
    named = {
        k: [tuple(e["place"]) for e in v["examples"]] for k, v in languages.items()
    }
    assert named == expected
    assert {k: v["pairs"] for k, v in languages.items()} == {
        kind: len(lines) for kind, lines in expected.items()
    }
    assert languages["target_in_neither"]["examples"][0]["target"] == FRENCH


def test_identical_sides_are_named(found, folder):
    same = found["splits"]["train"]["identical_sides"]
    assert same["pairs"] == 1
    assert tuple(same["examples"][0]["place"]) == (f"{folder}/a2.en", 5)


def test_odd_characters_are_named_with_their_lines(found, folder):
    train = found["splits"]["train"]
    source, target = train["source"]["characters"], train["target"]["characters"]
    assert {name: (f["count"], places(f)) for name, f in source.items()} == {
        "U+2028 LINE SEPARATOR": (1, [(f"{folder}/a1.en", 10)]),
        "U+200B ZERO WIDTH SPACE": (2, [(f"{folder}/a2.en", 9)]),
        "not NFC": (1, [(f"{folder}/a2.en", 9)]),
    }
    assert {name: places(f) for name, f in target.items()} == {
        "U+0085 NEXT LINE": [(f"{folder}/a1.de.gz", 10)]
    }
    assert found["splits"]["dev"]["source"]["characters"] == {}


def test_blank_sides_are_named(found, folder):
    train = found["splits"]["train"]
    assert places(train["target"]["blank"]) == [(f"{folder}/a2.de.gz", 7)]
    assert train["source"]["blank"]["pairs"] == 0


def test_overlap_is_counted_by_pair_and_by_side(found, folder):
    counts = {
        name: {kind: f["pairs"] for kind, f in kinds.items()}
        for name, kinds in found["overlap"].items()
    }
    assert counts == {
        "dev": {"pair": 0, "source": 0, "target": 1},
        "test": {"pair": 1, "source": 2, "target": 1},
    }
    first, second = found["overlap"]["test"]["source"]["examples"]
    assert tuple(first["place"]) == (f"{folder}/test.en", 4)
    assert tuple(first["train"]) == (f"{folder}/a1.en", 6)
    assert tuple(second["place"]) == (f"{folder}/test.en", 5)
    assert tuple(second["train"]) == (f"{folder}/a1.en", 7)
    (target,) = found["overlap"]["dev"]["target"]["examples"]
    assert tuple(target["place"]) == (f"{folder}/dev.de.gz", 3)
    assert tuple(target["train"]) == (f"{folder}/a2.de.gz", 8)


def test_repeats_are_counted_and_named(found, folder):
    train = found["splits"]["train"]
    pairs = train["repeated_pairs"]
    assert (pairs["texts"], pairs["pairs"], pairs["extra"]) == (1, 3, 2)
    assert places(pairs["most"][0]) == [
        (f"{folder}/a1.en", 2), (f"{folder}/a2.en", 11), (f"{folder}/a2.en", 12),
    ]  # fmt: skip
    ambiguous = train["source"]["ambiguous"]
    assert (ambiguous["texts"], ambiguous["pairs"]) == (1, 2)
    assert places(ambiguous["most"][0]) == [
        (f"{folder}/a1.en", 3), (f"{folder}/a2.en", 13),
    ]  # fmt: skip


def test_histograms_count_every_sentence(found, folder, tokenizer):
    pairs = list(read_pairs(configure(folder), "train"))
    train = found["splits"]["train"]
    assert train["pairs"] == len(pairs)
    for side, encode in enumerate((tokenizer.encode, tokenizer.encode_target)):
        lengths = train[("source", "target")[side]]["lengths"]
        texts = [pair[side] for pair in pairs]
        assert lengths["words"] == Counter(len(text.split()) for text in texts)
        assert lengths["pieces"] == Counter(len(ids) - 1 for ids in encode(texts))
    ratios = train["ratio"]["histogram_log2"]
    assert sum(ratios.values()) == len(pairs) - 1  # not of the blank one


def test_a_missing_split_is_left_out_and_said(folder, tokenizer):
    config = replace(configure(folder), test_source="")
    found = inspect_corpus(config, tokenizer)
    assert list(found["splits"]) == list(("train", "dev"))
    assert "test split is missing" in found["left_out"]["test"]
    config = replace(configure(folder), test_source=f"{folder}/none.en")
    assert "none.en" in inspect_corpus(config, tokenizer)["left_out"]["test"]


def test_without_scikit_learn_the_rest_is_looked_at(folder, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    found = inspect_corpus(configure(folder), tokenizer)
    assert "pip install 'jaxformer[report]'" in found["left_out"]["languages"]
    assert "languages" not in found["splits"]["train"]
    assert found["splits"]["train"]["identical_sides"]["pairs"] == 1


def test_text_that_is_gone_is_said(folder, tokenizer):
    found = inspect_corpus(replace(configure(folder), train_source="/no/x"), tokenizer)
    assert "/no/x" in found["left_out"]["train"]
    assert list(found["splits"]) == ["dev", "test"]
    assert found["overlap"] == {}


def test_tsv_and_builtin_text_have_places_too(clean, tokenizer, tmp_path):
    pairs = [*clean[0][:20], ("two\u2029", "zwei"), *clean[0][:1]]
    for name in ("1", "2"):
        lines = "".join(f"{a}\t{b}\n" for a, b in (pairs if name == "2" else pairs[:3]))
        (tmp_path / f"{name}.tsv").write_text(lines, encoding="utf-8", newline="\n")
    config = replace(CONFIG, corpus="tsv", train=f"{tmp_path}/*.tsv")
    train = inspect_corpus(config, tokenizer)["splits"]["train"]
    (odd,) = train["source"]["characters"].values()
    assert places(odd) == [(f"{tmp_path}/2.tsv", 21)]
    config = replace(
        CONFIG, corpus="builtin:grammar", builtin_pairs=50, builtin_eval_pairs=5
    )
    train = inspect_corpus(config, tokenizer)["splits"]["train"]
    assert (train["pairs"], train["files"]) == (50, [["builtin:grammar train"] * 2])
