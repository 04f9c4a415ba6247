"""jaxformer new: a config for a text, from a recipe that was measured."""

import re
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

from jaxformer import grammar
from jaxformer.commands import new
from jaxformer.runs.config_files import override, parse_config, read_config_file
from jaxformer.runs.recipes import recipe_for
from jaxformer.system.errors import InputError
from jaxformer.text import languages
from tests.commands.runs import text_of

DOCS = Path(__file__).parents[2] / "docs"
# Pairs of a text, the backend, and the command of the row that docs show for it.
ROWS = [
    (10_000, "cpu", "own_text_rows:few", {}),
    (29_000, "cpu", "multi30k", {
        "data.max_length": "64", "batches.layout": "packed", "batches.row_length": "64",
        "training.steps": "27000", "training.eval_every": "3000",
    }),
    (50_000, "cpu", "tatoeba_rows:small_50000", {"training.steps": "11200"}),
    (165_151, "cpu", "tatoeba_rows:small_165000", {"training.steps": "14400"}),
    (165_151, "gpu", "tatoeba_rows:base_165000", {"training.steps": "14400"}),
    (4_500_000, "gpu", "wmt_base", {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with sentences as two files and as TSV."""
    folder = tmp_path_factory.mktemp("text")
    for split, count in {"train": 300, "dev": 20}.items():
        pairs = [*grammar.generate(split, count, seed=1)]
        (folder / f"{split}.en").write_text(text_of(pair.source for pair in pairs))
        (folder / f"{split}.de").write_text(text_of(pair.target for pair in pairs))
        lines = (f"{pair.source}\t{pair.target}" for pair in pairs)
        (folder / f"{split}.tsv").write_text(text_of(lines))
    return folder


@pytest.fixture
def write(command, text, monkeypatch):
    """Write a config as a user in the folder of the text; returns the Answer."""
    monkeypatch.chdir(text)
    speeds = {"float32": 2.0, "bfloat16": 1.0}
    timed = mock.Mock(side_effect=lambda flops, model: speeds[model.dtype])
    monkeypatch.setattr(new, "seconds_per_update", timed)
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0, 0))

    def run(*flags, seconds=1.0):
        speeds["bfloat16"] = seconds
        return command("new", *flags)

    return run


@pytest.mark.parametrize(
    ("train", "dev", "corpus"),
    [("train.en, train.de", "dev.en,dev.de", "files"), ("train.tsv", "dev.tsv", "tsv")],
)
def test_the_config_is_the_recipe_with_this_text(
    write, command, text, tmp_path, train, dev, corpus, monkeypatch
):
    file = tmp_path / "mine.py"
    answer = write(f"--train={train}", f"--dev={dev}", f"--output={file}")
    expected = {"pairs": 300, "direction": "en-de", "config": "own_text_rows:few"}
    assert answer.result == expected
    values = read_config_file("own_text_rows:few")
    places = {
        key: ",".join(str(text / part.strip()) for part in given.split(","))
        for key, given in {"train": train, "dev": dev}.items()
    }
    values["data"] |= {"corpus": corpus, "directory": "", "test": "", **places}
    values["model"]["dtype"] = "bfloat16"
    assert read_config_file(str(file)) == values
    # What comes next works from any folder.
    monkeypatch.chdir(tmp_path)
    commands = [line[2:] for line in answer.err.splitlines() if line[:2] == "  "]
    assert commands == [
        f"jaxformer check --config={file} runs/mine",
        f"jaxformer train --config={file} runs/mine",
    ]
    flags = f"--config={file}", "--config.data.vocab_size=300"
    assert command("prepare", *flags, workdir=tmp_path / "run").result["pairs"] > 200


def test_a_text_of_many_characters_gets_a_vocabulary_for_them(write, command, tmp_path):
    rng = np.random.default_rng(0)
    words = rng.integers(0x4E00, 0x6600, [9_000, 2])
    lines = (
        f"{number}{30 * ' word'}\t{''.join(map(chr, rng.choice(words, 30).flat))}"
        for number in range(1_000)
    )
    (tmp_path / "train.tsv").write_text(text_of(lines), "utf-8")
    (tmp_path / "dev.tsv").write_text("another\t\u4e00\u4e01\n", "utf-8")
    places = (f"--{split}={tmp_path / split}.tsv" for split in ("train", "dev"))
    file = tmp_path / "mine.py"
    write(*places, "--source_language=en", "--target_language=zh", f"--output={file}")
    data = read_config_file(str(file))["data"]
    assert (data["vocab_size"], data["character_coverage"]) == (12_000, 0.9995)
    answer = command("prepare", f"--config={file}", workdir=tmp_path / "run")
    assert answer.result["pairs"] == 1_000


def test_each_value_has_a_reason(write, tmp_path):
    flags = "--train=train.tsv", "--dev=dev.tsv", f"--output={tmp_path / 'mine.py'}"
    write(*flags, seconds=1.9)
    written = (tmp_path / "mine.py").read_text()
    assert '"""A config for 300 pairs, written by jaxformer new.' in written
    assert f"- 6:40:00 for all updates on {jax.device_count()} x cpu" in written
    assert "- the machine was busy, with a load of 99.0 on" in written
    assert re.search(r"own_text_rows:few, [\w ]+: BLEU 20\.3 with\s+10,000", written)
    assert re.search(r"BLEU\s+5\.6\s+with\s+tatoeba_rows:tiny_1000", written)
    assert "bfloat16 is 1.1 times as fast" in written
    assert read_config_file(str(tmp_path / "mine.py"))["model"]["dtype"] == "float32"
    *_, body = written.partition("get_config('few')")
    for paragraph in body.strip().split("\n\n"):
        assert re.match(r" *# [A-Z]\w+: .*\n( *# .*\n)? *config\.", paragraph)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--dev=train.tsv", "--train has 300 of the 300 pairs of --dev"),
        (
            "--train=train.en,train.en --dev=dev.en,dev.en",
            "both sides seem to be en; g",
        ),
        ("--source_language=English", "is no language code of ISO 639; write en"),
        ("--train=train.csv", "or both as a .tsv, a .jsonl or a .parquet file"),
        ("train.en", "two files are one value, as in --train=train.en,train.de"),
    ],
)
def test_a_text_that_is_not_parallel_is_refused(write, tmp_path, flags, message):
    file = tmp_path / "mine.py"
    given = {"--train": "train.tsv", "--dev": "dev.tsv"}
    given |= dict(each.split("=") for each in flags.split() if "=" in each)
    words = [each for each in flags.split() if "=" not in each]
    named = [f"{name}={value}" for name, value in given.items()]
    assert message in write(*named, f"--output={file}", "runs/x", *words).complaint
    assert not file.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--dev=dev.de,dev.en --train=train.en,train.de", "source and target exchange"),
        ("--source_language=fr --dev=dev.tsv --train=train.tsv", "are not fr-de, most"),
    ],
)
def test_another_language_is_a_warning(write, tmp_path, flags, message):
    """It may be wrong, and `check` refuses such a text with its remedies."""
    answer = write(*flags.split(), f"--output={tmp_path / 'mine.py'}")
    assert message in answer.err
    assert answer.result["pairs"] == 300


def test_a_config_is_never_replaced(write, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("mine")
    flags = "--train=train.tsv", "--dev=dev.tsv", f"--output={file}"
    assert "exists already; choose a new file" in write(*flags).complaint
    assert file.read_text() == "mine"


@pytest.mark.parametrize(("pairs", "backend", "row", "flags"), ROWS)
def test_the_recipe_is_the_row_that_docs_show(pairs, backend, row, flags, monkeypatch):
    """With the same values; and the page of sizes lists it."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    recipe = recipe_for(pairs)
    assert recipe.config == row
    values = recipe.values()
    assert values == override(read_config_file(row), tuple(flags.items()))
    parse_config(values | {"data": read_config_file("demo")["data"]}).require_rows()
    table = re.findall(
        r"(?m)^\| .*`configs/(\S+)\.py(:\w+)?`", (DOCS / "model_size.md").read_text()
    )
    assert row in {name + of_file for name, of_file in table}


@pytest.mark.parametrize(("pairs", "backend"), dict.fromkeys(row[:2] for row in ROWS))
def test_scores_of_recipes_are_those_of_docs(pairs, backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    pages = "".join(
        (DOCS / f"{name}.md").read_text() for name in ("results", "model_size")
    )
    known = {f"{float(each):.1f}" for each in re.findall(r"\b\d\d\.\d\d\b", pages)}
    scores = re.findall(r"\b\d\d\.\d\b", recipe_for(pairs).measured)
    assert len(scores) == (pairs < 300_000) + (pairs == 29_000)
    assert {*scores} <= known


@pytest.mark.parametrize(("words", "rows"), [(8, 64), (40, 64), (60, 128), (900, 256)])
def test_rows_hold_the_sentences(words, rows, monkeypatch):
    """Of 100 pairs, 98 are short; one per cent may be longer than a row."""
    monkeypatch.setattr(new, "seconds_per_update", lambda *_: 1.0)
    long = "seven " * words
    pairs = [("a b", "c d")] * 98 + [("a", long), (long, "b"), ("", "x")]
    survey = new.Survey(pairs, [("e", "f")])
    assert (survey.pairs, survey.target_bytes) == (100, 98 * 3 + len(long.strip()) + 1)
    values = recipe_for(100).values()
    new.fit(values, survey)
    assert values["batches"]["row_length"] == values["data"]["max_length"] == rows
    assert survey.share_above(rows) == (0.02 if words == 900 else 0)


def test_a_language_is_that_of_most_sentences():
    english, german = "This is the house of my friend.", "Das ist das Haus von mir."
    texts = [english] * 20 + [german] * 10
    assert languages.recognise(texts, "source") == "en"
    assert languages.recognise([*texts, *[german] * 20], "source") == "de"
    with pytest.raises(InputError, match=r"50% of the first lines.*--target_language"):
        languages.recognise([english, german] * 9, "target")
