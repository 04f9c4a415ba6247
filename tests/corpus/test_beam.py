"""Apache Beam prepares the files that one machine writes, byte for byte."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxformer.corpus import preparation, survey
from jaxformer.corpus.beam import Beam
from jaxformer.corpus.preparation import prepare
from jaxformer.corpus.shard_job import ShardJob
from jaxformer.system.errors import InputError
from jaxformer.text import sources
from jaxformer.text.tfds import read_tfds
from tests.corpus.test_preparation import (
    CHUNK,
    NOISY,
    ONE,
    SHARD,
    config_of,
    interrupt,
    tree,
    write_text,
)

PROCESSES = "--direct_running_mode=multi_processing --direct_num_workers=2"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Two corpora in several files each, some compressed, cut within shards."""
    monkeypatch.setattr(sources, "CHUNK", CHUNK)
    monkeypatch.setattr(sources, "SHARD", SHARD)
    text = tmp_path / "text"
    text.mkdir()
    write_text(text)
    for language in "ab":
        for name, sizes in (("one", (0, 5, 70, 100)), ("two", (0, 4))):
            lines = (text / f"{name}.{language}").read_bytes().splitlines(True)
            for number, first in enumerate(sizes):
                last = (*sizes, None)[number + 1]
                content = gzip.compress(b"".join(lines[first:last]), mtime=0)
                (text / f"{name}.{number}.{language}.gz").write_bytes(content)
    corpora = [
        {
            "name": name, "corpus": "files", "tag": ">>b<<", "dev": "",
            "train": f"{text}/{name}.*.a.gz,{text}/{name}.*.b.gz",
        }
        for name in ("one", "two")
    ]  # fmt: skip
    corpora[0] |= {"dev": f"{text}/dev.a,{text}/dev.b"}
    return config_of(text, corpora=tuple(corpora), **ONE)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ("", {}),
        pytest.param(PROCESSES, {"vocab_sentences": 40}, marks=pytest.mark.slow),
        ("", {"shared_vocabulary": False, "vocab_sentences": 40}),
        ("", {"deduplicate": False}),
        (PROCESSES, NOISY | {"subword_sampling": 0.1, "versions": 3, "seed": 7}),
    ],
)
def test_the_files_are_those_of_one_machine(config, tmp_path, options, changes):
    config = replace(config, **changes)
    prepare(config, tmp_path / "here", processes=1)
    beam = Beam("DirectRunner", options)
    prepared = prepare(config, tmp_path / "beam", pipeline=beam)
    assert tree(tmp_path / "beam") == tree(tmp_path / "here")
    assert len(prepared.train.source.shards) > 4
    is_repeated = prepared.report["train"]["dropped"]["duplicate"] > 10
    assert is_repeated == config.deduplicate


def test_a_given_tokeniser_is_used(config, tmp_path):
    given = prepare(config, tmp_path / "one").tokenizer
    fewer = replace(config, corpora=config.corpora[:1])
    prepare(fewer, tmp_path / "here", tokenizer=given)
    beam = Beam("DirectRunner", "")
    prepare(fewer, tmp_path / "beam", tokenizer=given, pipeline=beam)
    assert tree(tmp_path / "beam") == tree(tmp_path / "here")


def stop_after_two_shards(config, run, monkeypatch, url=""):
    """Let a pipeline stop. From then on the survey or these shards fail if repeated."""
    tokenise, written = ShardJob.tokenise, []

    def fail_once(self, shard, *given):
        if len(written) == 2:
            raise OSError("a worker died")
        written.append(shard[0])
        return tokenise(self, shard, *given)

    with monkeypatch.context() as patched:
        patched.setattr(ShardJob, "tokenise", fail_once)
        with pytest.raises(Exception, match="a worker died"):
            prepare(config, run, pipeline=Beam("DirectRunner", "", url))
    monkeypatch.setattr(survey, "_read", None)
    monkeypatch.setattr(Beam, "survey", None)

    def note(self, shard, *given):
        assert shard[0] not in written
        return tokenise(self, shard, *given)

    monkeypatch.setattr(ShardJob, "tokenise", note)


@pytest.mark.parametrize("then", ["beam", "here"])
def test_it_goes_on_after_a_stop_with_either_engine(
    config, tmp_path, monkeypatch, then
):
    """Shards that a pipeline has written are not written again by another one."""
    prepare(config, tmp_path / "undisturbed")
    run = tmp_path / "run"
    stop_after_two_shards(config, run, monkeypatch)
    assert not (run / "corpus").exists()
    pipeline = Beam("DirectRunner", "") if then == "beam" else None
    prepare(config, run, pipeline=pipeline)
    assert tree(run) == tree(tmp_path / "undisturbed")


def test_a_stop_after_the_last_shard_repeats_no_shard(config, tmp_path, monkeypatch):
    prepare(config, tmp_path / "undisturbed")
    with monkeypatch.context() as patched:
        patched.setattr(preparation, "write_checksums", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(config, tmp_path / "run", pipeline=Beam("DirectRunner", ""))
    monkeypatch.setattr(ShardJob, "tokenise", None)
    prepare(config, tmp_path / "run", pipeline=Beam("DirectRunner", ""))
    assert tree(tmp_path / "run") == tree(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    "change", [lambda lines: [*lines, b"x\n"], lambda lines: lines[:-1]]
)
def test_text_that_changes_meanwhile_is_refused(config, tmp_path, monkeypatch, change):
    train = survey.VocabularySamples.train

    def change_and_train(self):
        for file in Path(tmp_path / "text").glob("one.3.*"):
            lines = change(gzip.decompress(file.read_bytes()).splitlines(True))
            file.write_bytes(gzip.compress(b"".join(lines)))
        return train(self)

    monkeypatch.setattr(survey.VocabularySamples, "train", change_and_train)
    with pytest.raises(InputError, match="the text changed while it was prepared"):
        prepare(config, tmp_path / "run", pipeline=Beam("DirectRunner", ""))
    assert tree(tmp_path / "run") == {}


def test_mistakes_are_one_line_and_leave_nothing(config, tmp_path):
    text, run = tmp_path / "text", tmp_path / "run"

    def refused(config, options=""):
        with pytest.raises(InputError) as error:
            prepare(config, run, pipeline=Beam("DirectRunner", options))
        assert tree(run) == {}
        return str(error.value)

    (text / "one.1.a.gz").write_bytes(gzip.compress(b"a\n\xff\n"))
    not_utf8 = (
        "one.1.a.gz, line 2: byte 1 of the line is not UTF-8; convert the text to UTF-8"
    )
    assert refused(config).endswith(not_utf8)
    assert refused(config, options=PROCESSES).endswith(not_utf8)
    (text / "one.1.a.gz").write_bytes(gzip.compress(b"a\n"))
    assert refused(config).endswith("line N of one must translate line N of the other")
    for runner, options, reason in (
        ("Best", "", "Unexpected pipeline runner"),
        ("DirectRunner", "--direct_num_workers=many", "2"),
        ("DirectRunner", "--a='", "No closing quotation"),
    ):
        with pytest.raises(InputError, match=f"--runner={runner} .*{reason}"):
            Beam(runner, options)


def test_a_mistake_that_was_corrected_is_forgotten(config, tmp_path, monkeypatch):
    """Also if it was noted by a worker of a pipeline that then failed."""
    tokenise, run = ShardJob.tokenise, tmp_path / "run"

    def refuse(self, shard, *given):
        self._write("mistake.1.json", [False, "a mistake"])
        raise OSError("its consequence")

    monkeypatch.setattr(ShardJob, "tokenise", refuse)
    with pytest.raises(InputError, match=r"^a mistake$"):
        prepare(config, run, pipeline=Beam("DirectRunner", ""))
    monkeypatch.setattr(ShardJob, "tokenise", tokenise)
    prepare(config, run, pipeline=Beam("DirectRunner", ""))
    prepare(config, tmp_path / "here")
    assert tree(run) == tree(tmp_path / "here")


def test_workers_with_other_files_are_refused(config, tmp_path, monkeypatch):
    pairs = ShardJob._pairs

    def pairs_elsewhere(self, file):
        for path in (tmp_path / "text").glob("one.3.*"):
            path.unlink()
        return pairs(self, file)

    monkeypatch.setattr(ShardJob, "_pairs", pairs_elsewhere)
    with pytest.raises(InputError, match=r"finds 3 files .* first machine 4"):
        prepare(config, tmp_path / "run", pipeline=Beam("DirectRunner", ""))


class TinyBeam(tfds.core.BeamBasedBuilder):
    """Pairs like those of wmt14_translate, which Beam makes."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": _pairs(300), "validation": _pairs(3)}

    def _generate_examples(self):
        raise NotImplementedError


def _pairs(count):
    import apache_beam

    return apache_beam.Create(range(count)) | apache_beam.Map(
        lambda i: (i, {"en": f"street {i}", "de": f"Straße {i}"})
    )


@pytest.mark.slow
def test_a_set_of_tensorflow_datasets_is_prepared_by_beam(tmp_path):
    config = config_of(
        tmp_path, corpora=(), corpus="tfds:tiny_beam", train="train", dev="validation",
        source_language="en", target_language="de", directory=str(tmp_path / "tfds"),
        **ONE,
    )  # fmt: skip
    beam = Beam("DirectRunner", "")
    prepared = prepare(config, tmp_path / "beam", pipeline=beam)
    assert prepared.report["train"]["kept"] == 300
    info = json.loads(next((tmp_path / "tfds").rglob("dataset_info.json")).read_text())
    assert info["splits"][0]["shardLengths"]
    prepare(config, tmp_path / "here")
    assert tree(tmp_path / "beam") == tree(tmp_path / "here")
    found = list(read_tfds(config, "tiny_beam", "train"))
    assert len({*found}) == 300
    assert np.all([en[7:] == de[7:] for en, de in found])
