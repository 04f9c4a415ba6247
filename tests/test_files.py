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
    with pytest.raises(KeyboardInterrupt), new_folder(new):
        raise KeyboardInterrupt
    for _ in range(2):
        with new_folder(new) as folder:
            assert list(folder.iterdir()) == []
        assert [path.name for path in new.parent.iterdir()] == ["new"]
    with new_folder(new) as folder:  # the old one is empty
        (folder / "x").write_text("x")
        assert list(new.iterdir()) == []
    for path, said in ((new, "exists already"), (new / "x/y", "cannot be written")):
        with pytest.raises(InputError, match=said), new_folder(path):
            pass
    assert (new / "x").read_text() == "x"
