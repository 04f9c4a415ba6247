"""Runs and text on object stores, against local emulators of S3 and Google Cloud."""

import gzip
import re
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import fsspec
import jax
import numpy as np
import pyarrow.parquet
import pytest
from filelock import FileLock

from jaxformer import object_store, run_copy
from jaxformer.data.records import read_parquet
from jaxformer.data.text import read_lines
from jaxformer.errors import InputError
from jaxformer.files import CHECKSUMS
from jaxformer.workdir import Workdir
from tests.commands.runs import config_flags, last_state, losses

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SCHEMES = ("s3", "gs")


@pytest.fixture(scope="module")
def emulators():
    """The environment of processes that use the emulators."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("emulators.py")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        line = next(line for line in process.stdout if line.startswith("ports"))
        _, s3, gs = line.split()
        yield {
            **dict.fromkeys(KEYS, "testing"),
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}",
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{gs}",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        process.kill()


@pytest.fixture(scope="module")
def stores(emulators):
    """A bucket of each kind."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in emulators.items():
            patched.setenv(name, value)
        patched.setattr(run_copy, "_RENEWAL", 0.3)
        patched.setattr(object_store, "_DELAYS", (0.1, 0.1))
        stores = {scheme: fsspec.filesystem(scheme) for scheme in SCHEMES}
        for store in stores.values():
            store.mkdir("bucket")
        yield stores


@pytest.fixture
def move(tmp_path, monkeypatch):
    """Go to another machine: a function that gives this one an empty cache folder."""

    def move(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        run_copy._copies.clear()

    move("first")
    return move


@pytest.fixture(scope="module")
def published(stores, trained):
    """The finished run in both stores."""
    for scheme, store in stores.items():
        for file in trained.workdir.rglob("*"):
            if file.is_file() and file.name != ".lock":
                name = file.relative_to(trained.workdir).as_posix()
                store.pipe_file(f"{scheme}://bucket/toy/{name}", file.read_bytes())


def names_in(stores, url):
    scheme = url.partition(":")[0]
    start = len(url) - len(f"{scheme}://") + 1
    found = (name[start:] for name in stores[scheme].find(url))
    return {*filter(None, found)}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_in_a_bucket_is_that_of_a_folder(
    command, toy, trained, stores, move, scheme
):
    """Its text too is in the bucket. Another machine has everything that it needs."""
    url = f"{scheme}://bucket/whole"
    stores[scheme].put(f"{toy.directory}/", f"{url}/text/", recursive=True)
    flags = (toy.flags[0], f"--config.data.directory={url}/text")
    answer = command("train", *flags, workdir=f"{url}/run")
    for key, value in trained.answer.result.items():
        assert key == "tokens_per_second" or answer.result[key] == value
    names = names_in(stores, f"{url}/run")
    local = {
        file.relative_to(trained.workdir).as_posix()
        for file in trained.workdir.rglob("*")
        if file.is_file() and file.name != ".lock"
    }
    is_named_alike = re.compile(r"(?!tensorboard/|.*/d/).*").fullmatch
    assert {*filter(is_named_alike, names)} == {*filter(is_named_alike, local)}

    move("second")
    there, here = (
        command("translate", workdir=folder, stdin=toy.test)
        for folder in (f"{url}/run", trained.workdir)
    )
    assert there.lines == here.lines
    more = config_flags("training", steps=110)
    assert "resuming: en-de" in command("train", *more, workdir=f"{url}/run").err
    checkpoints = names_in(stores, f"{url}/run/checkpoints")
    assert {name.split("/")[0] for name in checkpoints} == {"75", "100", "110"}
    move("third")
    assert command("evaluate", workdir=f"{url}/run").result["bleu"] > 50


def test_reports_read_a_run_in_a_bucket(command, published, move, tmp_path):
    output = tmp_path / "report.html"
    command("report", f"--output={output}", workdir="s3://bucket/toy").lines  # noqa: B018
    assert output.stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_killed_run_is_continued_on_another_machine(
    start, stores, flags, move, tmp_path, scheme
):
    """Its lock is taken over after 30 seconds. The state is that of a whole run."""
    url, more = f"{scheme}://bucket/killed", config_flags("training", steps=40)
    start(1, f"--workdir={tmp_path / 'whole'}", *flags, *more).result()
    killed = start(1, f"--workdir={url}", *flags, *more)
    killed.until(lambda: stores[scheme].exists(f"{url}/checkpoints/10/{CHECKSUMS}"))
    killed.kill()
    move("second")
    again = start(1, f"--workdir={url}", *flags, *more)
    again.result()
    assert "finding out whether its owner is alive" in again.stderr()
    assert "resuming: en-de" in again.stderr()
    name = quote(url, safe="")
    copy = tmp_path / "second" / "jaxformer" / "runs" / name
    fields = "params", "opt_state"
    ours, theirs = (last_state(run, *fields) for run in (copy, tmp_path / "whole"))
    for mine, other in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert losses(copy) == losses(tmp_path / "whole")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_half_written_is_read(command, published, stores, move, scheme, toy):
    """A checkpoint is there when its checksums are, and a damaged file is refused."""
    url, store = f"{scheme}://bucket/toy", stores[scheme]
    half = f"{scheme}://bucket/half"
    for name in names_in(stores, url):
        store.pipe_file(f"{half}/{name}", store.cat_file(f"{url}/{name}"))
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
        "does not have its checksum in XXH128SUMS; put a copy back"
    )
    assert command("translate", "--checkpoint=50", workdir=half, stdin=["bo"]).lines


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_process_owns_a_run(stores, move, scheme):
    """Another one is refused, unless the owner was killed."""
    url = Path(f"{scheme}://bucket/owned")
    with Workdir(url).owned():
        move("second")
        refused = pytest.raises(InputError, match="is in use by process")
        with refused, Workdir(url).owned():
            pass
        assert ".lock" in names_in(stores, f"{scheme}://bucket/owned")
    assert names_in(stores, f"{scheme}://bucket/owned") == set()
    stores[scheme].pipe_file(
        f"{scheme}://bucket/owned/.lock", b'{"owner": "a dead one"}'
    )
    move("third")
    with Workdir(url).owned():
        pass
    assert names_in(stores, f"{scheme}://bucket/owned") == set()


def test_a_run_that_was_taken_over_publishes_nothing(stores, move):
    url = "s3://bucket/taken"
    folder = Workdir(Path(url))
    refused = pytest.raises(InputError, match="was taken over by a thief")
    with refused, folder.owned():
        stores["s3"].pipe_file(f"{url}/.lock", b'{"owner": "a thief"}')
        (folder.path / "metrics.jsonl").write_text("mine")
        time.sleep(1)
    assert names_in(stores, url) == {".lock"}


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
        monkeypatch.setattr(object_store, "_file_system", lambda _: lost)

    lose(1)
    found = command("translate", workdir="s3://bucket/toy", stdin=toy.test)
    assert len(found.lines) == len(toy.test)
    assert "ConnectionError: unreachable; trying again in 0.1 s" in found.err
    move("second")
    lose(3)
    complaint = command("translate", workdir="s3://bucket/toy").complaint
    assert "ConnectionError: unreachable; check the connection" in complaint


def test_a_checkpoint_that_training_removes_meanwhile_is_not_read(
    command, published, stores, move, monkeypatch, toy
):
    """The parameters are then those of the other checkpoints."""
    url, store = "s3://bucket/shrinking", stores["s3"]
    for name in names_in(stores, "s3://bucket/toy"):
        store.pipe_file(f"{url}/{name}", store.cat_file(f"s3://bucket/toy/{name}"))
    refresh = run_copy._Copy.refresh

    def refresh_and_remove(self, **named):
        refresh(self, **named)
        if store.exists(f"{url}/checkpoints/75"):
            store.rm(f"{url}/checkpoints/75", recursive=True)

    monkeypatch.setattr(run_copy._Copy, "refresh", refresh_and_remove)
    found = command("translate", workdir=url, stdin=["bo"])
    assert len(found.lines) == 1
    assert "steps 50, 100" in found.err


@pytest.fixture
def own(published, stores):
    """Copy the finished run within S3, for a test to change; its URL."""

    def copy(name):
        url, store = f"s3://bucket/{name}", stores["s3"]
        for each in names_in(stores, "s3://bucket/toy"):
            content = store.cat_file(f"s3://bucket/toy/{each}")
            store.pipe_file(f"{url}/{each}", content)
        return url

    return copy


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

    def lose(self, name, content):
        if name == step:
            raise InputError("no connection")
        write(self, name, content)

    more = config_flags("training", steps=110)
    with monkeypatch.context() as patched:
        patched.setattr(object_store.Store, "write", lose)
        assert "no connection" in command("train", *more, workdir=url).complaint
    assert step not in names_in(stores, url)
    again = command("train", *more, workdir=url)
    assert "step 110 of 110" in again.err
    assert step in names_in(stores, url)


def test_a_stop_is_forgotten_when_another_machine_has_gone_on(
    command, own, stores, move, monkeypatch
):
    url, write = own("overtaken"), object_store.Store.write

    def lose(self, name, content):
        if name == f"checkpoints/110/{CHECKSUMS}":
            raise InputError("no connection")
        write(self, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(object_store.Store, "write", lose)
        more = config_flags("training", steps=110)
        assert "no connection" in command("train", *more, workdir=url).complaint
    move("second")
    command("train", *config_flags("training", steps=120), workdir=url).result  # noqa: B018
    move("first")
    folder = run_copy.local_copy(Path(url))
    assert not (folder / "checkpoints" / "110").exists()
    assert (folder / "checkpoints" / "120").exists()


def test_a_reader_leaves_the_copy_of_a_trainer_alone(own, stores, move, monkeypatch):
    """In another process; here the lock is taken by hand."""
    url = own("read")
    folder = run_copy.local_copy(Path(url))
    (folder / "metrics.jsonl").write_text("ahead of the store")
    with FileLock(folder / ".lock"):
        run_copy.local_copy(Path(url))
        assert (folder / "metrics.jsonl").read_text() == "ahead of the store"
    run_copy.local_copy(Path(url))
    assert (folder / "metrics.jsonl").read_text() != "ahead of the store"


def test_a_damaged_file_of_the_copy_is_downloaded_again(command, own, move, toy):
    url = own("repaired")
    first = command("translate", workdir=url, stdin=toy.test)
    folder = run_copy.local_copy(Path(url))
    for file in (folder / "checkpoints" / "100" / "state" / "d").glob("*"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert command("translate", workdir=url, stdin=toy.test).lines == first.lines


def test_runs_may_be_nested(own, move):
    inner = run_copy.local_copy(Path(own("nest/inner")))
    outer = run_copy.local_copy(Path("s3://bucket/nest"))
    assert (inner / "checkpoints" / "100").exists()
    assert not (outer / "checkpoints").exists()


def test_names_that_leave_their_folder_are_refused(own, stores, move, tmp_path):
    url, store = own("hostile"), stores["s3"]
    sums = store.cat_file(f"{url}/checkpoints/100/{CHECKSUMS}")
    line = b"0" * 32 + b"  ../../../x\n"
    store.pipe_file(f"{url}/checkpoints/100/{CHECKSUMS}", sums + line)
    store.pipe_file(f"{url}//corpus/../../{CHECKSUMS}", b"")
    folder = run_copy.local_copy(Path(url))
    with pytest.raises(InputError, match=r"names '../../../x'"):
        run_copy.fetch(folder / "checkpoints" / "100")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_text_is_read_by_globs(stores, scheme, ending):
    lines = [f"a {number}\tb {number}" for number in range(5000)]
    url, store = f"{scheme}://bucket/glob{ending}", stores[scheme]
    for part in range(2):
        content = "".join(f"{line}\n" for line in lines[part::2]).encode()
        content = gzip.compress(content) if ending else content
        store.pipe_file(f"{url}/part{part}.tsv{ending}", content)
    found = object_store.find_files(f"{url}/part*.tsv{ending}")
    assert [*map(object_store.file_name, found)] == [
        f"{url}/part{part}.tsv{ending}" for part in range(2)
    ]
    assert [*chain(*map(read_lines, found))] == lines[::2] + lines[1::2]
    before = object_store.size_and_time(found[0])
    store.pipe_file(f"{url}/part0.tsv{ending}", gzip.compress(b"c\td\n"))
    assert object_store.size_and_time(found[0]) != before
    with pytest.raises(InputError, match=f"{url}/x.tsv cannot be read: No such file"):
        next(read_lines(Path(f"{url}/x.tsv")))


def test_text_is_read_from_parquet_files(stores):
    pairs = [(f"a {number}", f"b {number}") for number in range(3000)]
    table = pyarrow.table(
        {
            side: column
            for side, column in zip(("en", "de"), zip(*pairs, strict=True), strict=True)
        }
    )
    with stores["s3"].open("s3://bucket/text.parquet", "wb") as file:
        pyarrow.parquet.write_table(table, file)
    path = Path("s3://bucket/text.parquet")
    assert [*read_parquet(path, (), ("en", "de"))] == pairs


@pytest.mark.parametrize("path", ["gcs://bucket/x", "S3://bucket/x"])
def test_other_urls_are_refused(command, toy, path):
    assert (
        "use s3:// or gs://" in command("prepare", *toy.flags, workdir=path).complaint
    )


def test_a_file_that_is_missing_in_the_store_is_one_line(
    command, published, stores, move
):
    url, store = "s3://bucket/lacking", stores["s3"]
    for name in names_in(stores, "s3://bucket/toy"):
        store.pipe_file(f"{url}/{name}", store.cat_file(f"s3://bucket/toy/{name}"))
    store.rm_file(f"{url}/corpus/train/00000.target.npy")
    more = config_flags("training", steps=110)
    assert re.match(
        "s3://bucket/lacking/corpus lacks a file .*00000.target.npy",
        command("train", *more, workdir=url).complaint,
    )


def test_only_runs_and_text_may_be_in_a_bucket(command, use, tmp_path):
    complaint = use(
        "export", "--format=ctranslate2", "--output=s3://bucket/x"
    ).complaint
    assert "s3://bucket/x is on an object store; write to a folder" in complaint
    assert not (Path("s3:")).exists()


def test_what_is_not_there_is_one_line(command, toy, stores, move):
    complaint = command("translate", workdir="s3://bucket/none").complaint
    assert "there is no run in" in complaint
    complaint = command("translate", workdir="s3://no-such-bucket/none").complaint
    assert complaint == "s3://no-such-bucket/none: there is no such bucket; make it"
    flags = (toy.flags[0], "--config.data.directory=s3://bucket/none")
    complaint = command("prepare", *flags, workdir="s3://bucket/new").complaint
    assert "there is no s3://bucket/none/dev.en" in complaint
