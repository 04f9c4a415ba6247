"""The average of checkpoints that is kept in the cache."""

import os

import numpy as np
import pytest

from jaxformer.system.files import write_checksums
from jaxformer.training.average_cache import MOST_KEPT, kept_average


def write(path, content):
    path.mkdir(parents=True, exist_ok=True)
    (path / "content").write_text(content)
    write_checksums(path)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jaxformer" / "averages"


@pytest.fixture
def average(tmp_path, cache):
    """Return what `kept_average` finds: how many were made when it made this one."""
    paths = [tmp_path / "run" / "10", tmp_path / "run" / "20"]
    for path in paths:
        write(path, path.name)
    made = []

    def make():
        made.append(np.full(3, len(made) + 1.0, np.float32))
        return {"encoder": {"bias": made[-1]}}

    def average(count=2, field="params"):
        found = kept_average(paths[-count:], field, make)
        return int(found["encoder"]["bias"][0])

    return average


def test_an_average_is_made_once_and_is_bit_equal(tmp_path, cache):
    write(tmp_path / "10", "")
    rng = np.random.default_rng(0)
    made = {"a": {"b": rng.normal(size=(3, 5)).astype(np.float32)}, "c": np.zeros(0)}
    for make in (lambda: made, lambda: pytest.fail("made again")):
        found = kept_average([tmp_path / "10"] * 2, "params", make)
        assert found.keys() == made.keys()
        np.testing.assert_array_equal(found["a"]["b"], made["a"]["b"], strict=True)
        np.testing.assert_array_equal(found["c"], made["c"], strict=True)


def test_another_field_or_other_checkpoints_have_another_average(average, tmp_path):
    assert [average(), average(), average(field="ema"), average()] == [1, 1, 2, 3]
    write(tmp_path / "run" / "10", "another checkpoint 10")
    assert [average(), average()] == [4, 4]


def test_checkpoints_that_are_damaged_or_gone_are_for_the_caller(average, tmp_path):
    assert [average(), average()] == [1, 1]
    (tmp_path / "run" / "20" / "content").write_text("damaged")
    assert average() == 2
    (tmp_path / "run" / "10" / "XXH128SUMS").rename(tmp_path / "XXH128SUMS")
    assert average() == 3
    (tmp_path / "XXH128SUMS").rename(tmp_path / "run" / "10" / "XXH128SUMS")


def test_one_checkpoint_is_not_copied(average, cache):
    assert [average(count=1), average(count=1)] == [1, 2]
    assert not cache.exists()


@pytest.mark.parametrize("position", [0, 40, -1])
def test_a_damaged_file_is_made_anew(average, cache, position):
    average()
    (file,) = cache.iterdir()
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    assert [average(), average()] == [2, 2]
    file.write_bytes(b"")
    assert [average(), average()] == [3, 3]


def test_a_cache_that_cannot_be_written_is_no_error(average, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("no folder")
    assert [average(), average()] == [1, 2]


def test_the_oldest_files_are_removed(average, cache):
    cache.mkdir(parents=True)
    for number in range(MOST_KEPT):
        (cache / str(number)).touch()
        os.utime(cache / str(number), (number, number))
    average()
    names = {path.name for path in cache.iterdir()}
    assert len(names) == MOST_KEPT
    assert "0" not in names
    assert "1" in names
