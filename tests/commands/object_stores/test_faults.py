"""Stops, damage and lost connections of runs on object stores."""

import io
import re
from pathlib import Path

import pytest
import xxhash
from botocore.exceptions import FlexibleChecksumError
from filelock import FileLock

from jaxformer.remote import copy as run_copy
from jaxformer.remote import object_store
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import DamagedError, InputError
from jaxformer.system.files import CHECKSUMS
from tests.commands.object_stores.conftest import SCHEMES, names_in
from tests.commands.runs import config_flags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_half_written_is_read(command, own, stores, move, scheme, toy):
    """A checkpoint is there when its checksums are, and a damaged file is refused."""
    half, store = own("half", scheme), stores[scheme]
    store.rm_file(f"{half}/checkpoints/100/{CHECKSUMS}")
    checkpoints = Workdir(Path(half)).checkpoints
    assert sorted(path.name for path in checkpoints.iterdir()) == ["50", "75"]
    name = next(
        n for n in names_in(stores, half) if n.startswith("checkpoints/75/state/d")
    )
    content = store.cat_file(f"{half}/{name}")
    store.pipe_file(f"{half}/{name}", content[:-1] + bytes([content[-1] ^ 1]))
    refused = command("translate", "--checkpoint=75", workdir=half, stdin=toy.test)
    assert refused.complaint.startswith(
        f"checkpoint {half}/checkpoints/75 is damaged ({half}/{name} is damaged: it "
        "does not have its checksum, read 3 times; put a copy back"
    )
    assert command("translate", "--checkpoint=50", workdir=half, stdin=["bo"]).lines


class Unreachable:
    """A file system that cannot list files a few times."""

    def __init__(self, files, failures):
        self.files, self.failures = files, failures

    def __getattr__(self, name):
        return getattr(self.files, name)

    def find(self, *given):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("unreachable")
        return self.files.find(*given)


def test_a_lost_connection_is_repeated_then_one_line(
    command, published, stores, move, monkeypatch, toy
):
    def lose(failures):
        lost = Unreachable(stores["s3"], failures)
        monkeypatch.setattr(object_store, "file_system", lambda _: lost)

    lose(1)
    found = command("translate", workdir="s3://bucket/toy", stdin=toy.test)
    assert len(found.lines) == len(toy.test)
    assert "ConnectionError: unreachable; trying again in 0.1 s" in found.err
    move("second")
    lose(3)
    lost = command("translate", workdir="s3://bucket/toy")
    assert lost.code == 3  # start again
    assert lost.err.endswith(
        "ConnectionError: unreachable; check the connection, the bucket and the "
        "credentials, then repeat the command\n"
    )


class Flipping:
    """A file system of which some requests for files come damaged."""

    def __init__(self, files, failures):
        self.files, self.failures = files, failures

    def __getattr__(self, name):
        return getattr(self.files, name)

    def _fails(self):
        self.failures -= 1
        return self.failures >= 0

    def cat_file(self, url):
        if self._fails():
            raise FlexibleChecksumError(error_msg="Expected checksum a, not b")
        return self.files.cat_file(url)

    def open(self, url, mode):
        content = self.files.cat_file(url)
        return io.BytesIO(b"flipped" if self._fails() else content)


@pytest.mark.parametrize("name", [None, "corpus/report.json"])
def test_what_comes_damaged_is_read_again(
    published, stores, monkeypatch, tmp_path, move, name
):
    """By the checksums of a folder, or else by that of the store."""
    for failures in (2, 3):
        files = Flipping(stores["s3"], failures)
        monkeypatch.setattr(object_store, "file_system", lambda _, files=files: files)
        store, file = object_store.Store("s3://bucket/toy"), tmp_path / "file"
        content = stores["s3"].cat_file(store.at(name or "config.json"))
        digest = xxhash.xxh3_128_hexdigest(content) if name else ""
        if failures < 3:
            store.get(name or "config.json", file, digest)
            assert file.read_bytes() == content
        else:
            with pytest.raises(DamagedError, match=r"is damaged: .* read 3 times; put"):
                store.get(name or "config.json", file, digest)


@pytest.mark.parametrize(
    ("code", "repeated"), [(404, 0), (408, 1), (429, 1), (499, 0), (500, 1), (503, 1)]
)
def test_what_may_succeed_later_is_repeated(monkeypatch, code, repeated):
    class HttpError(Exception):
        def __init__(self):
            self.code = code

    calls, answers = [], iter([HttpError(), "found"])

    def ask():
        calls.append(answer := next(answers))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(object_store, "_DELAYS", (0.0,))
    if repeated:
        assert object_store.request("gs://bucket", ask) == "found"
    else:
        with pytest.raises(InputError, match="HttpError"):
            object_store.request("gs://bucket", ask)
    assert len(calls) == 1 + repeated


def test_a_folder_that_is_replaced_does_not_exist_meanwhile(own, move, monkeypatch):
    copy, put, found = run_copy.copy_of(own("replaced")), object_store.Store.put, []
    copy.pull(folder := copy.path / "checkpoints" / "75")
    (folder / CHECKSUMS).write_text((folder / CHECKSUMS).read_text() + "\n")

    def note(self, file, name):
        found.append(f"checkpoints/75/{CHECKSUMS}" in self.names("checkpoints/75"))
        put(self, file, name)

    monkeypatch.setattr(object_store.Store, "put", note)
    with copy.lock.held():
        copy.push(folder)
    assert found
    assert not any(found)


def test_a_small_file_is_published_whenever_it_has_changed(own, move):
    url = own("small")
    copy = run_copy.copy_of(url)
    for text in ("first\n", "second\n", "third\n"):
        (copy.path / "metrics.jsonl").write_text(text)
        copy.push_small()
        assert object_store.Store(url).read("metrics.jsonl").decode() == text


def test_a_stopped_download_leaves_no_file_in_the_copy(own, move, monkeypatch):
    """A kill would leave it there, and the folder would count as damaged."""
    copy, found = run_copy.copy_of(own("download")), []

    def replace(source, target):
        found.append(Path(target).name)
        assert copy.path not in Path(source).parents
        move_file(source, target)

    move_file = object_store.os.replace
    monkeypatch.setattr(object_store.os, "replace", replace)
    copy.pull(copy.path / "checkpoints" / "100")
    assert "_CHECKPOINT_METADATA" in found


def test_a_kill_while_a_folder_is_removed_leaves_no_half(own, move, monkeypatch):
    url = own("removed")
    copy = run_copy.copy_of(url)
    folder = copy.path
    copy.pull(folder / "checkpoints" / "75")
    store = object_store.Store(url)
    for name in store.names("checkpoints/75"):
        store.remove(name)

    def stop(path, **_):
        if Path(path).exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_copy.shutil, "rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            copy.refresh()
    assert not (folder / "checkpoints" / "75").exists()
    copy.refresh()
    assert sorted(path.name for path in (folder / "checkpoints").glob("[!.]*")) == [
        "100",
        "50",
    ]


def test_a_checkpoint_that_training_removes_meanwhile_is_not_read(
    command, own, stores, move, monkeypatch
):
    """The parameters are then those of the other checkpoints."""
    url, store = own("shrinking"), stores["s3"]
    refresh = run_copy.RunCopy.refresh

    def refresh_and_remove(self, **named):
        refresh(self, **named)
        if store.exists(f"{url}/checkpoints/75"):
            store.rm(f"{url}/checkpoints/75", recursive=True)

    monkeypatch.setattr(run_copy.RunCopy, "refresh", refresh_and_remove)
    found = command("translate", workdir=url, stdin=["bo"])
    assert len(found.lines) == 1
    assert "steps 50, 100" in found.err


def lose_step_110(command, url, monkeypatch):
    """Train to a checkpoint that cannot be published; returns the flags."""
    write = object_store.Store.write

    def lose(self, name, content):
        if name == f"checkpoints/110/{CHECKSUMS}":
            raise InputError("no connection")
        write(self, name, content)

    more = config_flags("training", steps=110)
    with monkeypatch.context() as patched:
        patched.setattr(object_store.Store, "write", lose)
        assert "no connection" in command("train", *more, workdir=url).complaint
    return more


@pytest.mark.slow
def test_a_stop_while_something_is_published_loses_nothing(
    command, own, stores, move, monkeypatch, toy
):
    """The next command publishes it, and does not make it again."""
    write, url = object_store.Store.write, "s3://bucket/stopped"

    def stop(self, name, content):
        if name == f"corpus/{CHECKSUMS}":
            raise KeyboardInterrupt
        write(self, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(object_store.Store, "write", stop)
        assert command("prepare", *toy.flags, workdir=url).code == 130
    assert f"corpus/{CHECKSUMS}" not in names_in(stores, url)
    again = command("prepare", *toy.flags, workdir=url)
    assert "as it was prepared" in again.err
    assert f"corpus/{CHECKSUMS}" in names_in(stores, url)

    url, step = own("unpublished"), f"checkpoints/110/{CHECKSUMS}"
    more = lose_step_110(command, url, monkeypatch)
    assert step not in names_in(stores, url)
    again = command("train", *more, workdir=url)
    assert "step 110 of 110" in again.err
    assert step in names_in(stores, url)


@pytest.mark.slow
@pytest.mark.parametrize(  # of the other machine
    "steps", [pytest.param(120, marks=pytest.mark.nightly), 105]
)
def test_a_stop_is_forgotten_when_another_machine_has_gone_on(
    command, own, stores, move, monkeypatch, steps
):
    """Even if it has trained less far."""
    url = own(f"overtaken_{steps}")
    lose_step_110(command, url, monkeypatch)
    move("second")
    more = config_flags("training", steps=steps)
    assert command("train", *more, workdir=url).result["step"] == steps
    move("first")
    folder = run_copy.copy_of(url).path
    assert not (folder / "checkpoints" / "110").exists()
    assert (folder / "checkpoints" / str(steps)).exists()
    for name in names_in(stores, url):
        stores["s3"].rm_file(f"{url}/{name}")
    folder = run_copy.copy_of(url).path
    assert not [*folder.glob("checkpoints/[0-9]*")]


def test_a_reader_leaves_the_copy_of_a_trainer_alone(own, stores, move, monkeypatch):
    """In another process; here the lock is taken by hand."""
    url = own("read")
    folder = run_copy.copy_of(url).path
    (folder / "metrics.jsonl").write_text("ahead of the store")
    with FileLock(folder / ".lock"):
        run_copy.copy_of(url)
        assert (folder / "metrics.jsonl").read_text() == "ahead of the store"
    run_copy.copy_of(url)
    assert (folder / "metrics.jsonl").read_text() != "ahead of the store"
    (folder / ".published").unlink()
    (folder / ".published").symlink_to(".published")  # OSError, also for root
    with pytest.raises(OSError, match=r"\.published"):
        run_copy.copy_of(url)


def test_a_damaged_file_of_the_copy_is_downloaded_again(command, own, move, toy):
    url = own("repaired")
    first = command("translate", workdir=url, stdin=toy.test)
    folder = run_copy.copy_of(url).path
    for file in (folder / "checkpoints" / "100" / "state" / "d").glob("*"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert command("translate", workdir=url, stdin=toy.test).lines == first.lines


def test_names_that_leave_their_folder_are_refused(own, stores, move, tmp_path):
    url, store = own("hostile"), stores["s3"]
    sums = store.cat_file(f"{url}/checkpoints/100/{CHECKSUMS}")
    line = b"0" * 32 + b"  ../../../x\n"
    store.pipe_file(f"{url}/checkpoints/100/{CHECKSUMS}", sums + line)
    store.pipe_file(f"{url}//corpus/../../{CHECKSUMS}", b"")
    copy = run_copy.copy_of(url)
    with pytest.raises(InputError, match=r"names '../../../x'"):
        copy.pull(copy.path / "checkpoints" / "100")


def test_a_file_that_is_missing_in_the_store_is_one_line(command, own, stores, move):
    url = own("lacking")
    stores["s3"].rm_file(f"{url}/corpus/train/00000.target.npy")
    more = config_flags("training", steps=110)
    assert re.match(
        "s3://bucket/lacking/corpus lacks a file .*00000.target.npy",
        command("train", *more, workdir=url).complaint,
    )
