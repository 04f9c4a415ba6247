"""Preparing text: the same files for any number of processes, and after any stop."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxformer.configs import wmt_base
from jaxformer.data import preparation, sources, survey
from jaxformer.data.corpus import open_prepared
from jaxformer.data.preparation import prepare
from jaxformer.data.store import ShardWriter
from jaxformer.data_config import DataConfig
from jaxformer.errors import InputError

PAIRS = 150
SHARDS = 5


def config_of(folder: Path, **changes) -> DataConfig:
    corpus = {"directory": str(folder), "dev": "dev", "tag": ">>b<<"}
    values = wmt_base.get_config().data.to_dict() | {
        "corpus": "directory", "directory": str(folder), "dev": "dev",
        "corpora": ({**corpus, "name": "one", "train": "one"},
                    {**corpus, "name": "two", "train": "two", "dev": ""}),
        "source_language": "a", "target_language": "b", "vocab_size": 60,
        "character_coverage": 1.0, "max_length": 25, "subword_sampling": 0.1,
    }  # fmt: skip
    return DataConfig(**values | changes)


def write_text(folder: Path) -> None:
    """Two corpora with pairs that occur again, are too long, or have a blank side."""
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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 8)
    monkeypatch.setattr(preparation, "SHARD", 32)
    (tmp_path / "text").mkdir()
    write_text(tmp_path / "text")
    return tmp_path / "text"


def tree(directory: Path) -> dict[str, bytes]:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def ids_of(prepared) -> list[list[list[int]]]:
    return [[ids.tolist() for ids in side] for side in prepared.train]


@pytest.mark.parametrize("sampling", [None, 0.1])
def test_the_files_are_the_same_for_any_number_of_processes(
    folder, tmp_path, sampling, monkeypatch
):
    config = config_of(folder, subword_sampling=sampling)
    one, two = (
        prepare(config, tmp_path / f"run{count}", processes=count) for count in (1, 2)
    )
    assert tree(tmp_path / "run2") == tree(tmp_path / "run1")
    assert one.report["train"]["dropped"]["duplicate"] > 10
    assert one.report["train"]["dropped"]["too_long"] > 5
    assert len(one.train.source.shards) == SHARDS + 1
    monkeypatch.setattr(preparation, "SHARD", 1000)  # only the cut differs
    whole = prepare(config, tmp_path / "whole")
    assert ids_of(whole) == ids_of(two)
    assert whole.counts("one", "train") == one.counts("one", "train")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("written", [0, 2, SHARDS])
def test_it_goes_on_after_a_stop(folder, tmp_path, monkeypatch, error, written):
    """The shards that were written are not written again, nor the text surveyed."""
    config, run = config_of(folder), tmp_path / "run"
    prepare(config, tmp_path / "undisturbed")
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
    assert tree(run) == tree(tmp_path / "undisturbed")
    # The rest of six shards, the versions of the words, and the text of dev.
    assert count == SHARDS + 1 - before + 2


def test_other_settings_or_text_begin_anew(folder, tmp_path, monkeypatch):
    config, run = config_of(folder), tmp_path / "run"
    full = OSError(28, "No space left")
    with monkeypatch.context() as patched:
        patched.setattr(ShardWriter, "write", lambda *_: (_ for _ in ()).throw(full))
        with pytest.raises(OSError, match="No space"):
            prepare(config, run)
    other = replace(config, vocab_size=70)
    prepare(other, run)
    prepare(other, tmp_path / "undisturbed")
    assert tree(run) == tree(tmp_path / "undisturbed")


def test_text_that_changes_meanwhile_is_refused(folder, tmp_path, monkeypatch):
    train = survey.VocabularySamples.train

    def change_and_train(self):
        with (folder / "one.a").open("a") as source, (folder / "one.b").open("a") as b:
            source.write("x\n")
            b.write("y\n")
        return train(self)

    monkeypatch.setattr(survey.VocabularySamples, "train", change_and_train)
    with pytest.raises(InputError, match="the text changed while it was prepared"):
        prepare(config_of(folder), tmp_path / "run")
    assert tree(tmp_path / "run") == {}


KILLED = """
import sys
from pathlib import Path
from jaxformer.data import preparation, sources
from tests.data.test_preparation import config_of

sources.CHUNK, preparation.SHARD = 8, 32
preparation.prepare(config_of(Path(sys.argv[1])), Path(sys.argv[2]), processes=2)
"""


@pytest.mark.slow
def test_kills_change_no_byte(folder, tmp_path):
    prepare(config_of(folder), tmp_path / "undisturbed")
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
    assert tree(run) == tree(tmp_path / "undisturbed")
