"""Tests of sources, prepared workdirs and token files: what is read, every message."""

import bz2
import gzip
import io
import json
import logging
import lzma
import shutil
import tracemalloc
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from jaxformer import grammar
from jaxformer.config.data import NO_NOISE, DataConfig
from jaxformer.corpus import survey as survey_module
from jaxformer.corpus.preparation import prepare
from jaxformer.corpus.prepared import open_prepared
from jaxformer.corpus.store import ShardWriter, id_dtype, open_corpus
from jaxformer.system.errors import InputError
from jaxformer.system.files import write_checksums
from jaxformer.text import locations
from jaxformer.text.lines import read_lines, zstd
from jaxformer.text.ragged import Ragged
from jaxformer.text.sources import read_pairs, read_parts, read_split
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import EOS, SIDES, UNK

PAIRS = [
    ("A man runs .", "Ein Mann rennt ."),
    ("A dog runs .", "Ein Hund rennt ."),
    ("Two dogs run on the street .", "Zwei Hunde rennen auf der Straße ."),
    ("A man sees a dog .", "Ein Mann sieht einen Hund ."),
]
SWAPPED = {"source_language": "de", "target_language": "en"}
BUILTIN = {"corpus": "builtin:grammar", "train": "2", "dev": "1", "test": "1"}
FILES = {"corpus": "files", "train": "train.en,train.de"}
GLOBS = FILES | {"train": "part-*.en.gz, part-*.de.gz"}
TSV = {"corpus": "tsv", "train": "pairs.tsv"}
JSONL = {"corpus": "jsonl", "train": "x.jsonl"}


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd.compress}


def write_lines(path, lines):
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(data))


def write_split(stem, pairs=PAIRS, ending=""):
    for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        write_lines(stem.with_name(f"{stem.name}.{language}{ending}"), lines)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory corpus in ./text with two pairs of dev; the same pairs in files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    write_split(tmp_path / "text" / "train", ending=".gz")
    write_split(tmp_path / "text" / "val", PAIRS[:2])
    write_split(tmp_path / "train")
    write_split(tmp_path / "part-2", PAIRS[2:], ".gz")
    write_split(tmp_path / "part-1", PAIRS[:2], ".gz")
    write_lines(tmp_path / "pairs.tsv", [f"{a}\t{b}\tCC-BY\t1" for a, b in PAIRS])
    values = dict.fromkeys((field.name for field in fields(DataConfig)), "") | {
        "corpus": "directory", "directory": "text", "train": "train", "dev": "val",
        "source_language": "en", "target_language": "de", "vocab_size": 70,
        "vocab_sentences": 1000, "character_coverage": 1.0, "max_length": 60,
        "max_ratio": 3.0, "deduplicate": True, "seed": 7,
        "drop": None, "max_foreign": None,
        "corpora": (), "temperature": None, "tag": "", "target_tag": "",
        "user_defined_symbols": (),
        "shared_vocabulary": True,
        "model_type": "bpe", "subword_sampling": None, "versions": None, "columns": (),
        "noise": NO_NOISE, "byte_fallback": False,
    }  # fmt: skip
    return DataConfig(**values)


def read(config, split="train", **changes):
    return list(read_pairs(replace(config, **changes), split))


def assert_refused(config, message, split="train", **changes):
    with pytest.raises(InputError, match=message) as error:
        read(config, split, **changes)
    assert "\n" not in str(error.value)


# Text


@pytest.mark.parametrize("kind", [{}, FILES, GLOBS, TSV])
def test_every_kind_of_text_is_read_in_order(folder, kind):
    assert read(folder, **kind) == PAIRS


def test_a_blank_source_gets_no_tag(tmp_path, folder):
    """Otherwise it would be a sentence of one token."""
    (tmp_path / "blank.tsv").write_text("\tb\n \tc\na\td\n")
    kind = {"corpus": "tsv", "directory": "", "train": str(tmp_path / "blank.tsv")}
    pairs = read(folder, **kind, tag=">>x<<")
    assert [source for source, _ in pairs if source.strip()] == [">>x<< a"]


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_text_is_read(tmp_path, folder, ending):
    """Also of several frames, as parallel compressors write it."""
    (tmp_path / "more").mkdir()
    write_split(tmp_path / "more" / "train", ending=ending)
    assert read(folder, directory="more") == PAIRS
    file = tmp_path / f"x{ending}"
    file.write_bytes(b"".join(map(COMPRESS[ending], (b"a\nb", b"c\n", b"d\n"))))
    assert [*read_lines(file)] == ["a", "bc", "d"]


def write_records(path, records):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    else:
        write_lines(path, map(json.dumps, records))


LANGUAGES = "en", "de"
RECORDS = {  # by the column of the German text
    "de": lambda pair: {"id": 1, **dict(zip(LANGUAGES, pair, strict=True))},
    "translation.de": lambda pair: {
        "translation": dict(zip(LANGUAGES, pair, strict=True)), "x": [1]
    },
    "b.c.text": lambda pair: {"a": pair[0], "b": {"c": {"text": pair[1]}}},
    "b.text": lambda pair: {"a": pair[0], "b.text": pair[1], "b": {"text": "x"}},
}  # fmt: skip
kinds_of_records = pytest.mark.parametrize("kind", ["jsonl", "parquet"])


@kinds_of_records
@pytest.mark.parametrize("column", RECORDS)
def test_records_are_read_by_their_columns(tmp_path, folder, kind, column):
    """Line ends within a text become spaces, and a null is blank."""
    pairs = [*PAIRS, ("two\nlines\r\n", "ä"), ("null", None)]
    write_records(tmp_path / f"1.{kind}", [*map(RECORDS[column], pairs[:3])])
    write_records(tmp_path / f"2.{kind}", [*map(RECORDS[column], pairs[3:])])
    changes = {"corpus": kind, "train": f"?.{kind}"}
    is_named = column.startswith("b.")
    if is_named:
        changes["columns"] = ("a", column)
    expected = [*PAIRS, ("two lines  ", "ä"), ("null", "")]
    assert read(folder, **changes) == expected
    if not is_named:
        assert read(folder, **changes, **SWAPPED) == [(b, a) for a, b in expected]


def test_blank_lines_and_lone_surrogates_are_blank_pairs(tmp_path, folder, caplog):
    write_lines(tmp_path / "x.tsv", ["", "a\tb", " "])
    pairs = [("", ""), ("a", "b"), (" ", "")]
    assert read(folder, corpus="tsv", train="x.tsv") == pairs
    records = ['{"en": "a", "de": "b"}', r'{"en": "c\ud83d", "de": "d"}', ""]
    write_lines(tmp_path / "x.jsonl", records)
    pairs = [("a", "b"), ("", ""), ("", "")]
    assert read(folder, corpus="jsonl", train="x.jsonl") == pairs
    assert caplog.messages == ["x.jsonl: pairs with lone surrogates count as empty"]


def test_a_directory_is_read_by_language(folder):
    assert read(folder, **SWAPPED) == [(b, a) for a, b in PAIRS]
    assert read_split(folder, "dev") == tuple(map(list, zip(*PAIRS[:2], strict=True)))


@pytest.mark.parametrize("pattern", ["*/x.tsv", "**/x.tsv"])
def test_a_glob_over_a_folder_that_cannot_be_listed_is_refused(
    tmp_path, folder, monkeypatch, pattern
):
    """Its text would be missing without a word."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "x.tsv", ["a\tb"])
    assert read(folder, corpus="tsv", train=f"{tmp_path}/{pattern}") == [("a", "b")] * 2
    monkeypatch.setattr(locations, "entries", mock.Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError):
        read(folder, corpus="tsv", train=f"{tmp_path}/{pattern}")


def test_parts_are_named_and_a_name_may_look_like_a_glob(tmp_path, folder):
    parts = read_parts(replace(folder, **GLOBS), "train")
    names = [(f"part-{n}.en.gz", f"part-{n}.de.gz") for n in (1, 2)]
    assert [(part.source, part.target) for part in parts] == names
    write_lines(tmp_path / "[a].en", ["x"] * 4)
    pairs = read(folder, **FILES | {"train": "[a].en,train.de"})
    assert [a for a, _ in pairs] == ["x"] * 4


def test_files_are_paired_by_what_the_wildcards_match(tmp_path, folder):
    """Sorted, news.en comes before news.extra.en, and news.fr after news.extra.fr."""
    for name, pairs in {"news": PAIRS[:1], "news.extra": PAIRS[1:]}.items():
        for language, lines in zip(("en", "fr"), zip(*pairs, strict=True), strict=True):
            write_lines(tmp_path / f"{name}.{language}", lines)
    files = {**FILES, "train": "n*.en,n*.fr"}
    assert read(folder, **files) == PAIRS
    for name in ("text/x/a", "text/y/z/a"):
        (tmp_path / name).parent.mkdir(parents=True)
        write_split(tmp_path / name, PAIRS[:1] if "/x/" in name else PAIRS[1:])
    deep = {"train": "text/**/[]ab].en,./text/**/[]ab].de"}
    assert read(folder, **{**FILES, **deep}) == PAIRS
    (tmp_path / "news.extra.fr").rename(tmp_path / "news.old.fr")
    refused = r"news\.extra\.en has no target file: none of n\*\.fr has the same text"
    assert_refused(folder, refused, **files)


def test_lines_end_at_newline_only(tmp_path, folder):
    separators = "a\u2028b\x85c\x0bd\x0ce\x1cf\u2029g\rh "
    (tmp_path / "train.en").write_bytes(f"\ufeff{separators}\r\n\r\n1\n2".encode())
    assert [a for a, _ in read(folder, **FILES)] == [separators, "", "1", "2"]


def test_lines_and_their_numbers_do_not_depend_on_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxformer.text.lines._BLOCK", 5)
    file = tmp_path / "x"
    file.write_bytes(b"one\ntwo three\nfour\n\n")
    assert [*read_lines(file)] == ["one", "two three", "four", ""]
    file.write_bytes(b"one\ntwo three\nfour\n\xff\n")
    with pytest.raises(InputError, match="line 4: byte 1 of the line is not UTF-8"):
        [*read_lines(file)]


TEXT = "".join(f"{n * n}\n" for n in range(9999)).encode()
GZIP = gzip.compress(TEXT, mtime=0)
PLAIN = b"plain text\n" * 4
RECORD = '{"en": "a", "de": "b"}\n'


@pytest.mark.parametrize("ending", ["", *COMPRESS])
def test_a_line_is_bounded_and_never_whole_in_memory(tmp_path, monkeypatch, ending):
    monkeypatch.setattr("jaxformer.text.lines.LONGEST", 10_000)
    monkeypatch.setattr("jaxformer.text.lines._BLOCK", 100)
    file = tmp_path / f"x{ending}"
    compress = COMPRESS.get(ending, bytes)
    file.write_bytes(compress(b"one\n" + b"x" * 10_000 + b"\nthree"))
    assert [*map(len, read_lines(file))] == [3, 10_000, 5]
    file.write_bytes(compress(b"one\n" + b"x" * 10**7))
    tracemalloc.start()
    with pytest.raises(InputError, match="line 2 has more than 10,000 bytes; split"):
        [*read_lines(file)]
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def parquet_of(**columns):
    columns = {name: pyarrow.array(each, "string") for name, each in columns.items()}
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


# Beside a train.en of 9,999 lines: a file, its content, and what is said.
DAMAGED = [
    ("x.de", b"y\n" * 3, r"train\.en has 9,999 lines but x\.de has 3:"),
    ("x.de", b"y\n" * 10_000, r"train\.en has 9,999 lines but x\.de has 10,000:"),
    ("x.de", b"1\nStra\xdfe\n3\n4\n", "line 2: byte 5 of the line is not UTF-8"),
    ("x.de", b"", r"x\.de is empty"),
    ("x.de", GZIP, r"x\.de is gzip data; end its name in \.gz"),
    ("x.de", bz2.compress(TEXT), r"is bzip2 data; end its name in \.bz2"),
    ("x.de", zstd.compress(TEXT), r"is Zstandard data; end its name in \.zst"),
    ("x.de.xz", lzma.compress(TEXT), "is xz data; decompress it with xz -d"),
    ("x.de.gz", gzip.compress(GZIP), "is gzip data"),
    ("x.de", "Zwei\n".encode("utf-16"), "is UTF-16; .* iconv -f UTF-16 -t UTF-8"),
    ("x.de", "Zwei\n".encode("utf-16-be"), "is UTF-16"),
    ("x.de", "Zwei\n".encode("utf-32"), "is UTF-32"),
    ("x.de.gz", gzip.compress(b"", mtime=0), r"x\.de\.gz is empty"),
    ("x.de.gz", GZIP[: len(GZIP) // 2], r"de\.gz .* \.gz data is damaged or cut"),
    ("x.de.gz", PLAIN, "gz data is damaged or cut short"),
    ("x.de.bz2", bz2.compress(TEXT)[:-9], r"\.bz2 data is damaged or cut short"),
    ("x.de.bz2", PLAIN, "bz2 data is damaged or cut short"),
    ("x.de.zst", zstd.compress(TEXT)[:-9], r"\.zst data is damaged or cut short"),
    ("x.de.zst", PLAIN, "zst data is damaged or cut short"),
    ("x.jsonl", f'{RECORD}{{"en": "a"\n'.encode(), r"x\.jsonl, line 2 is no JSON"),
    ("x.jsonl", f"{RECORD}{'[' * 100_000}".encode(), "line 2 is no JSON"),
    ("x.jsonl", b'{"en": "a", "de": 7}', "1: column de is 7; it must be text"),
    ("x.jsonl", b'{"en": "a", "fr": "b"}', "no column de; set data.columns .* en, fr$"),
    (
        "x.tsv",
        b'"a, b",c\n',
        r"source<TAB>target; convert CSV with python -c",
    ),
    ("x.tsv", b"a\tb\n \nc\n", r"x\.tsv, line 3: one column where two are needed"),
    ("x.parquet", b"no parquet", r"x\.parquet cannot be read as Parquet"),
    ("x.parquet", parquet_of(en=["a"], de=["b"])[:-20], "cannot be read as Parquet"),
    ("x.parquet", parquet_of(en=[], de=[]), "parquet is empty"),
    ("x.parquet", parquet_of(en=["a"], fr=["b"]), "no column de; set .* en, fr$"),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED)
def test_a_damaged_file_is_named(tmp_path, folder, name, content, message):
    write_lines(tmp_path / "train.en", ["x"] * 9999)
    (tmp_path / name).write_bytes(content)
    changes = FILES | {"train": f"train.en,{name}"}
    if ".de" not in name:
        changes = {"corpus": name.partition(".")[2], "train": name}
    assert_refused(folder, message, **changes)


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({"corpus": "files", "dev": ""}, "dev", r"dev split is missing: set data\.dev"),
        ({"corpus": "files"}, "dev", r"data\.dev is 'val'; .* a comma between: SOURCE"),
        (TSV | {"train": "*.xx"}, "train", r"no file matches \*\.xx"),
        (TSV | {"train": "x.de"}, "train", r"no file x\.de"),
        (TSV | {"train": "train.en"}, "train", r"train\.en, line 1: one column where"),
        (
            GLOBS | {"train": "part-*.en.gz,train.de"},
            "train",
            "2 files .*de matches 1:",
        ),
        (
            BUILTIN | {"train": "x"},
            "train",
            r"data\.train is 'x'; a built-in corpus tak",
        ),
        ({}, "test", r"set data\.test; evaluate can use --split=d"),
        ({"dev": "dev"}, "dev", r"no text/dev\.en, also not with \.gz, \.bz2, \.zst"),
        ({"target_language": "fr"}, "train", r"there is no text/train\.fr, also"),
        ({"corpus": "tfds:"}, "train", r"unknown data\.corpus 'tfds:'"),
        ({}, "unseen", "no split 'unseen'"),
        (BUILTIN, "other", "no split 'other'"),
        (BUILTIN | {"target_language": "fr"}, "train", "English-German"),
        (
            JSONL | {"columns": ("t.a", "t.c")},
            "train",
            r"no column t\.c; .* of t\.a",
        ),
        (JSONL | {"columns": ("t.a.x", "t.b")}, "train", r"no column t\.a\.x; set"),
        (JSONL | {"columns": ("de",)}, "train", r"columns is \('de',\); give the s"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, folder, changes, split, message):
    (tmp_path / "x.jsonl").write_text('{"t": {"a": "1", "b": "2"}}\n')
    assert_refused(folder, message, split, **changes)


def test_tfds_is_asked_for_the_configured_split(folder, monkeypatch):
    monkeypatch.setattr(
        "jaxformer.text.sources.read_tfds", lambda *asked: iter([asked])
    )
    config = replace(folder, corpus="tfds:wmt14/de-en", dev="validation")
    assert read(config, "dev") == [(config, "wmt14/de-en", "validation")]


@pytest.mark.parametrize("split", ["train", "dev", "test", "unseen"])
def test_the_builtin_corpus_goes_either_way(folder, split):
    count = 2 if split == "train" else 1
    pairs = [(p.source, p.target) for p in grammar.generate(split, count, seed=7)]
    assert read(folder, split, **BUILTIN) == pairs
    assert read(folder, split, **BUILTIN | SWAPPED) == [(b, a) for a, b in pairs]


# The workdir


def tree(directory):
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_a_workdir_holds_all_that_training_needs(tmp_path, folder, caplog):
    run = tmp_path / "runs" / "first"
    dev = [*PAIRS[:2], ("", "leer"), PAIRS[0]]
    write_split(tmp_path / "text" / "train", [*PAIRS, PAIRS[0], ("", "leer")])
    write_split(tmp_path / "text" / "val", dev)
    with caplog.at_level(logging.INFO):
        prepared = prepare(folder, run)
    assert "4 of 6 pairs kept, dropped: 1 empty, 1 duplicate" in caplog.text
    prepare(folder, tmp_path / "again")
    assert tree(tmp_path / "again") == tree(run)
    shutil.rmtree(tmp_path / "text")  # a prepared workdir does not need its source
    for corpus in (prepared, open_prepared(run)):
        decode = corpus.tokenizer.decode
        train, encoded_dev = (
            [tuple(map(decode, pair)) for pair in zip(*split, strict=True)]
            for split in (corpus.train, corpus.dev[""].pairs)
        )
        assert train == PAIRS
        # Every line of dev is kept: blank, doubled or not.
        (dev_set,) = corpus.dev.values()
        texts = zip(dev_set.source, dev_set.target, strict=True)
        assert list(texts) == encoded_dev == dev
        assert dev_set.pairs.source[2].tolist() == [EOS]
        assert corpus.report["dev"]["kept"] == corpus.report["dev"]["pairs"] == 4
        assert corpus.report["vocab_size"] == corpus.tokenizer.vocab_size


def test_a_prepared_workdir_is_only_opened(tmp_path, folder, monkeypatch):
    run = tmp_path / "run"
    prepare(folder, run)
    before = tree(run)
    monkeypatch.setattr("jaxformer.corpus.survey.VocabularySamples", None)
    again = prepare(replace(folder, test="x"), run)
    assert len(again.train.source) == len(PAIRS)
    message = r"vocab_size was 70 and is now 90; data\.max_ratio was 3\.0"
    with pytest.raises(InputError, match=message):
        prepare(replace(folder, vocab_size=90, max_ratio=4.0), run)
    assert tree(run) == before
    with pytest.raises(InputError, match="holds no prepared corpus"):
        open_prepared(tmp_path)


def test_a_corpus_without_shards_is_refused(tmp_path, folder):
    prepare(folder, tmp_path / "run")
    (tmp_path / "run" / "corpus" / "train" / "index.json").unlink()
    write_checksums(tmp_path / "run" / "corpus")
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        open_prepared(tmp_path / "run")


def test_other_text_is_refused_and_the_same_text_may_move(
    tmp_path, folder, monkeypatch
):
    """Text that is gone is not needed; the same relative name may be other text."""
    run, moved = tmp_path / "run", replace(folder, directory="moved")
    prepare(folder, run)
    before = tree(run)
    gone = rf"with {tmp_path}/text/train\.en\.gz, and the text of the config cannot"
    with pytest.raises(InputError, match=rf"{gone} .*no moved/train\.en"):
        prepare(moved, run)
    shutil.move(tmp_path / "text", tmp_path / "moved")
    for config in (folder, moved):
        assert len(prepare(config, run).train.source) == len(PAIRS)
    write_split(tmp_path / "moved" / "val", [PAIRS[0], PAIRS[0]])
    with pytest.raises(InputError, match=rf"in {tmp_path}/moved/val\.en, .*; use an"):
        prepare(moved, run)
    (tmp_path / "moved").rename(tmp_path / "text")
    cure = "use another run folder, or delete corpus and tokenizer.model in it to prep"
    changed = rf"another text than that in {tmp_path}/text/val\.en, .*/val\.de; {cure}"
    with pytest.raises(InputError, match=changed):  # where it was
        prepare(folder, run)
    (run / "checkpoints" / "1").mkdir(parents=True)
    with pytest.raises(InputError, match=r"use another run folder$"):
        prepare(folder, run)
    shutil.rmtree(run / "checkpoints")
    write_split(tmp_path / "text" / "val", PAIRS[:2])
    write_lines(tmp_path / "text" / "val.de", ["Ein Mann rennt ."])
    with pytest.raises(InputError, match=r"cannot be compared \(.* 2 lines but .* 1:"):
        prepare(folder, run)
    write_split(tmp_path / "text" / "val", PAIRS[:2])
    prepare(folder, run)
    (tmp_path / "other").mkdir()
    shutil.copytree(tmp_path / "text", tmp_path / "other" / "text")
    monkeypatch.chdir(tmp_path / "other")
    prepare(folder, run)
    write_split(tmp_path / "other" / "text" / "val", [PAIRS[1], PAIRS[0]])
    with pytest.raises(InputError, match=rf"that in {tmp_path}/other/text/val\.en"):
        prepare(folder, run)
    assert tree(run) == before


def test_the_same_files_may_be_named_otherwise(tmp_path, folder, monkeypatch):
    run, kind = tmp_path / "run", {"corpus": "tsv", "dev": "pairs.tsv"}
    own = replace(folder, **kind, train="pairs.tsv")
    prepare(own, run)
    before = tree(run)
    for name in ("./pairs.tsv", f"{tmp_path}/pairs.tsv", "text/../pair?.tsv"):
        config = replace(own, train=name)
        prepare(config, run)
        part = {"name": "a", "train": name}
        assert config.fixed() == own.fixed()
        assert replace(own, corpora=(part,)).fixed()["corpora"] == [
            {"name": "a", "train": "", "dev": ""}
        ]
    monkeypatch.chdir(tmp_path / "text")
    prepare(replace(own, train="../pairs.tsv", dev="../pairs.tsv"), run)
    write_lines(tmp_path / "other.tsv", ["a\tb"])
    with pytest.raises(InputError, match=r"than that in .*/other\.tsv;"):
        prepare(replace(own, train="../other.tsv", dev="../pairs.tsv"), run)
    with pytest.raises(
        InputError, match=r"data\.train was 'pairs\.tsv' and is now '2'"
    ):
        prepare(replace(own, corpus="builtin:grammar", train="2", dev="1"), run)
    with pytest.raises(InputError, match=r"compared \(there is no file gone \("):
        prepare(replace(own, train="gone"), run)
    assert tree(run) == before


def test_unfinished_work_that_cannot_be_read_at_present_is_kept(
    tmp_path, folder, monkeypatch
):
    survey = tmp_path / survey_module.SURVEY
    survey.touch()
    monkeypatch.setattr(Path, "read_bytes", mock.Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError):
        survey_module.survey_text(tmp_path, folder, {}, None)
    assert survey.exists()


def test_only_the_tokenizer_it_was_prepared_with_is_accepted(tmp_path, folder):
    run, other = tmp_path / "run", tmp_path / "other"
    prepare(folder, other)
    given = prepare(replace(folder, vocab_size=60), run).tokenizer
    shutil.rmtree(run / "corpus")
    assert prepare(folder, run, tokenizer=given).report["vocab_size"] == 60
    assert prepare(folder, run).tokenizer.hash == given.hash
    shutil.copy(other / "tokenizer.model", run)
    with pytest.raises(InputError, match="damaged or not the tokeniser of this run"):
        prepare(folder, run)


def test_each_language_may_have_a_vocabulary(tmp_path, folder):
    """Tags are pieces of sources, symbols of both; the same text is the same file."""
    config = replace(
        folder, shared_vocabulary=False, tag=">>x<<", user_defined_symbols=("__N__",)
    )
    first, again = (prepare(config, tmp_path / name).tokenizer for name in "ab")
    assert first.content == again.content
    sides = [*map(Tokenizer, (first.source_model, first.target_model))]
    assert [first.source_pieces(), first.pieces()] == [s.pieces() for s in sides]
    assert [">>x<<" in side.pieces() for side in sides] == [True, False]
    assert all("__N__" in side.pieces() for side in sides)
    assert {*first.pieces()} != {*first.source_pieces()} - {">>x<<"}
    train = open_prepared(tmp_path / "a").train
    for side, own in zip(train, sides, strict=True):
        assert UNK < side.tokens.max() < own.vocab_size


def test_targets_are_encoded_as_targets(tmp_path, folder, monkeypatch):
    encode_target = lambda _, texts: [[UNK, UNK]] * len(texts)  # noqa: E731
    monkeypatch.setattr(Tokenizer, "encode_target", encode_target)
    prepared = prepare(folder, tmp_path / "run")
    for corpus in (prepared.train, prepared.dev[""].pairs):
        assert UNK not in corpus.source.tokens
        assert {*corpus.target.tokens} == {UNK}


@pytest.mark.parametrize(
    ("broken", "changes", "message"),
    [
        ("train", {}, r"train\.de has 3"),
        ("val", {}, r"val\.de has 3"),
        ("none", {"max_length": 2}, r"no training pair is left of 4.*: 4 too_long;"),
    ],
)
def test_bad_text_leaves_nothing_behind(tmp_path, folder, broken, changes, message):
    write_lines(tmp_path / "text" / f"{broken}.de", ["a", "b", "c"])
    with pytest.raises(InputError, match=message):
        prepare(replace(folder, **changes), tmp_path / "run")
    assert tree(tmp_path / "run") == {}


# Token ids on disk

SOURCES = [[5, 6, 3], [3], [7, 8, 9, 10, 3]]
TARGETS = [[11, 3], [12, 13, 3], [3]]
CHUNKS = [
    (Ragged.of(SOURCES[:2]), Ragged.of(TARGETS[:2])),
    (Ragged.of([]), Ragged.of([])),
    (Ragged.of(SOURCES[2:]), Ragged.of(TARGETS[2:])),
]


@pytest.mark.parametrize("shards", [[CHUNKS], [[each] for each in CHUNKS]])
@pytest.mark.parametrize(("vocab_size", "bytes_each"), [(65536, 2), (65537, 4)])
def test_every_sequence_reads_back_in_order(tmp_path, shards, vocab_size, bytes_each):
    last = vocab_size - 1
    for chunks in [
        *shards,
        [(Ragged.of([[last], [7] * 70_000]), Ragged.of([[3]] * 2))],
    ]:
        # As after a stop between two shards.
        writer = ShardWriter(tmp_path / "c", SIDES, [id_dtype(vocab_size)] * 2)
        writer.write(chunks, len(chunks))
    assert writer.shards == [*map(len, shards), 1]
    corpus = open_corpus(tmp_path / "c")
    expected = [*SOURCES, [last], [7] * 70_000], [*TARGETS, [3], [3]]
    for side, sequences in zip(corpus, expected, strict=True):
        assert [list(ids) for ids in side] == sequences
        assert side.lengths.tolist() == list(map(len, sequences))
        assert side.lengths.dtype == np.int32
        assert side.tokens.tolist() == [*chain.from_iterable(sequences)]
        order = np.array([4, 0, 2, 0, 3, 1])
        ids, lengths = side.gather(order)
        assert ids.tolist() == [*chain.from_iterable(sequences[i] for i in order)]
        assert lengths.tolist() == [len(sequences[i]) for i in order]
        none = np.array([], int)  # as of a process that has no rows of a microbatch
        assert [each.tolist() for each in side.gather(none)] == [[], []]
        for shard in side.shards:
            assert shard.dtype.itemsize == bytes_each
            assert not shard.flags.writeable or not len(shard)
    assert isinstance(corpus.source.shards[0].base, np.memmap)
    assert np.load(tmp_path / "c" / "00000.source.lengths.npy").itemsize == 1
