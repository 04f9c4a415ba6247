"""Files and folders that appear whole or not at all, and checksums of a folder."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import xxhash
from filelock import FileLock

from jaxformer.system.errors import InputError
from jaxformer.system.files import (
    CHECKSUMS,
    digest,
    new_folder,
    owned,
    require_output,
    verify_checksums,
    write_atomically,
    write_checksums,
)
from tests.damage import flip_bit


def test_a_file_that_cannot_be_read_is_named():
    with pytest.raises(OSError, match="/proc/self/mem"):
        digest(Path("/proc/self/mem"))


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a.txt", "first")
    write_atomically(tmp_path / "a.txt", "zweites: ä")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(tmp_path / "a.txt", "lost")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == "zweites: ä".encode()


def test_several_write_a_file_at_once_and_a_prepared_link_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / ".a.txt.partial").symlink_to(tmp_path / "file")
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(write_atomically, [tmp_path / "a.txt"] * 200, ["x"] * 200):
            pass
    assert (tmp_path / "file").read_text() == "kept"
    assert len([*tmp_path.iterdir()]) == 3
    left = tmp_path / ".a.txt.0123abcd.partial"  # by a killed process
    for age, is_left in ((0, True), (61, False)):
        left.touch()
        os.utime(left, 2 * (time.time() - age,))
        with owned(tmp_path, tmp_path / ".lock"):
            assert left.exists() == is_left


def test_what_a_link_names_is_replaced_and_no_pipe(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for content in ("first", "second"):
        write_atomically(tmp_path / "link", content)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "second"
    require_output(tmp_path / "link")
    (tmp_path / "broken").symlink_to(tmp_path / "missing" / "file")
    with pytest.raises(InputError, match="missing is not a writable folder"):
        require_output(tmp_path / "broken")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe cannot be written: no plain file"):
        require_output(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere is a symbolic link; choose a new folder, such as one in"),
        ("somewhere", "somewhere is a symbolic link"),
        (".", ". cannot be replaced; choose a new folder in it"),
    ],
)
def test_a_folder_that_cannot_be_replaced_is_refused(
    tmp_path, monkeypatch, name, message
):
    """Before the work, which would be lost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "empty").mkdir()
    (tmp_path / "somewhere").symlink_to("empty")
    with pytest.raises(InputError, match=message), new_folder(Path(name)):
        pytest.fail("the work was begun")


def test_a_folder_appears_when_it_is_complete(tmp_path):
    new = tmp_path / "sub" / "new"
    with pytest.raises(KeyboardInterrupt), new_folder(new):
        raise KeyboardInterrupt
    for _ in range(2):
        with new_folder(new) as folder:
            assert list(folder.iterdir()) == []
        assert [path.name for path in new.parent.iterdir()] == ["new"]
    (new / "rest").mkdir()
    (new.parent / ".other.partial").symlink_to(new)
    for state in ("", "state"):
        with new_folder(new.parent / "other", state=state) as folder:
            assert not folder.is_symlink()
        (new.parent / "other").rmdir()
    (new / "rest").rmdir()
    with new_folder(new) as folder:  # the old one is empty
        (folder / "x").write_text("x")
        assert list(new.iterdir()) == []
    with pytest.raises(InputError, match="exists already"), new_folder(new):
        pass
    with pytest.raises(OSError, match="Not a directory"), new_folder(new / "x/y/z"):
        pass
    assert (new / "x").read_text() == "x"


def test_checksums_are_those_of_the_program_xxh128sum(tmp_path):
    """Empty files too. tests/commands/test_damage.py damages the files of a run."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.bin").write_bytes(bytes(range(256)))
    (tmp_path / "empty").touch()
    write_checksums(tmp_path)
    assert verify_checksums(tmp_path) == ""
    digest = xxhash.xxh3_128(bytes(range(256))).hexdigest()
    assert f"{digest}  a/b.bin\n" in (tmp_path / CHECKSUMS).read_text()
    (tmp_path / "empty").write_bytes(b"x")
    assert "empty does not have" in verify_checksums(tmp_path)


def test_checksums_that_are_cut_short_are_damaged(tmp_path):
    """Otherwise a line without a name would be a file without one."""
    (tmp_path / "a").write_bytes(b"a")
    write_checksums(tmp_path)
    whole = (tmp_path / CHECKSUMS).read_bytes()
    for content in (whole[:20], whole[:-1], bytes(len(whole)), b"\n"):
        (tmp_path / CHECKSUMS).write_bytes(content)
        assert verify_checksums(tmp_path) == f"{CHECKSUMS} is damaged"


def test_a_lock_of_another_user_is_one_sentence(tmp_path, monkeypatch):
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".lock"))
    refuse = mock.Mock(side_effect=error)
    monkeypatch.setattr(FileLock, "acquire", refuse)
    refused = pytest.raises(InputError, match="lock belongs to another user, whose run")
    with refused, owned(tmp_path, tmp_path / ".lock"):
        pytest.fail("it is not owned")


def test_no_flipped_bit_of_the_checksums_is_overlooked(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    write_checksums(tmp_path)
    file = tmp_path / CHECKSUMS
    for bit in range(8 * file.stat().st_size):
        flip_bit(file, bit)
        assert verify_checksums(tmp_path), bit
        flip_bit(file, bit)
