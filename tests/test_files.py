"""Files and folders that appear whole or not at all."""

import pytest

from jaxformer.errors import InputError
from jaxformer.files import new_folder, write_atomically


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a.txt", "first")
    write_atomically(tmp_path / "a.txt", "zweites: ä")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(tmp_path / "a.txt", "lost")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == "zweites: ä".encode()


def test_a_folder_appears_when_it_is_complete(tmp_path):
    new = tmp_path / "sub" / "new"
    with new_folder(new) as folder:
        (folder / "x").write_text("x")
        assert not new.exists()
    assert [path.name for path in new.parent.iterdir()] == ["new"]
    assert (new / "x").read_text() == "x"


def test_an_error_inside_leaves_no_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "new"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_only_an_empty_folder_may_be_replaced(tmp_path):
    (tmp_path / "old").mkdir()
    with new_folder(tmp_path / "old") as folder:
        (folder / "x").write_text("x")
    for path, said in (("old", "exists already"), ("old/x/new", "cannot be written")):
        with pytest.raises(InputError, match=said), new_folder(tmp_path / path):
            pass
    assert (tmp_path / "old" / "x").read_text() == "x"
