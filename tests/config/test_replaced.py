"""Replaced keys: refused in a config, translated in a record of an earlier version."""

import pytest

from jaxformer.config.replaced import REPLACED, translated
from jaxformer.configs import convs2s, lstm, multi30k_rows, wmt_base
from jaxformer.runs.config_files import ConfigRequest, parse_config, sections_of
from jaxformer.system.errors import InputError

# The replaced keys of configs/wmt_base.py at commit f203f08.
OLD = {
    "data": {
        **{f"{s}_{side}": "" for s in ("train", "dev", "test") for side in (
            "source", "target")},
        "data_dir": "", "download": True, "builtin_pairs": 0, "builtin_eval_pairs": 0,
    },
    "model": {"relative_distance": None, "attention_bias": False, "logits_bias": False},
    "optimizer": {"learning_rate_scale": 1.0},
    "training": {"max_bad_steps": 10, "profile_steps": None},
}  # fmt: skip
PAIRS = {
    f"{split}_{side}": f"{split}.{side}"
    for split in ("train", "dev")
    for side in ("source", "target")
}


def recorded(config, **changes):
    """A config of that commit, as a record has it."""
    values = {section: dict(keys) for section, keys in config.to_dict().items()}
    del values["model"]["biases"]
    for section in OLD:
        values[section] |= OLD[section] | changes.get(section, {})
    return values


def base(**changes):
    config = wmt_base.get_config()
    for section, values in changes.items():
        config[section].update(values)
    return config


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (recorded(base()), base()),
        (
            recorded(base(data={"corpus": "files"}), data=PAIRS),
            base(
                data={
                    "corpus": "files",
                    "train": "train.source,train.target",
                    "dev": "dev.source,dev.target",
                }
            ),
        ),
        (recorded(base(), data={"data_dir": "tfds"}), base(data={"directory": "tfds"})),
        (
            recorded(
                base(data={"corpus": "builtin:grammar"}),
                data={"builtin_pairs": 900, "builtin_eval_pairs": 5},
            ),
            base(
                data={
                    "corpus": "builtin:grammar", "train": "900", "dev": "5", "test": "5"
                }
            ),
        ),
        (
            recorded(
                base(
                    data={"corpora": ({"name": "a"}, {"name": "b", "builtin_pairs": 9})}
                    | {"corpus": "builtin:grammar"}
                ),
                data={"builtin_pairs": 900, "builtin_eval_pairs": 5},
            ),
            base(
                data={"corpora": ({"name": "a"}, {"name": "b", "train": "9"})}
                | {"corpus": "builtin:grammar", "train": "900", "dev": "5", "test": "5"}
            ),
        ),
        (
            recorded(base(model={"positions": "relative"}), model={
                "relative_distance": 16, "attention_bias": True}),
            base(model={"positions": "relative", "max_positions": 16,
                        "biases": "attention"}),
        ),
        (
            recorded(base(), model={"attention_bias": True, "logits_bias": True}),
            base(model={"biases": "all"}),
        ),
        (
            recorded(base(), optimizer={"learning_rate_scale": 0.5}),
            base(optimizer={"peak_learning_rate": 0.5 * (512 * 4000) ** -0.5}),
        ),
        (
            recorded(base(optimizer={"peak_learning_rate": 1e-3}), optimizer={
                "learning_rate_scale": 0.5}),
            base(optimizer={"peak_learning_rate": 5e-4}),
        ),
        (
            recorded(base(), training={"profile_steps": 3, "max_bad_steps": 2}),
            base(training={"trackers": ("profile",)}),
        ),
    ],
)  # fmt: skip
def test_a_record_of_an_earlier_version_is_translated(old, new):
    assert parse_config(translated(old)) == parse_config(new.to_dict())


@pytest.mark.parametrize(
    "config",
    [multi30k_rows.get_config("base"), lstm.get_config(), convs2s.get_config()],
)
def test_a_record_of_this_version_stays_as_it_is(config):
    assert translated(config.to_dict()) == config.to_dict()


def test_every_replaced_key_is_gone_and_says_what_replaces_it():
    kinds = [sections_of(each.get_config().to_dict()) for each in (wmt_base, lstm)]
    known = {
        f"{section}.{key}"
        for each in kinds
        for section, kind in each.items()
        for key in kind.__dataclass_fields__
    }
    assert not known & REPLACED.keys()
    for name, replaced in REPLACED.items():
        section, _, key = name.partition(".")
        values = base().to_dict()
        values[section][key] = 1
        with pytest.raises(InputError) as in_a_file:
            parse_config(values)
        with pytest.raises(InputError) as in_a_flag:
            ConfigRequest(base().to_dict(), ((name, "1"),)).resolve(None)
        said = f"the config key {name} is gone: {replaced.remedy}"
        assert str(in_a_file.value) == str(in_a_flag.value) == said


def test_a_replaced_key_of_a_corpus_is_refused():
    config = base(data={"corpora": ({"name": "a", "train_source": "a.en"},)})
    with pytest.raises(InputError, match=r"train_source is gone: data\.train=SOU"):
        parse_config(config.to_dict())
