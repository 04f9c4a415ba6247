"""The average of checkpoints that is kept beside them."""

import shutil

import numpy as np
import pytest

from jaxformer.training.kept_average import kept_average


@pytest.fixture
def average(tmp_path):
    """Return the kept average, or else one that counts how often one was made."""
    paths = [tmp_path / "10", tmp_path / "20"]
    for path in paths:
        path.mkdir()
        (path / "XXH128SUMS").write_text(f"sums of {path.name}")
    made = []

    def make():
        made.append(np.full(3, len(made) + 1.0, np.float32))
        return {"encoder": {"bias": made[-1]}}

    def average(count=2, field="params"):
        found = kept_average(paths[-count:], field, make)
        return found["encoder"]["bias"].tolist()[0], len(made)

    return average


def test_an_average_is_made_once_and_is_bit_equal(tmp_path):
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "XXH128SUMS").write_text("")
    rng = np.random.default_rng(0)
    made = {"a": {"b": rng.normal(size=(3, 5)).astype(np.float32)}, "c": np.zeros(0)}
    for make in (lambda: made, lambda: pytest.fail("made again")):
        found = kept_average([tmp_path / "10"] * 2, "params", make)
        assert found.keys() == made.keys()
        np.testing.assert_array_equal(found["a"]["b"], made["a"]["b"], strict=True)
        np.testing.assert_array_equal(found["c"], made["c"], strict=True)


def test_another_field_or_other_checkpoints_have_another_average(average, tmp_path):
    assert average() == average() == (1, 1)
    assert average(field="ema") == (2, 2)
    assert average() == (3, 3)
    (tmp_path / "10" / "XXH128SUMS").write_text("sums of another checkpoint 10")
    assert average() == average() == (4, 4)


def test_one_checkpoint_is_not_copied(average, tmp_path):
    assert average(count=1) == (1, 1)
    assert average(count=1) == (2, 2)
    assert not (tmp_path / "average").exists()


@pytest.mark.parametrize("position", [0, 20, -1])
def test_a_damaged_file_is_made_anew(average, tmp_path, position):
    average()
    content = bytearray((tmp_path / "average").read_bytes())
    content[position] ^= 1
    (tmp_path / "average").write_bytes(content)
    assert average() == average() == (2, 2)
    (tmp_path / "average").write_bytes(b"")
    assert average() == average() == (3, 3)


def test_a_file_that_cannot_be_written_is_no_error(average, tmp_path):
    (tmp_path / "average").mkdir()
    assert [average(), average()] == [(1, 1), (2, 2)]
    assert not any(path.suffix == ".partial" for path in tmp_path.iterdir())


def test_checkpoints_that_vanish_are_for_the_caller_to_report(average, tmp_path):
    average()
    shutil.rmtree(tmp_path / "10")
    assert average() == (2, 2)
