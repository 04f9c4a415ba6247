"""A run folder has one owner, which writes into it; others only read."""

import contextlib
import errno
import random
import re
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxformer.corpus.prepared import open_prepared
from jaxformer.evaluation import significance
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.system.files import new_folder, owned
from tests.commands.runs import config_flags, last_state, losses, mtimes

OWN = """
import sys
from pathlib import Path
from jaxformer.system.files import owned
with owned(Path(sys.argv[1]), Path(sys.argv[2])):
    print(flush=True)
    sys.stdin.read()
"""
SAID = rf"is in use by process \d+ on {socket.gethostname()} since 2\d{{3}}-\d\d-\d\d "


@contextlib.contextmanager
def owner(folder, lock):
    """Another process owns a folder in the block; it is killed at the end."""
    program, pipe = [sys.executable, "-c", OWN, folder, lock], subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"\n"
        yield
        process.kill()


def test_writers_are_refused_and_readers_are_not(command, own_run, toy, monkeypatch):
    monkeypatch.setattr("jaxformer.system.files._LOCK_SECONDS", 0.01)
    pairs = [f"--source={toy.directory}/dev.en", f"--reference={toy.directory}/dev.de"]
    row = ["--row=table3/base", "--config.training.steps=100"]
    writers = {"train": [], "prepare": [], "reproduce": row}
    monkeypatch.setattr(significance, "RESAMPLES", 50)
    readers = {"translate": [], "evaluate": pairs, "report": [], "check": []}
    with owner(own_run, own_run / ".lock"):
        before = mtimes(own_run)
        for mode, flags in writers.items():
            complaint = command(mode, *flags, workdir=own_run).complaint
            assert re.search(SAID, complaint), complaint
        for mode, flags in readers.items():
            answer = command(mode, *flags, workdir=own_run, stdin=toy.test)
            assert answer.code == 0, answer.err
        assert mtimes(own_run).items() >= before.items()
    assert command("prepare", workdir=own_run).code == 0  # its owner was killed


def test_a_new_folder_is_made_by_one_process(tmp_path):
    new = tmp_path / "new"
    with (
        owner(new, tmp_path / ".new.lock"),
        pytest.raises(InputError, match=SAID),
        new_folder(new),
    ):
        pass
    with pytest.raises(OSError, match="not empty"), new_folder(new):
        (new / "a run that began meanwhile").mkdir(parents=True)
    assert len([*new.iterdir()]) == 1
    assert [*tmp_path.iterdir()] == [new]


def test_ownership_is_shared_by_blocks_of_a_process_and_leaves_no_new_folder(tmp_path):
    run = Workdir(tmp_path / "a" / "run")
    with run.owned(), run.owned():
        assert run.path.exists()
    assert [*(tmp_path / "a").iterdir()] == []
    with run.owned():
        (run.path / "config.json").touch()
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "config.json"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EROFS])
def test_a_file_system_without_locks_or_to_read_only_is_a_warning(
    tmp_path, monkeypatch, caplog, number
):
    def flock(*_):
        raise OSError(number, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    if number == errno.EROFS:
        with pytest.raises(OSError, match="no locks"), owned(tmp_path, tmp_path / "x"):
            pass
        monkeypatch.setattr("os.access", lambda *_: False)
    with owned(tmp_path, tmp_path / ".lock"):
        assert f"{tmp_path} cannot be locked (no locks)" in caplog.text


SLOW, NIGHTLY = pytest.mark.slow, pytest.mark.nightly
CLOCK = {"seconds", "tokens_per_second"}
PAIRS = [pytest.param(1, marks=SLOW), pytest.param(50, marks=NIGHTLY)]


@pytest.mark.parametrize("pairs", PAIRS)
def test_of_two_starts_one_trains(start, toy, tmp_path, pairs):
    """The second begins at a random moment of the first, or after its end."""
    training = config_flags(
        "training", steps=4, save_every=2, eval_every=1000, log_every=1
    )

    def run(name):
        return start(1, *toy.flags, *training, f"--workdir={tmp_path / name}")

    def outcome(name, started):
        result = started.result()
        values = {key: result[key] for key in result.keys() - CLOCK}
        workdir = tmp_path / name
        (params,) = last_state(workdir, "params")
        report = open_prepared(workdir).report  # verifies the checksums
        arrays = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]
        return values, arrays, report, losses(workdir)

    before = time.monotonic()
    expected = outcome("alone", run("alone"))
    seconds = time.monotonic() - before
    draw, refused = random.Random(pairs), 0
    for number in range(pairs):
        both = [run(f"pair{number}")]
        time.sleep(draw.uniform(0, 1.2 * seconds) if number else 0.2)
        both.append(run(f"pair{number}"))
        codes = [each.wait(120)[0] for each in both]
        assert codes in ([0, 0], [0, 2], [2, 0]), [each.stderr() for each in both]
        for code, each in zip(codes, both, strict=True):
            assert "Traceback" not in each.stderr()
            if code:
                refused += 1
                assert re.search(SAID, each.complaint())
            else:
                assert outcome(f"pair{number}", each) == expected
    assert refused > pairs / 10


@pytest.mark.slow
def test_all_processes_of_a_second_run_end_alike(start, toy, tmp_path):
    (tmp_path / "run").mkdir()
    with owner(tmp_path / "run", tmp_path / "run" / ".lock"):
        second = start(2, *toy.flags, f"--workdir={tmp_path / 'run'}")
        assert second.wait(120) == [2, 2]
    for index in range(2):
        assert re.search(SAID, second.complaint(index))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
