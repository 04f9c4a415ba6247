"""Config values: types, bounds and names."""

import dataclasses

import pytest

from jaxformer.config.settings import kind_of
from jaxformer.configs import demo
from jaxformer.runs.config_files import ConfigRequest, parse_config, sections_of
from jaxformer.system.errors import InputError, did_you_mean
from tests.models.tiny import config_of


def values():
    return demo.get_config().to_dict()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("optimizer.warmup_steps", "0", "optimizer.warmup_steps is 0"),
        ("training.ema_decay", "1", "training.ema_decay is 1.0; it must be at least"),
        ("training.average", "6", "training.average is 6, and training.keep=5"),
        ("training.save_every", "7", "must be a multiple of training.save_every=7"),
        ("training.on_divergence", "wait", "use one of stop, rollback"),
        ("optimizer.epsilon", "nan", "optimizer.epsilon is nan; it must be above 0"),
        ("optimizer.epsilon", "1e-45", "1e-45; it must be above 0 in float32"),
        ("optimizer.beta2", "0.99999999", "is 0.99999999; it must be at least 0 and b"),
        ("optimizer.peak_learning_rate", "-1", "must be above 0 and at most 1000"),
        ("optimizer.clip_norm", "1e39", "above 0 and at most 3.4e+38 in float32"),
        ("optimizer.clip_norm", 10**999, "optimizer.clip_norm is inf"),
        ("training.steps", str(2**31), "it must be at least 1 and at most 2147483647"),
        ("training.seed", str(2**32), "must be at least 0 and at most 4294967295"),
        ("data.max_length", "70000", "data.max_length is 70000; it must be at least 2"),
        ("data.source_language", "", "data.source_language is ''; say"),
        ("model.dropout", "1.0", "dropout is 1.0; it must be at least 0 and below 1"),
        ("model.d_model", "3", "model.d_model is 3; it must be even"),
        ("model.attention_window", "0", "model.attention_window is 0"),
        ("model.architecture", "a\n", "architecture is 'a\\n'; use 'transformer'"),
        ("model.architecture", [], "model.architecture is []; use 'transformer'"),
        ("model.d_modle", 3, "unknown key model.d_modle; did you"),
        ("model.kernel_width", "3", "is a key of the architecture convolutional, and"),
        ("model.cell", "gru", "key of the architecture recurrent, and model.architect"),
        ("model.architecture", "recurrent", "model.architecture is recurrent; use a c"),
        ("modle.d_model", 3, "unknown section modle; did you mean model?"),
        ("mesh.fsdp", ..., "the config lacks the key mesh.fsdp"),
        ("mesh", ..., "the config lacks the section mesh"),
        ("mesh", ["data"], "section mesh"),
        ("training.steps", True, "training.steps is True; it must"),
        ("data.train", None, "data.train is None; it must be text"),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(name, value, said):
    """A text is what a user writes after a key; other values are those of a file."""
    given, (section, _, key) = values(), name.partition(".")
    overrides = ((name, value),) * isinstance(value, str)
    if value is ...:
        del (given[section] if key else given)[key or section]
    elif not overrides:
        parent = given.setdefault(section, {}) if key else given
        parent[key or section] = value
    with pytest.raises(InputError) as refused:
        parse_config(ConfigRequest(given, overrides).resolve(None))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_key_that_may_be_none_may_be_missing():
    given = values()
    del given["training"]["patience"]
    assert parse_config(given) == parse_config(values())


def test_every_key_has_a_meaning_a_least_number_and_no_default():
    for kind in sections_of(values()).values():
        for field in dataclasses.fields(kind):
            assert field.metadata["meaning"].endswith("."), field.name
            assert field.default is dataclasses.MISSING, field.name
            if kind_of(field)[0] in (int, float):
                least = field.metadata["least"], field.metadata["above"]
                assert least != (None, None), field.name


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        ("transformer", "first_input"), ("recurrent", "bidirectional"),
        ("convolutional", "separable"),
    ],
)  # fmt: skip
def test_a_record_without_a_later_key_has_the_value_of_its_version(architecture, key):
    """It is the value of published models, which the tiny ones have."""
    given = dataclasses.asdict(config := config_of(architecture))
    del given[key]
    assert type(config).of(config.recorded(given)) == config
    with pytest.raises(InputError, match=f"the config lacks the key model.{key}"):
        config.of(given)


@pytest.mark.parametrize(
    ("name", "known", "nearest"),
    [
        ("warmup_step", "warmup_steps", True),
        ("optimizer.warmup-steps", "optimizer.warmup_steps", True),
        ("dmodel", "d_model", True),
        ("data.target_vocab_size", "data.vocab_size", False),
        ("training.initial_checkpoint", "training.initial_embeddings", False),
        ("beta3", "beta2", False),
        ("table3/A_h2", "table3/A_h1", False),
    ],
)
def test_a_hint_is_for_a_misspelling_and_never_for_another_meaning(
    name, known, nearest
):
    expected = f"; did you mean {known}?" if nearest else "; or not"
    assert did_you_mean(name, ["other", known], "or not") == expected
