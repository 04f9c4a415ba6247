"""Damage of a checkpoint is found; no reader gets wrong numbers.

Each kind of damage of each file is in tests/commands/test_damage.py.
"""

import contextlib
import errno
import os
import random
import resource
import shutil
from pathlib import Path
from unittest import mock

import jax
import pytest

from jaxformer.system import files
from jaxformer.system.errors import InputError
from jaxformer.training import checkpoint_files
from jaxformer.training.checkpoint_files import RemovedError, find_damage
from tests.damage import files_of, flip_bit
from tests.training.saved import (
    ABSTRACT,
    make_state,
    open_checkpoints,
    save_all,
    truncate,
)
from tests.training.setups import assert_same


@pytest.mark.parametrize("flips", [100, pytest.param(2000, marks=pytest.mark.nightly)])
def test_no_flipped_bit_is_silent(tmp_path, flips):
    save_all(tmp_path, 1)
    draw, files = random.Random(0), files_of(tmp_path)
    for _ in range(flips):
        file = draw.choice(files)
        bit = draw.randrange(8 * file.stat().st_size)
        flip_bit(file, bit)
        assert find_damage(tmp_path / "1"), (file, bit)
        flip_bit(file, bit)
    assert not find_damage(tmp_path / "1")


def test_a_checkpoint_without_checksums_is_refused(tmp_path):
    save_all(tmp_path, 1)
    (tmp_path / "1" / checkpoint_files.CHECKSUMS).unlink()
    reader, said = open_checkpoints(tmp_path), "no XXH128SUMS"
    with pytest.raises(InputError, match=rf"1 is damaged \({said}"):
        reader.restore_parameters(1)
    with pytest.raises(InputError, match=rf"can be read \(1: {said}"):
        reader.restore_latest(ABSTRACT)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_checkpoint_that_is_removed_while_it_is_read_is_no_damage(
    tmp_path, monkeypatch, moment
):
    """Before and after its checksums are verified."""
    save_all(tmp_path, 1, 2)
    verify = checkpoint_files.verify_checksums

    def verify_and_remove(folder):
        found = verify(folder)
        with open_checkpoints(tmp_path, keep=1) as training:
            training.drop_after(1)
        return found if moment == "after" else verify(folder)

    monkeypatch.setattr(checkpoint_files, "verify_checksums", verify_and_remove)
    with pytest.raises(RemovedError, match="2 was removed"):
        open_checkpoints(tmp_path).restore_parameters(None)
    monkeypatch.undo()
    reader = open_checkpoints(tmp_path)
    assert_same(reader.restore_parameters(None), make_state(1).params)


def test_a_damaged_newest_checkpoint_is_named_skipped_and_replaced(tmp_path, caplog):
    """A lower number to keep removes nothing before the next save."""
    save_all(tmp_path, 1, 2, 3)
    truncate(tmp_path / "3")
    with pytest.raises(InputError, match="3 is damaged"):
        open_checkpoints(tmp_path).restore_parameters(3)
    scores = {1: 20.0, 2: 10.0, 3: 30.0}
    with open_checkpoints(tmp_path, 1, scores) as checkpoints:
        assert_same(checkpoints.restore_latest(ABSTRACT), (make_state(2), 2))
        assert str(tmp_path / "3") in caplog.text
        assert (checkpoints.steps(), checkpoints.best_step()) == ([1, 2], 1)
        assert (tmp_path / "3").exists()
        del scores[3]
        checkpoints.save(3, make_state(33))
    reader = open_checkpoints(tmp_path)
    assert reader.steps() == [1, 3]
    assert_same(reader.restore_parameters(None), make_state(33).params)


def test_a_checkpoint_that_someone_removed_does_not_end_training(tmp_path):
    with open_checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, make_state(step))
        checkpoints.wait()
        shutil.rmtree(tmp_path / "1")
        for step in (3, 4):
            checkpoints.save(step, make_state(step))
    assert open_checkpoints(tmp_path).steps() == [3, 4]


def test_a_save_that_cannot_be_written_is_one_sentence_and_harms_nothing(
    tmp_path, capfd
):
    """Writes are in progress when one fails; each would print a traceback."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    array = jax.random.normal(jax.random.key(0), (1000, 100))
    large = {"params": {f"w{number}": array for number in range(30)}}
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, make_state(1))
        checkpoints.wait()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
            checkpoints.save(2, large)
            with pytest.raises(InputError, match=r"File too large.*from step 1$"):
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert checkpoints.steps() == [1]
    restored = open_checkpoints(tmp_path).restore_parameters(None)
    assert_same(restored, make_state(1).params)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "found",
    ["by another run", "at step 1", "by another continuation of this run than step 2"],
)
def test_a_checkpoint_of_another_training_or_step_is_refused(tmp_path, found):
    """It was copied from another folder, or renamed."""
    other = tmp_path / "other"
    save_all(tmp_path, 1, run="ours")
    if found == "by another run":
        save_all(other, 3, run="theirs")
    elif found == "at step 1":
        shutil.copytree(tmp_path / "1", other / "3")
    else:
        shutil.copytree(tmp_path, other)
        save_all(other, 3, run="ours")
    save_all(tmp_path, 2, run="ours")
    shutil.copytree(other / "3", tmp_path / "3")
    reader = open_checkpoints(tmp_path, run="ours")
    said = rf"3 was saved {found}; move it"
    for read in (
        reader.steps,
        lambda: reader.average(2),
        lambda: reader.restore_latest(ABSTRACT),
        lambda: reader.restore_parameters(2),
        lambda: save_all(tmp_path, 4, run="ours"),
    ):
        with pytest.raises(InputError, match=said):
            read()
    assert {path.name for path in tmp_path.iterdir()} >= {"2", "3"}


def test_a_checkpoint_without_a_run_is_of_an_earlier_version(tmp_path):
    with mock.patch.object(checkpoint_files.Origin, "_asdict", return_value=None):
        save_all(tmp_path, 1)
    assert open_checkpoints(tmp_path).steps() == [1]
    with pytest.raises(InputError, match="1 was saved by another run"):
        open_checkpoints(tmp_path, run="ours").steps()


def test_only_steps_as_they_are_saved_are_names_of_checkpoints(tmp_path):
    save_all(tmp_path, 1)
    for name in ("0300", "\u0663\u0660\u0660", "9" * 200 + "x", "+5", "-5"):
        (tmp_path / name).mkdir()
    (tmp_path / "400").write_text("")
    assert open_checkpoints(tmp_path).steps() == [1]


def test_a_folder_that_is_no_checkpoint_stays(tmp_path):
    save_all(tmp_path, 1)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "notes.txt").write_text("kept")
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT)[1] == 1  # 2 seems damaged
        checkpoints.save(3, make_state(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
    assert (tmp_path / "2" / "notes.txt").read_text() == "kept"


def test_a_checkpoint_that_cannot_be_read_at_present_is_no_damage(
    tmp_path, monkeypatch
):
    save_all(tmp_path, 1, 2)
    digest = files.digest

    def fail(path):
        if "2" in path.parts:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return digest(path)

    monkeypatch.setattr(files, "digest", fail)
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        with pytest.raises(InputError, match=r"2 cannot be read at present \(Stale"):
            checkpoints.restore_latest(ABSTRACT)
        assert checkpoints.steps() == [1, 2]
    assert (tmp_path / "2").exists()


def test_arrays_that_cannot_be_read_back_are_not_saved(tmp_path):
    """Tensorstore reads the folder's name as two."""
    folder = tmp_path / "tr\\ain"
    with pytest.raises(InputError, match="1 could not be saved: it cannot be read"):
        save_all(folder, 1)
    assert open_checkpoints(folder).steps() == []


@pytest.mark.parametrize("damage", ["", "torn"])
def test_all_processes_take_part_whatever_one_of_them_finds(monkeypatch, damage):
    """Else the others would wait for it for ever."""
    shared = []

    @contextlib.contextmanager
    def sharing():
        shared.append("entered")
        yield

    monkeypatch.setattr(checkpoint_files.processes, "sharing_mistakes", sharing)
    monkeypatch.setattr(checkpoint_files.processes, "is_first", lambda: False)
    for name, found in (("find_damage", ""), ("_pull_verified", damage)):
        monkeypatch.setattr(checkpoint_files, name, lambda *_, found=found: found)
    monkeypatch.setattr(checkpoint_files, "_agree", lambda *given: given[-1])
    monkeypatch.setattr(checkpoint_files, "_read_verified", lambda *_, **__: ({}, ""))
    read = checkpoint_files.read(Path("1"), mock.Mock(is_remote=True), field="params")
    assert read == (None if damage else {}, damage)
    assert shared == ["entered"]
