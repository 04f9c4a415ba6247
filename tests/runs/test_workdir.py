"""A run's folder: its record, what may change in it, and what is refused."""

import hashlib
import json
import os
from dataclasses import replace

import pytest

from jaxformer.configs import multi30k
from jaxformer.runs.config_files import LAST_TO_READ_OLDER, parse_config
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.text.vocabulary import train_tokenizer


def tokenizer_of(words, path):
    changes = {"vocab_size": 40, "vocab_sentences": 99}
    tokenizer = train_tokenizer(words, replace(config().data, **changes))
    path.write_bytes(tokenizer.source_model)
    return tokenizer


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "runs" / "one")
    workdir.path.mkdir(parents=True)
    workdir.write_record(config(), tokenizer_of(["a b c"], workdir.tokenizer_file))
    return workdir


def config(**changes):
    """Change values of the Multi30k config: model__d_ff=3 is model.d_ff."""
    values = multi30k.get_config().to_dict()
    for name, value in changes.items():
        section, key = name.split("__")
        values[section][key] = value
    return parse_config(values)


def test_the_record_is_what_was_written_and_is_written_once(workdir):
    record = workdir.read_record()
    assert record.config == config()
    assert record.direction == "en-de"
    assert (
        record.tokenizer["vocab_size"]
        == workdir.read_tokenizer(workdir.read_record()).vocab_size
    )
    assert {"jax", "flax", "sentencepiece"} <= record.versions.keys()
    before = workdir.config_file.stat().st_mtime_ns
    workdir.write_record(config(), workdir.read_tokenizer(workdir.read_record()))
    assert workdir.config_file.stat().st_mtime_ns == before


def test_only_a_finished_checkpoint_counts(workdir):
    (workdir.checkpoints / "tmp.100").mkdir(parents=True)
    assert not workdir.has_checkpoints()
    (workdir.checkpoints / "100").mkdir()
    assert workdir.has_checkpoints()
    for path in (workdir.checkpoints / "40", workdir.path / "tensorboard"):
        path.touch()
        with pytest.raises(InputError, match=f"{path} is a file, not a folder of the"):
            Workdir(workdir.path)


@pytest.mark.parametrize(
    "name", ["tr\\ain", "[a]", "gs:", "gs:/../x", os.fsdecode(b"\xff")]
)
def test_a_path_that_orbax_would_read_as_another_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="which checkpoints cannot have"):
        Workdir(tmp_path / name)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("checkpoints", "../outside"),
        (".lock", "../outside"),
        ("checkpoints/7/_CHECKPOINT_METADATA", "/dev/zero"),
        ("profile/plugins/profile", "/"),
        ("metrics.jsonl", "config.json"),  # the log would replace it
        (".corpus.partial", "."),
    ],
)
def test_links_in_the_folder_are_refused(tmp_path, workdir, name, target):
    (workdir.path / name).parent.mkdir(parents=True, exist_ok=True)
    (workdir.path / "data").symlink_to(tmp_path)  # the user's
    (tmp_path / "linked").symlink_to(workdir.path)
    Workdir(tmp_path / "linked")
    (workdir.path / name).symlink_to(target)
    for path in (workdir.path, tmp_path / "linked"):
        with pytest.raises(InputError, match=f"{name} is a link, which a run"):
            Workdir(path)


def test_a_pipe_is_refused_and_what_others_own_is_not(tmp_path, workdir):
    (workdir.path / "wandb" / "run" / "logs").mkdir(parents=True)
    (workdir.path / "wandb" / "run" / "logs" / "core.log").symlink_to(tmp_path)
    Workdir(workdir.path)
    os.mkfifo(workdir.path / "metrics.jsonl")  # to read it would wait for ever
    with pytest.raises(InputError, match=r"metrics\.jsonl is a pipe or a device"):
        Workdir(workdir.path)


def test_a_run_keeps_its_name_once_there_are_checkpoints(workdir):
    tokenizer = workdir.read_tokenizer(record := workdir.read_record())
    assert workdir.write_record(config(training__steps=9), tokenizer).run == record.run
    other = workdir.write_record(config(model__d_ff=7), tokenizer).run
    assert other.partition("-")[0] != record.run.partition("-")[0]
    (workdir.checkpoints / "100").mkdir(parents=True)
    assert workdir.write_record(config(model__d_ff=8), tokenizer).run == other


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            Workdir(path).owned().__enter__()


def test_a_damaged_or_edited_record_is_refused(workdir):
    content = workdir.config_file.read_text()
    edited = content.replace('"d_ff": 256', '"d_ff": 512')
    assert edited != content
    for text in ("", "[]", "7", '{"config": {}}', "\x00", "[" * 10**5, edited):
        workdir.config_file.write_text(text)
        with pytest.raises(InputError, match=r"damaged or was edited.*\.KEY=VALUE"):
            workdir.read_record()


@pytest.mark.parametrize(
    ("section", "key", "is_refused"),
    [("training", "best_by", True), ("training", "patience", False)],
)
def test_a_record_without_a_key_is_of_an_earlier_version_unless_none_will_do(
    workdir, section, key, is_refused
):
    record = json.loads(workdir.config_file.read_text())
    del record["config"][section][key], record["sha256"]
    text = json.dumps(record, sort_keys=True).encode()
    record["sha256"] = hashlib.sha256(text).hexdigest()
    workdir.config_file.write_text(json.dumps(record))
    if not is_refused:
        assert workdir.read_record().config == config()
        return
    said = f"another version .*{section}.{key}.*; runs .* commit {LAST_TO_READ_OLDER}"
    with pytest.raises(InputError, match=said):
        workdir.read_record()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model__d_ff": 7}, r"model\.d_ff=256, and this config says 7"),
        ({"training__ema_decay": 0.9}, r"training\.ema_decay=None, .* says 0\.9"),
        ({"data__target_language": "fr"}, r"data\.target_language='de', .* 'fr'"),
        ({"training__seed": 1}, r"training\.seed=0, .* says 1"),
        ({"batches__layout": "packed"}, r"batches\.layout='buckets', .* 'packed'"),
        ({"data__train": "x"}, r"data\.train="),
        ({"training__init_from": "x"}, r"training\.init_from='base'"),
    ],
)
def test_only_free_keys_may_change(workdir, change, said):
    free = {"mesh__data": 4, "training__steps": 9, "data__directory": "/elsewhere"}
    free |= {"decoding__alpha": 1.0, "batches__executor": "python"}
    given = {"data__tokenizer": "own", "training__init_from": "base"}
    record = workdir.read_record()._replace(config=config(**given))
    free |= {"data__tokenizer": str(workdir.tokenizer_file)}  # the same content
    free |= {"training__init_from": "./x/../base/"}  # the same path
    workdir.require_same_run(config(**free), record)
    with pytest.raises(InputError, match=said):
        workdir.require_same_run(config(**free | change), record)
    tokenizer_of(["x y"], workdir.tokenizer_file)
    with pytest.raises(InputError, match=r"data\.tokenizer='own'"):
        workdir.require_same_run(config(**free), record)
