"""Tests of files and folders that appear whole or not at all."""

import pytest

from jaxformer.errors import InputError
from jaxformer.files import new_folder, write_atomically


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    write_atomically(tmp_path / "a.txt", "first")
    write_atomically(tmp_path / "a.txt", "zweites: ä")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == "zweites: ä".encode()


def test_a_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a.txt", "kept")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(tmp_path / "a.txt", "lost")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "kept"


def test_a_folder_appears_when_it_is_complete(tmp_path):
    with new_folder(tmp_path / "sub" / "new") as folder:
        (folder / "x").write_text("x")
        assert not (tmp_path / "sub" / "new").exists()
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["new"]
    assert (tmp_path / "sub" / "new" / "x").read_text() == "x"


def test_an_error_inside_leaves_no_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "new"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "old").mkdir()
    with new_folder(tmp_path / "old") as folder:  # empty: may be replaced
        (folder / "x").write_text("x")
    with (
        pytest.raises(InputError, match="exists already"),
        new_folder(tmp_path / "old"),
    ):
        pass
    assert (tmp_path / "old" / "x").read_text() == "x"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="cannot be written"),
        new_folder(tmp_path / "file" / "new"),
    ):
        pass
