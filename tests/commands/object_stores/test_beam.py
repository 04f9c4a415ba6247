"""Apache Beam prepares runs on object stores."""

import json
from pathlib import Path

import pytest

from jaxformer.corpus.beam import Beam
from jaxformer.corpus.preparation import prepare
from jaxformer.runs.workdir import Workdir
from tests.commands.object_stores.conftest import names_in
from tests.corpus.test_beam import PROCESSES, config, stop_after_two_shards  # noqa: F401
from tests.corpus.test_preparation import tree

ONE_OF_TWO = ["s3", pytest.param("gs", marks=pytest.mark.nightly)]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ONE_OF_TWO)
def test_the_files_are_those_of_one_machine(command, toy, stores, move, scheme):
    """Text and run are in a bucket, and nothing else is left there."""
    url = f"{scheme}://bucket/beam"
    stores[scheme].put(f"{toy.directory}/", f"{url}/text/", recursive=True)
    flags = ["prepare", toy.flags[0], f"--config.data.directory={url}/text"]
    command(*flags, workdir=f"{url}/here").result  # noqa: B018
    options = [f"--runner=DirectRunner {PROCESSES}"]
    command(*flags, *options, workdir=f"{url}/there").result  # noqa: B018
    names = names_in(stores, f"{url}/here")
    assert "corpus/train/00000.source.npy" in names
    assert names_in(stores, f"{url}/there") == names
    records = [
        json.loads(stores[scheme].cat_file(f"{url}/{run}/config.json"))
        for run in ("here", "there")
    ]
    for record in records:
        del record["run"], record["sha256"]  # each run has a name of its own
    assert records[0] == records[1]
    for name in {*names} - {"config.json"}:
        here, there = (
            stores[scheme].cat_file(f"{url}/{run}/{name}") for run in ("here", "there")
        )
        assert here == there, name


@pytest.mark.parametrize("scheme", ONE_OF_TWO)
def test_a_stop_loses_no_shard(
    config,  # noqa: F811
    stores, move, monkeypatch, tmp_path, scheme,
):  # fmt: skip
    prepare(config, tmp_path / "undisturbed")
    url = f"{scheme}://bucket/stopped-beam"
    folder = Workdir(Path(url))
    run = folder.path
    stop_after_two_shards(config, run, monkeypatch, url)
    left = names_in(stores, url)
    assert len([name for name in left if name.endswith(".entry.json")]) == 2
    assert not any("/found." in name for name in left)
    prepare(config, run, pipeline=Beam("DirectRunner", "", url))
    assert tree(run / "corpus") == tree(tmp_path / "undisturbed" / "corpus")
    folder.mirror.push(run / "corpus")
    names = names_in(stores, url)
    assert "corpus/train/00000.source.npy" in names
    assert not any(name.startswith(".corpus") for name in names)
