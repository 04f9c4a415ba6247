"""Runs on object stores."""

import re
import time
from pathlib import Path
from urllib.parse import quote

import jax
import numpy as np
import pytest

from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.system.files import CHECKSUMS
from tests.commands.object_stores.conftest import SCHEMES, names_in
from tests.commands.runs import config_flags, last_state, losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", ["s3", pytest.param("gs", marks=pytest.mark.nightly)]
)
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


@pytest.mark.nightly
@pytest.mark.parametrize(("scheme", "count"), [("s3", 2), ("gs", 1)])
def test_a_killed_run_is_continued_on_another_machine(
    start, command, stores, flags, move, tmp_path, scheme, count
):
    """Its lock is taken over after 30 seconds. The state is that of a whole run.

    Each of two processes holds half of the state.
    """
    url = f"{scheme}://bucket/killed{count}"
    flags += (*config_flags("training", steps=20), *config_flags("mesh", fsdp=count))
    start(count, f"--workdir={tmp_path / 'whole'}", *flags).result()
    killed = start(count, f"--workdir={url}", *flags)
    killed.until(lambda: stores[scheme].exists(f"{url}/checkpoints/10/{CHECKSUMS}"))
    killed.kill()
    move("second")
    again = start(count, f"--workdir={url}", *flags)
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
    move("third")
    (line,) = command("translate", workdir=url, stdin=["bo"]).lines
    whole = command("translate", workdir=tmp_path / "whole", stdin=["bo"])
    assert [line] == whole.lines


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


def test_runs_may_be_nested(own, move):
    inner = Workdir(Path(own("nest/inner"))).path
    outer = Workdir(Path("s3://bucket/nest")).path
    assert (inner / "checkpoints" / "100").exists()
    assert not (outer / "checkpoints").exists()


def test_what_is_not_there_is_one_line(command, toy, stores, move):
    complaint = command("translate", workdir="s3://bucket/none").complaint
    assert "there is no run in" in complaint
    complaint = command("translate", workdir="s3://no-such-bucket/none").complaint
    assert complaint == "s3://no-such-bucket/none: there is no such bucket; make it"
    flags = (toy.flags[0], "--config.data.directory=s3://bucket/none")
    complaint = command("prepare", *flags, workdir="s3://bucket/new").complaint
    assert "there is no s3://bucket/none/dev.en" in complaint
