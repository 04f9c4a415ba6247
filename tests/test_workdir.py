"""A run's folder: its record, what may change in it, and what is refused."""

import json
import shutil

import pytest

from configs import multi30k
from jaxformer.data.tokenizer import train_tokenizer
from jaxformer.errors import InputError
from jaxformer.workdir import (
    EARLIER_VALUES,
    FREE_KEYS,
    FREE_SECTIONS,
    Workdir,
    direction,
)


def tokenizer_of(words, path):
    return train_tokenizer(
        words, path, vocab_size=40, character_coverage=1.0, max_sentences=99, seed=0
    )


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "runs" / "one")
    workdir.create()
    workdir.write_record(config(), tokenizer_of(["a b c"], workdir.tokenizer_file))
    return workdir


def config(**changes):
    """Change values of the Multi30k config: model__d_ff=3 is model.d_ff."""
    values = multi30k.get_config().to_dict()
    for name, value in changes.items():
        section, key = name.split("__")
        assert key in values[section]
        values[section][key] = value
    return values


def test_the_record_is_what_was_written(workdir):
    record = workdir.read_record()
    assert record["config"] == json.loads(json.dumps(config()))
    assert record["direction"] == "en-de"
    assert record["tokenizer"]["vocab_size"] == workdir.read_tokenizer().vocab_size
    assert record["versions"]["jax"]
    assert not list(workdir.path.glob("*.partial"))


def test_what_a_record_from_before_a_key_lacks_is_what_runs_did_then(workdir):
    record = workdir.read_record()
    for section, keys in EARLIER_VALUES.items():
        for key in keys:
            del record["config"][section][key]
    workdir.config_file.write_text(json.dumps(record))
    assert workdir.read_record()["config"] == json.loads(json.dumps(config()))
    workdir.require_same_run(config())
    with pytest.raises(InputError, match=r"model\.activation='relu', .* says 'swish'"):
        workdir.require_same_run(config(model__activation="swish"))


def test_a_recorded_value_counts_more_than_an_earlier_one(tmp_path, workdir):
    workdir.write_record(config(model__logits_bias=True), workdir.read_tokenizer())
    assert workdir.read_record()["config"]["model"]["logits_bias"] is True


def test_earlier_values_are_of_keys_that_exist():
    values = config()
    for section, keys in EARLIER_VALUES.items():
        assert values[section].keys() >= keys.keys()


def test_creating_again_changes_nothing(workdir):
    before = workdir.config_file.read_bytes()
    workdir.create()
    assert workdir.config_file.read_bytes() == before


def test_the_same_record_is_not_written_again(workdir):
    before = workdir.config_file.stat().st_mtime_ns
    workdir.write_record(config(), workdir.read_tokenizer())
    assert workdir.config_file.stat().st_mtime_ns == before


def test_only_a_finished_checkpoint_is_one(workdir):
    assert not workdir.has_checkpoints()
    (workdir.checkpoints / "tmp.100").mkdir(parents=True)
    assert not workdir.has_checkpoints()
    (workdir.checkpoints / "100").mkdir()
    assert workdir.has_checkpoints()


def test_direction_is_source_then_target():
    assert direction(config(data__source_language="fr")) == "fr-de"


def test_a_folder_without_a_run_is_refused(tmp_path):
    workdir = Workdir(tmp_path)
    with pytest.raises(InputError, match=r"there is no run in .* --config"):
        workdir.read_record()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="cannot be made"):
            Workdir(path).create()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(InputError, match="not writable"):
        Workdir(tmp_path).create()


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"config": {}}', "\x00"])
def test_a_damaged_record_is_refused(workdir, text):
    workdir.config_file.write_text(text)
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        workdir.read_record()


def test_the_same_config_is_the_same_run(workdir):
    workdir.require_same_run(config())


@pytest.mark.parametrize(
    "change",
    [
        {"mesh__data": 4},
        {"decoding__beam_size": 1},
        {"batches__executor": "python"},
        {"training__steps": 9},
        {"training__tokens_per_microbatch": 99},
        {"training__rematerialise": True},
        {"training__on_divergence": "rollback"},  # as its report advises
        {"training__max_bad_steps": 99},
        {"data__directory": "/elsewhere"},
        {"data__test": "test_2017_flickr"},
    ],
)
def test_how_and_where_it_runs_may_change(workdir, change):
    workdir.require_same_run(config(**change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model__d_ff": 7}, r"model\.d_ff=256, and this config says 7"),
        ({"model__norm_first": True}, r"model\.norm_first=False, .* says True"),
        ({"training__ema_decay": 0.9}, r"training\.ema_decay=None, .* says 0\.9"),
        ({"data__target_language": "fr"}, r"data\.target_language='de', .* 'fr'"),
        ({"batches__layout": "packed"}, r"batches\.layout='buckets', .* 'packed'"),
        ({"batches__row_multiple": 8}, r"batches\.row_multiple=1, .* says 8"),
    ],
)
def test_what_was_learnt_may_not_change(workdir, change, said):
    with pytest.raises(InputError, match=said):
        workdir.require_same_run(config(**change))


def test_what_may_change_are_keys_that_exist():
    values = config()
    assert values.keys() >= set(FREE_SECTIONS) | FREE_KEYS.keys()
    for section, keys in FREE_KEYS.items():
        assert values[section].keys() >= set(keys)


def test_another_tokenizer_is_refused(workdir, tmp_path):
    other = tokenizer_of(["x y z"], tmp_path / "other.model")
    shutil.copy(tmp_path / "other.model", workdir.tokenizer_file)
    with pytest.raises(InputError, match=f"sha256 {other.hash[:12]} instead of"):
        workdir.read_tokenizer()
