"""Preparing text: the same files for any number of processes, and after any stop."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from jaxformer.config.data import NO_NOISE, DataConfig
from jaxformer.configs import wmt_base
from jaxformer.corpus import preparation, survey
from jaxformer.corpus import prepared as corpus
from jaxformer.corpus.preparation import prepare
from jaxformer.corpus.prepared import open_prepared
from jaxformer.corpus.store import ShardWriter
from jaxformer.system.errors import InputError
from jaxformer.text import sources
from jaxformer.text.cleaning import clean_chunk
from jaxformer.text.tokenizer import Tokenizer

PAIRS, CHUNK, SHARD = 150, 8, 32
SHARDS = 5
ONE = {"subword_sampling": None, "versions": None}  # version of the text
NOISY = {
    "noise": NO_NOISE | {"copy": 0.3, "upper_case": 0.1, "typo": 0.2},
    "byte_fallback": True, "vocab_size": 330,
}  # fmt: skip


def config_of(folder: Path, **changes) -> DataConfig:
    corpus = {"directory": str(folder), "dev": "dev", "tag": ">>b<<"}
    values = wmt_base.get_config().data.to_dict() | {
        "corpus": "directory", "directory": str(folder), "dev": "dev",
        "corpora": ({**corpus, "name": "one", "train": "one"},
                    {**corpus, "name": "two", "train": "two", "dev": ""}),
        "source_language": "a", "target_language": "b", "vocab_size": 60,
        "character_coverage": 1.0, "max_length": 25, "subword_sampling": 0.1,
        "versions": 2,
    }  # fmt: skip
    return DataConfig(**values | changes)


def write_text(folder: Path) -> None:
    """Two corpora with pairs that occur again, are too long, or have blank sides."""
    draw = random.Random(0)
    words = [
        "".join(draw.choices("abcdefghi", k=draw.randint(1, 7))) for _ in range(40)
    ]
    for name, count in (("one", PAIRS), ("two", 11), ("dev", 3)):
        sizes = [draw.choice([0, *range(2, 9), 30]) for _ in range(count)]
        for language in "ab":
            lines = [" ".join(draw.choices(words, k=size)) for size in sizes]
            lines[count // 2 :: 3] = lines[: len(lines[count // 2 :: 3])]
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The text, which no test changes, and small shards."""
    folder = tmp_path_factory.mktemp("text")
    write_text(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK", CHUNK)
        patch.setattr(sources, "SHARD", SHARD)
        yield folder


@pytest.fixture
def own_folder(folder, tmp_path):
    """A copy of the text, for a test to change."""
    return Path(shutil.copytree(folder, tmp_path / "text"))


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    """The files of a run that nothing has stopped."""
    run = tmp_path_factory.mktemp("run")
    prepare(config_of(folder), run)
    return tree(run)


def tree(directory: Path) -> dict[str, bytes]:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def ids_of(prepared) -> list[list[list[int]]]:
    sides = chain(*prepared.versions)
    return [[ids.tolist() for ids in side] for side in sides]


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("changes", [ONE, {"versions": 1}, {"versions": 3} | NOISY])
def test_the_files_are_the_same_for_any_number_of_processes(
    folder, tmp_path, changes, monkeypatch
):
    config = config_of(folder, **changes)
    one, two = (
        prepare(config, tmp_path / f"run{count}", processes=count) for count in (1, 2)
    )
    assert tree(tmp_path / "run2") == tree(tmp_path / "run1")
    assert one.report["train"]["dropped"]["duplicate"] > 10
    assert one.report["train"]["dropped"]["too_long"] > 5
    assert len(one.train.source.shards) == SHARDS + 1
    monkeypatch.setattr(sources, "SHARD", 1000)  # only the cut differs
    whole = prepare(config, tmp_path / "whole")
    assert ids_of(whole) == ids_of(two)
    assert whole.counts("one", "train") == one.counts("one", "train")


FULL = OSError(28, "No space left")


@pytest.mark.parametrize(
    ("error", "written"), [(FULL, 0), (KeyboardInterrupt(), 2), (FULL, SHARDS)]
)
def test_it_goes_on_after_a_stop(
    folder, undisturbed, tmp_path, monkeypatch, error, written
):
    """The shards that were written are not written again, nor the text surveyed."""
    config, run = config_of(folder), tmp_path / "run"
    write, count = ShardWriter.write, 0

    def write_some(self, *args):
        nonlocal count
        if count == written:
            raise error
        count += 1
        write(self, *args)

    monkeypatch.setattr(ShardWriter, "write", write_some)
    with pytest.raises(type(error)):
        prepare(config, run)
    assert not (run / "corpus").exists()
    with pytest.raises(InputError, match="holds no prepared corpus"):
        open_prepared(run)

    before, written, count = count, -1, 0
    monkeypatch.setattr(survey, "_read", None)
    prepare(config, run)
    assert tree(run) == undisturbed
    # The rest of six shards, and the text of dev.
    assert count == SHARDS + 1 - before + 1


def test_other_settings_or_text_begin_anew(folder, tmp_path, monkeypatch):
    config, run = config_of(folder), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(ShardWriter, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(config, run)
    other = replace(config, vocab_size=70)
    prepare(other, run)
    prepare(other, tmp_path / "undisturbed")
    assert tree(run) == tree(tmp_path / "undisturbed")


@pytest.mark.parametrize("where", ["write_checksums", "write_atomically"])
def test_it_goes_on_after_a_stop_at_the_end(
    folder, undisturbed, tmp_path, monkeypatch, where
):
    """While checksums are written, and after the tokeniser is published."""
    config, run = config_of(folder), tmp_path / "run"
    write = getattr(preparation, where)

    def stop(*args, **named):
        write(*args, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(preparation, where, stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(config, run)
    monkeypatch.setattr(survey, "_read", None)
    published = run / "tokenizer.model"
    given = Tokenizer.load(published) if published.exists() else None
    prepare(config, run, tokenizer=given)
    assert tree(run) == undisturbed


def test_a_stop_while_the_text_is_read_leaves_nothing(
    folder, undisturbed, tmp_path, monkeypatch
):
    config, run = config_of(folder), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(survey.VocabularySamples, "train", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(config, run)
    assert tree(run) == {}
    (run / ".corpus.partial" / "hashes").mkdir(parents=True)  # as after `kill -9`
    (run / ".corpus.partial" / "hashes" / "00").write_bytes(b"1")
    prepare(config, run)
    assert tree(run) == undisturbed


@pytest.mark.parametrize(
    ("processes", "change"),
    [
        (1, lambda lines: [*lines, "x"]),
        (2, lambda lines: lines[:-1]),
        (1, lambda lines: lines[:32]),
        (2, lambda lines: [*lines[:40], "x", *lines[41:]]),
    ],
)
def test_text_that_changes_meanwhile_is_refused(
    own_folder, tmp_path, monkeypatch, change, processes
):
    train = survey.VocabularySamples.train

    def change_and_train(self):
        for language in "ab":
            file = own_folder / f"one.{language}"
            lines = change(file.read_text().split("\n")[:-1])
            file.write_text("".join(f"{line}\n" for line in lines))
        return train(self)

    monkeypatch.setattr(survey.VocabularySamples, "train", change_and_train)
    with pytest.raises(InputError, match="the text changed while it was prepared"):
        prepare(config_of(own_folder), tmp_path / "run", processes=processes)
    assert tree(tmp_path / "run") == {}


def test_the_death_of_a_process_loses_nothing_that_is_written(
    folder, undisturbed, tmp_path, monkeypatch
):
    config, run = config_of(folder), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(
            preparation, "_CLEAN", "tests.corpus.test_preparation:clean_some"
        )
        with pytest.raises(InputError, match="clean_some ended with code 9"):
            prepare(config, run, processes=2)
    index = run / ".corpus.partial" / "train" / "index.json"
    assert 1 <= len(json.loads(index.read_text())) < SHARDS
    monkeypatch.setattr(survey, "_read", None)
    prepare(config, run)
    assert tree(run) == undisturbed


def clean_some(content, threads, config, chunk):
    if len(chunk.pairs) < CHUNK:  # the last chunk of a corpus
        os._exit(9)
    return clean_chunk(content, threads, config, chunk)


def test_duplicates_may_stay_and_shards_may_be_empty(own_folder, tmp_path):
    """A shard of too long pairs only, and a corpus of which nothing is left."""
    for language in "ab":
        for name, lines in (("one", 40), ("two", 5)):
            text = "".join(f"{'a b ' * 20}{n}\n" for n in range(lines))
            text += "a b c\n" * 30 * (name == "one")
            (own_folder / f"{name}.{language}").write_text(text)
    config = config_of(own_folder, deduplicate=False, **ONE)
    prepared = prepare(config, tmp_path / "run")
    assert prepared.sizes() == {"one": 30, "two": 0}
    assert {*map(str, ids_of(prepared)[0])} == {str(ids_of(prepared)[0][0])}
    assert len(prepared.train.source.shards) == 2


def test_two_vocabularies_are_used_by_several_processes(folder, tmp_path):
    config = config_of(folder, shared_vocabulary=False, **ONE)
    one, two = (
        prepare(config, tmp_path / str(count), processes=count) for count in (1, 2)
    )
    assert len(one.tokenizer.sides) == 2
    assert tree(tmp_path / "2") == tree(tmp_path / "1")
    assert two.tokenizer.decode(two.train.target[0]) in (folder / "one.b").read_text()


def test_large_corpora_are_verified_while_they_are_read(folder, tmp_path, monkeypatch):
    """Small ones when they are opened; an error ends the reading soon afterwards."""
    monkeypatch.setattr(corpus, "VERIFIED_AT_ONCE", 10)
    run = tmp_path / "run"
    train = prepare(config_of(folder), run).train
    pairs = np.arange(len(train.source))
    for _ in range(3):
        train.source.gather(pairs)
    file = run / "corpus" / "train" / "00001.source.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    train = open_prepared(run).train

    def read_for_a_while():
        end = time.monotonic() + 30
        while time.monotonic() < end:
            train.source.gather(pairs)

    with pytest.raises(InputError, match=r"damaged: train/00001\.source\.npy does not"):
        read_for_a_while()
    lengths = run / "corpus" / "train" / "00001.source.lengths.npy"
    lengths.write_bytes(lengths.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"train/00001\.source\.lengths\.npy does not"):
        open_prepared(run)
    monkeypatch.undo()
    file.write_bytes(content[:-1])
    with pytest.raises(InputError, match="is damaged"):
        open_prepared(run)


def test_files_that_killed_processes_left_are_removed(
    folder, undisturbed, tmp_path, monkeypatch
):
    """A kill while an array is written leaves its unfinished file."""
    write_dev = preparation._write_dev

    def with_rests(partial, *others):
        (partial / "train" / ".00000.source.npy.0123.partial").write_bytes(b"half")
        write_dev(partial, *others)

    monkeypatch.setattr(preparation, "_write_dev", with_rests)
    prepare(config_of(folder), tmp_path / "run")
    assert tree(tmp_path / "run") == undisturbed


KILLED = """
import sys
from pathlib import Path
from jaxformer.corpus import preparation
from jaxformer.text import sources
from tests.corpus.test_preparation import CHUNK, SHARD, config_of

sources.CHUNK, sources.SHARD = CHUNK, SHARD
preparation.prepare(config_of(Path(sys.argv[1])), Path(sys.argv[2]), processes=2)
"""


@pytest.mark.slow
def test_kills_change_no_byte(folder, undisturbed, tmp_path):
    run, draw = tmp_path / "run", np.random.default_rng(0)
    command = [sys.executable, "-c", KILLED, str(folder), str(run)]
    for _ in range(4):
        process = subprocess.Popen(command, start_new_session=True)
        partial = run / ".corpus.partial"
        while not partial.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.random())
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, timeout=120)
    assert tree(run) == undisturbed
