"""Tests of inspection: mistakes put into a corpus are found, with file and line."""

import gzip
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer import grammar
from jaxformer.corpus.prepared import DevSet, PreparedCorpus
from jaxformer.corpus.store import TokenizedCorpus
from jaxformer.inspection.findings import describe, table
from jaxformer.inspection.piece_findings import (
    add_pieces,
    find_unknown,
    ratio_percentiles,
)
from jaxformer.inspection.text_findings import inspect_corpus
from jaxformer.system.worker import Worker
from jaxformer.text.ragged import Ragged
from jaxformer.text.sources import read_pairs

FRENCH = "Le vieux marin raconte toujours les mêmes histoires quand il fait froid."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two files of train, a1 and a2, with planted lines; dev and test overlap."""
    folder = tmp_path_factory.mktemp("text")
    train, dev, test = (
        list(dict.fromkeys((p.source, p.target) for p in grammar.generate(name, n, 0)))
        for name, n in (("train", 1600), ("dev", 100), ("test", 100))
    )
    first, second = train[:900], train[900:]
    first[9] = (f"a\u2028b {first[9][0]}", f"{first[9][1]}\x85")  # line 10 stays one
    first[19] = ("Der alte Arzt muss helfen.", "The old doctor must help.")
    first[29] = (first[29][0], FRENCH)
    second[4] = ("The girls must help.",) * 2
    second[6] = (second[6][0], "")
    second[8] = (f"{second[8][0]} cafe\u0301 \u200b \u200b", second[8][1])
    second[10] = second[11] = first[1]
    second[12] = (first[2][0], second[12][1])
    second[20] = ("We see Tom &amp; Anna.", f"FÃ¼r {second[20][1]}")
    second[22] = (second[22][0], f'"Er sagte ""{second[22][1]}"""')
    shifted = [target for _, target in second[100:160]]
    for line, target in enumerate(shifted[1:] + shifted[:1], start=100):
        second[line] = (second[line][0], target)
    test[3] = first[5]
    test[4] = (first[6][0], test[4][1])
    dev[2] = (dev[2][0], second[7][1])
    for name, pairs in (("a1", first), ("a2", second), ("dev", dev), ("test", test)):
        source, target = ("".join(f"{p[side]}\n" for p in pairs) for side in (0, 1))
        (folder / f"{name}.en").write_bytes(source.encode())
        (folder / f"{name}.de.gz").write_bytes(gzip.compress(target.encode()))
    return folder


@pytest.fixture(scope="module")
def files(folder, config):
    """The config of that folder: train is what the globs a*.en and a*.de.gz match."""
    names = {"train": "a*", "dev": "dev", "test": "test"}
    return replace(
        config,
        corpus="files",
        **{k: f"{folder}/{n}.en,{folder}/{n}.de.gz" for k, n in names.items()},
    )


@pytest.fixture(scope="module")
def found(files):
    return inspect_corpus(files)


def lines_of(finding, key="place"):
    """The lines of the examples, as "a1.en:20"."""
    places = [example[key] for example in finding["examples"]]
    return [f"{file.rpartition('/')[2]}:{line}" for file, line in places]


def said(split):
    """The pairs of each kind of finding, and the lines of the examples."""
    return {
        kind: (found["pairs"], lines_of(found))
        for kind, found in split["findings"].items()
        if not kind.endswith("repeated")
    }


def test_all_mistakes_are_found_and_no_others(found):
    train, dev, test = found["splits"].values()
    shifted = train["findings"]["shifted"]
    assert [*shifted["labels"]] == ["target one line early"]
    own, at = {*range(1000, 1060)}, {*shifted["at"]}  # ends are those of blocks
    assert own <= at <= {*range(990, 1070)}
    assert {kind: at for kind, at in said(train).items() if kind != "shifted"} == {
        "swapped": (1, ["a1.en:20"]),
        "target_in_source_language": (1, ["a2.de.gz:5"]),
        "target_in_neither": (1, ["a1.de.gz:30"]),
        "identical_sides": (1, ["a2.en:5"]),
        "target_blank": (1, ["a2.de.gz:7"]),
        "entities": (1, ["a2.en:21"]),
        "mojibake": (1, ["a2.en:21"]),
        "quotes": (1, ["a2.en:23"]),
        "source_characters": (2, ["a1.en:10", "a2.en:9"]),
        "target_characters": (1, ["a1.de.gz:10"]),
    }
    assert said(dev) == {"target_overlap": (1, ["dev.de.gz:3"])}
    assert said(test) == {
        "pair_overlap": (1, ["test.en:4"]),
        "source_overlap": (2, ["test.en:4", "test.en:5"]),
        "target_overlap": (1, ["test.de.gz:4"]),
    }
    assert found["left_out"] == {}
    foreign = train["findings"]["target_in_neither"]
    assert foreign["examples"][0]["text"][1] == FRENCH
    assert lines_of(test["findings"]["source_overlap"], "train") == [
        "a1.en:6", "a1.en:7",
    ]  # fmt: skip
    assert lines_of(dev["findings"]["target_overlap"], "train") == ["a2.de.gz:8"]


def test_the_table_lists_every_finding_with_both_texts(found, files, folder):
    head, *rows = "".join(table(found, files)).split("\n")[:-1]
    assert head == "corpus\tfile\tline\tkind\tsource\ttarget"
    rows = [row.split("\t") for row in rows]
    assert {len(row) for row in rows} == {6}
    place = ["train", f"{folder}/a1.en", "20", "swapped"]
    assert [*place, "Der alte Arzt muss helfen.", "The old doctor must help."] in rows
    counts = Counter((row[0], row[3]) for row in rows)
    for name, split in found["splits"].items():
        for kind, finding in split["findings"].items():
            assert counts[name, kind] == finding["pairs"]


def test_a_row_of_names_is_a_header(config, tmp_path):
    lines = ["English\tFrench", "Danish\tIt is", "English\tFrench", ""]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    found = inspect_corpus(replace(config, corpus="tsv", train=f"{tmp_path}/a.tsv"))
    assert lines_of(found["splits"]["train"]["findings"]["header"]) == ["a.tsv:1"]


def test_repeats_are_grouped(found):
    findings = found["splits"]["train"]["findings"]
    assert findings["pair_repeated"]["pairs"] == 2
    (group,) = findings["pair_repeated"]["labels"].values()
    assert (group["pairs"], lines_of(group)) == (3, ["a1.en:2", "a2.en:11", "a2.en:12"])
    groups = findings["source_repeated"]["labels"].values()
    assert next(lines_of(each) for each in groups) == ["a1.en:3", "a2.en:13"]
    assert findings["target_repeated"]["pairs"] == 0  # but those of repeated pairs


def test_lengths_count_every_sentence(found, files):
    train = found["splits"]["train"]
    sides = zip(*read_pairs(files, "train"), strict=True)
    for side, sentences in zip(("source", "target"), sides, strict=True):
        assert train["pairs"] == len(sentences)
        expected = Counter(len(sentence.split()) for sentence in sentences)
        assert train["lengths"][side]["words"] == expected


def test_another_process_finds_the_same(files, found):
    with Worker("jaxformer.inspection.text_findings:inspect_corpus") as worker:
        worker.send(files)
        assert json.dumps(worker.receive()) == json.dumps(found)


def test_what_cannot_be_inspected_is_left_out(files, folder):
    broken = replace(files, test="", source_language="tlh", dev="/no/x,/no/y")
    found = inspect_corpus(broken)
    assert list(found["splits"]) == ["train"]
    assert "swapped" not in found["splits"]["train"]["findings"]
    assert "test split is missing" in found["left_out"]["test"]
    assert "/no/x" in found["left_out"]["dev"]
    assert "'tlh'" in found["left_out"]["languages tlh-de"]
    gone = dict.fromkeys(("train", "dev"), "/no/x,/no/y")
    nothing = inspect_corpus(replace(files, test="", **gone))
    assert nothing["splits"] == {}
    assert "/no/x" in describe(nothing, files, [])
    found = inspect_corpus(replace(files, train="/no/x,/no/y"))
    assert list(found["splits"]) == ["dev", "test"]
    assert not any("overlap" in kind for kind in found["splits"]["dev"]["findings"])


def test_tsv_and_builtin_text_have_lines_too(config, tmp_path):
    for name, pairs in (("1", ["a\tb"] * 3), ("2", ["a\tb", "two\u2029\tzwei"])):
        (tmp_path / f"{name}.tsv").write_text("\n".join(pairs), encoding="utf-8")
    found = inspect_corpus(replace(config, corpus="tsv", train=f"{tmp_path}/*.tsv"))
    findings = found["splits"]["train"]["findings"]
    assert lines_of(findings["source_characters"]) == ["2.tsv:2"]
    train = inspect_corpus(replace(config, train="50"))["splits"]["train"]
    assert (train["pairs"], train["files"][0][0]) == (50, "builtin:grammar train")


def test_pieces_and_unknown_words_are_added(files, pairs, found):
    """Unknown words are searched for where preparing met one, and in test."""
    lengths = Ragged.of([[5, 6, 7, 3], [3], [5, 6, 3]])
    split = TokenizedCorpus(lengths, lengths)
    letters = sorted(set(str(pairs)))
    pieces = lambda: [*"0123", *letters]  # noqa: E731
    tokenizer = SimpleNamespace(pieces=pieces, source_pieces=pieces, has_bytes=False)
    report = {
        name: {side: {"unknown": count} for side in ("source", "target")}
        for name, count in (("train", 1), ("dev", 0))
    }
    report["train"] |= {"kept": 3, "dropped": {"too_long": 2}}
    report |= {"corpora": {"": report["train"]}, "dev_sets": {"": "dev"}}
    prepared = PreparedCorpus(
        tokenizer, split, {"": DevSet(split, [], [])}, report, None
    )
    corpus = json.loads(json.dumps(found))
    add_pieces(corpus, files, prepared)
    train, dev, test = corpus["splits"].values()
    assert train["dropped"] == {"too_long": 2}
    assert train["lengths"]["source"]["pieces"] == {0: 1, 2: 1, 3: 1}
    assert "pieces" not in test["lengths"]["source"]
    assert lines_of(train["findings"]["target_unknown"])[0] == "a1.de.gz:30"
    assert "target_unknown" not in dev["findings"]
    assert test["findings"]["target_unknown"]["pairs"] == 0


def test_unknown_words_are_counted():
    pairs = [(">>b<< bad cab", "x"), (">>b<<a zoo, zoo", "d"), ("zoo!", "a")]
    found = find_unknown(pairs, [set("abcd "), set("ab ")], [">>b<<"])
    source, target = found["source_unknown"], found["target_unknown"]
    assert (source.pairs, source.count, source.indices()) == (2, 3, [1, 2])
    counts = {word: (each.pairs, each.count) for word, each in source.labels.items()}
    assert counts == {"zoo,": (1, 1), "zoo": (1, 1), "zoo!": (1, 1)}
    assert target.indices() == [0, 1]


def test_ratios_leave_blank_sides_out():
    found = ratio_percentiles(np.array([4, 4, 8, 0, 5]), np.array([4, 8, 2, 3, 0]))
    assert found == {1: 0.26, 5: 0.32, 50: 1.0, 95: 1.9, 99: 1.98}
    assert ratio_percentiles(np.array([0]), np.array([1])) == {}
