"""From every source to pairs, from pairs to a workdir; and each way text is wrong."""

import gzip
import json
import logging
import shutil
from dataclasses import replace
from typing import NamedTuple

import pytest

from jaxformer.batch import EOS, UNK
from jaxformer.data import corpus as corpus_module
from jaxformer.data import grammar
from jaxformer.data import sources as sources_module
from jaxformer.data.corpus import open_prepared, prepare, read_split
from jaxformer.data.sources import CorpusConfig, read_pairs
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import InputError

PAIRS = [
    ("A man runs .", "Ein Mann rennt ."),
    ("A dog runs .", "Ein Hund rennt ."),
    ("Two dogs run on the street .", "Zwei Hunde rennen auf der Straße ."),
    ("A man sees a dog .", "Ein Mann sieht einen Hund ."),
]

NOTHING = CorpusConfig(
    corpus="",
    source_language="en",
    target_language="de",
    directory="",
    train="",
    dev="",
    test="",
    train_source="",
    train_target="",
    dev_source="",
    dev_target="",
    test_source="",
    test_target="",
    data_dir="",
    download=False,
    builtin_pairs=0,
    builtin_eval_pairs=0,
    vocab_size=70,
    vocab_sentences=1000,
    character_coverage=1.0,
    max_length=60,
    max_ratio=3.0,
    deduplicate=True,
    seed=0,
)


def write_lines(path, lines):
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_split(directory, stem, pairs=PAIRS, ending=""):
    for side, language in enumerate(("en", "de")):
        write_lines(directory / f"{stem}.{language}{ending}", [p[side] for p in pairs])


@pytest.fixture
def folder(tmp_path):
    """A directory corpus: four pairs to train on, two to check with."""
    text = tmp_path / "text"
    text.mkdir()
    write_split(text, "train", ending=".gz")
    write_split(text, "val", PAIRS[:2])
    return replace(
        NOTHING, corpus="directory", directory=str(text), train="train", dev="val"
    )


@pytest.fixture
def files(tmp_path):
    """A corpus of two plain files, train.en and train.de."""
    write_split(tmp_path, "train")
    return replace(
        NOTHING,
        corpus="files",
        train_source=str(tmp_path / "train.en"),
        train_target=str(tmp_path / "train.de"),
    )


def read(config, split="train"):
    return list(read_pairs(config, split))


def refused(config, match, split="train"):
    with pytest.raises(InputError, match=match) as error:
        read(config, split)
    assert "\n" not in str(error.value)


# Text files


def test_a_directory_is_read_by_stem_and_language(folder):
    assert read(folder) == PAIRS
    assert read(folder, "dev") == PAIRS[:2]
    other_way = replace(folder, source_language="de", target_language="en")
    assert read(other_way) == [(b, a) for a, b in PAIRS]
    assert read_split(folder, "dev") == (
        [a for a, _ in PAIRS[:2]],
        [b for _, b in PAIRS[:2]],
    )


def test_globs_are_read_in_order(tmp_path, files):
    write_split(tmp_path, "part-2", PAIRS[2:], ".gz")
    write_split(tmp_path, "part-1", PAIRS[:2], ".gz")
    source, target = f"{tmp_path}/part-*.en.gz", f"{tmp_path}/part-*.de.gz"
    assert read(replace(files, train_source=source, train_target=target)) == PAIRS


def test_a_name_that_looks_like_a_glob_is_a_name(tmp_path, files):
    write_lines(tmp_path / "[a].en", ["x"] * 4)
    pairs = read(replace(files, train_source=f"{tmp_path}/[a].en"))
    assert [a for a, _ in pairs] == ["x"] * 4


def test_lines_end_at_newline_only(tmp_path, files):
    separators = "a\u2028b\x85c\x0bd\x0ce\x1cf\u2029g\rh"
    (tmp_path / "train.en").write_bytes(f"\ufeff{separators}\r\n\r\n1\n2".encode())
    assert [a for a, _ in read(files)] == [separators, "", "1", "2"]


def test_tsv_takes_the_first_two_columns(tmp_path):
    write_lines(tmp_path / "t.tsv", ["a\tb", "c\td\tCC-BY", "\te"])
    config = replace(NOTHING, corpus="tsv", train=str(tmp_path / "t.tsv"))
    assert read(config) == [("a", "b"), ("c", "d"), ("", "e")]
    write_lines(tmp_path / "t.tsv", ["a\tb", "only one"])
    refused(config, r"t\.tsv, line 2: one column where two are needed")


@pytest.mark.parametrize(("en", "de"), [(4, 2), (1, 3)])
def test_unequal_line_counts_name_both_files_and_counts(tmp_path, files, en, de):
    write_lines(tmp_path / "train.en", ["x"] * en)
    write_lines(tmp_path / "train.de", ["y"] * de)
    refused(files, rf"train\.en has {en} lines but \S*train\.de has {de}:")


def test_unequal_numbers_of_files_are_refused(tmp_path, files):
    write_split(tmp_path, "more")
    config = replace(files, train_source=f"{tmp_path}/*.en")
    refused(config, r"\*\.en matches 2 files but \S*train\.de matches 1")


def test_text_that_is_not_utf8_names_file_and_line(tmp_path, files):
    (tmp_path / "train.de").write_bytes(b"eins\nStra\xdfe\ndrei\nvier\n")
    refused(files, r"train\.de, line 2: byte 5 of the line is not UTF-8")


@pytest.mark.parametrize("name", ["empty.de", "empty.de.gz"])
def test_an_empty_file_is_refused(tmp_path, files, name):
    write_lines(tmp_path / name, [])
    refused(replace(files, train_target=f"{tmp_path}/{name}"), rf"{name} is empty")


def test_a_damaged_gzip_file_is_refused(tmp_path, files):
    whole = gzip.compress("".join(f"{n * n}\n" for n in range(9999)).encode())
    path = tmp_path / "train.de.gz"
    config = replace(files, train_target=str(path))
    path.write_bytes(whole[: len(whole) // 2])
    write_lines(tmp_path / "train.en", ["x"] * 9999)
    refused(config, r"train\.de\.gz: the gzip data is damaged or cut short after line")
    path.write_bytes(b"plain text\n" * 4)
    refused(config, r"train\.de\.gz: the gzip data is damaged .* after line 0")


def test_what_is_not_there_is_named(tmp_path, files, folder):
    refused(replace(files, train_source=f"{tmp_path}/no.en"), r"no file \S*/no\.en")
    refused(
        replace(files, train_source=f"{tmp_path}/*.xx"), r"No file matches .*\*\.xx"
    )
    refused(files, r"dev split is missing: set data\.dev_source", "dev")
    refused(folder, r"test split is missing: set data\.test\b", "test")
    refused(replace(folder, dev="dev"), r"neither dev\.en nor dev\.en\.gz", "dev")
    refused(replace(folder, target_language="fr"), r"neither train\.fr nor")
    refused(replace(folder, directory=f"{tmp_path}/none"), "none is not a directory")
    refused(replace(folder, corpus="parquet"), r"Unknown data\.corpus 'parquet'")
    refused(folder, "no split 'unseen'", "unseen")


def test_tfds_is_asked_for_the_configured_split_and_direction(monkeypatch):
    asked = []

    def read_tfds(*arguments, **options):
        asked.append((*arguments, *options.values()))
        return iter(PAIRS)

    monkeypatch.setattr(sources_module, "read_tfds", read_tfds)
    config = replace(
        NOTHING, corpus="tfds:wmt14_translate/de-en", dev="validation", data_dir="/d"
    )
    assert read(config, "dev") == PAIRS
    assert asked == [("wmt14_translate/de-en", "validation", "en", "de", "/d", False)]


# The built-in corpus


def test_the_builtin_corpus_goes_either_way(monkeypatch):
    class Built(NamedTuple):
        source: str
        target: str
        phenomena: frozenset

    def generate(split, count, seed):
        return (Built(f"{split} {seed} {i}", f"de {i}", ()) for i in range(count))

    monkeypatch.setattr(grammar, "generate", generate, raising=False)
    config = replace(
        NOTHING,
        corpus="builtin:grammar",
        builtin_pairs=2,
        builtin_eval_pairs=1,
        seed=7,
    )
    assert read(config) == [("train 7 0", "de 0"), ("train 7 1", "de 1")]
    assert read(config, "unseen") == [("unseen 7 0", "de 0")]
    assert read(replace(config, source_language="de", target_language="en"), "dev") == [
        ("de 0", "dev 7 0")
    ]
    refused(replace(config, target_language="fr"), "English-German")
    refused(config, "no split 'other'", "other")


# The workdir


def tree(directory):
    paths = sorted(p for p in directory.rglob("*") if p.is_file())
    return {str(p.relative_to(directory)): p.read_bytes() for p in paths}


def test_a_workdir_holds_all_that_training_needs(tmp_path, folder, caplog):
    write_split(tmp_path / "text", "train", [*PAIRS, PAIRS[0], ("", "leer")])
    write_split(tmp_path / "text", "val", [*PAIRS[:2], ("", "leer"), PAIRS[0]])
    with caplog.at_level(logging.INFO):
        prepared = prepare(folder, tmp_path / "runs" / "first")
    assert "4 of 6 pairs kept, dropped: 1 empty, 1 duplicate" in caplog.text
    shutil.rmtree(tmp_path / "text")  # a workdir needs its source no more
    for corpus in (prepared, open_prepared(tmp_path / "runs" / "first")):
        decode = corpus.tokenizer.decode
        train = zip(corpus.train.source, corpus.train.target, strict=True)
        assert [(decode(a), decode(b)) for a, b in train] == PAIRS
        # Every line of dev is kept: blank, doubled or not.
        assert corpus.dev_source == [PAIRS[0][0], PAIRS[1][0], "", PAIRS[0][0]]
        assert corpus.dev_target[2] == "leer"
        assert corpus.dev.source[2].tolist() == [EOS]
        assert len(corpus.dev.source) == len(corpus.dev.target) == 4
        assert corpus.report["train"]["dropped"]["duplicate"] == 1
        assert corpus.report["vocab_size"] == corpus.tokenizer.vocab_size


def test_the_same_text_gives_the_same_workdir(tmp_path, folder):
    prepare(folder, tmp_path / "a")
    prepare(folder, tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert set(json.loads(tree(tmp_path / "a")["corpus/report.json"])) >= {"train"}


def test_a_prepared_workdir_is_only_opened(tmp_path, folder, monkeypatch):
    prepare(folder, tmp_path / "run")
    monkeypatch.setattr(corpus_module, "train_tokenizer", None)
    # Neither another test set nor TFDS's directory changes what is prepared.
    again = prepare(replace(folder, test="x", data_dir="y"), tmp_path / "run")
    assert len(again.train.source) == len(PAIRS)


def test_changed_settings_are_named(tmp_path, folder):
    prepare(folder, tmp_path / "run")
    before = tree(tmp_path / "run")
    changed = replace(folder, vocab_size=90, max_ratio=4.0)
    with pytest.raises(
        InputError, match=r"vocab_size was 70 and is now 90; data\.max_ratio was 3\.0"
    ):
        prepare(changed, tmp_path / "run")
    assert tree(tmp_path / "run") == before


def test_a_foreign_tokenizer_is_refused(tmp_path, folder):
    prepare(folder, tmp_path / "run")
    prepare(replace(folder, vocab_size=80), tmp_path / "other")
    model = tmp_path / "other" / "tokenizer.model"
    shutil.copy(model, tmp_path / "run" / "tokenizer.model")
    with pytest.raises(InputError, match="is not the tokenizer that"):
        prepare(folder, tmp_path / "run")


def test_a_tokenizer_that_something_was_learnt_with_is_used(tmp_path, folder):
    run = tmp_path / "run"
    learnt_with = prepare(replace(folder, vocab_size=60), run).tokenizer
    shutil.rmtree(run / "corpus")
    prepared = prepare(folder, run, learnt_with=learnt_with)
    assert prepared.tokenizer.hash == learnt_with.hash
    assert prepared.report["vocab_size"] == 60
    assert prepare(folder, run).tokenizer.hash == learnt_with.hash


def test_targets_are_cut_as_targets(tmp_path, folder, monkeypatch):
    """By a tokenizer that puts UNK before every target."""
    encode = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer,
        "encode_target",
        lambda self, sentences: [[UNK, *ids] for ids in encode(self, sentences)],
    )
    prepared = prepare(folder, tmp_path / "run")
    for corpus in (prepared.train, prepared.dev):
        for index in range(len(corpus.source)):
            assert corpus.source[index][0] != UNK
            assert corpus.target[index][0] == UNK


def test_a_directory_that_was_never_prepared_is_refused(tmp_path, folder):
    with pytest.raises(InputError, match="holds no prepared corpus"):
        open_prepared(tmp_path)
    (tmp_path / "run" / "corpus").mkdir(parents=True)
    with pytest.raises(InputError, match="holds no prepared corpus"):
        prepare(folder, tmp_path / "run")


@pytest.mark.parametrize("broken", ["train", "val"])
def test_bad_text_leaves_nothing_behind(tmp_path, folder, broken):
    write_lines(tmp_path / "text" / f"{broken}.de", ["a", "b", "c"])
    with pytest.raises(InputError, match=rf"{broken}\.de has 3"):
        prepare(folder, tmp_path / "run")
    assert tree(tmp_path) == tree_without_run(tmp_path)


def tree_without_run(directory):
    return {k: v for k, v in tree(directory).items() if not k.startswith("run")}


def test_an_interrupt_leaves_nothing_behind(tmp_path, folder, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "_write_dev", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(folder, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    assert len(prepare(folder, tmp_path / "run").train.source) == 4


def test_cleaning_that_drops_all_is_an_error(tmp_path, folder):
    with pytest.raises(
        InputError, match=r"No training pair is left of 4.*too_long.: 4"
    ):
        prepare(replace(folder, max_length=2), tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
