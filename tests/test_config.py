"""Config values: types, bounds, names and what may change on resume."""

import dataclasses

import pytest

from jaxformer.config_files import override, parse_config, sections_of
from jaxformer.configs import demo
from jaxformer.errors import InputError


def values():
    return demo.get_config().to_dict()


def parse(changes):
    return parse_config(override(values(), tuple(changes.items())))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("training.steps", "0", "training.steps is 0; it must be at least 1"),
        ("training.save_every", "0", "training.save_every is 0; it must be at least 1"),
        ("training.max_bad_steps", "0", "training.max_bad_steps is 0"),
        ("optimizer.warmup_steps", "0", "optimizer.warmup_steps is 0"),
        ("model.num_heads", "0", "model.num_heads is 0"),
        ("decoding.beam_size", "0", "decoding.beam_size is 0"),
        ("training.ema_decay", "1", "training.ema_decay is 1.0; it must be at least"),
        ("training.average", "6", "training.average is 6, and training.keep=5"),
        ("training.save_every", "7", "must be a multiple of training.save_every=7"),
        ("training.on_divergence", "wait", "use one of stop, rollback"),
        ("batches.layout", "sorted", "batches.layout is 'sorted'; use one of packed"),
        ("batches.executor", "ptyhon", "'ptyhon'; use one of tf.data, python"),
        ("optimizer.epsilon", "nan", "optimizer.epsilon is nan; it must be above 0"),
        ("decoding.alpha", "inf", "decoding.alpha is inf"),
        ("data.max_ratio", "0.5", "data.max_ratio is 0.5; it must be at least 1"),
        ("data.source_language", "", "data.source_language is empty"),
        ("model.dropout", "1.0", "dropout is 1.0; it must be at least 0 and below 1"),
        ("model.d_model", "3", "model.d_model is 3; it must be even"),
        ("model.encoder_layers", "0", "encoder_layers is 0; it must be at least 1"),
        ("model.attention_window", "0", "model.attention_window is 0"),
        ("model.dtype", "float16", "use one of float32, bfloat16"),
        ("model.architecture", "rnn", "model.architecture is 'rnn'; use 'transformer'"),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_is_refused(name, value, said):
    with pytest.raises(InputError) as refused:
        parse({name: value})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["model"].update(d_modle=3), "unknown key model.d_modle; did you"),
        (lambda v: v.update(modle={}), "unknown section modle; did you mean model?"),
        (lambda v: v["mesh"].pop("fsdp"), "the config lacks the key mesh.fsdp"),
        (lambda v: v.pop("mesh"), "the config lacks the section mesh"),
        (lambda v: v["training"].update(steps=True), "training.steps is True; it must"),
        (lambda v: v["data"].update(train=None), "data.train is None; it must be text"),
    ],
)  # fmt: skip
def test_an_incomplete_config_is_refused(change, said):
    given = values()
    change(given)
    with pytest.raises(InputError) as refused:
        parse_config(given)
    assert said in str(refused.value)


def test_every_key_has_a_meaning_and_no_default():
    for kind in sections_of(values()).values():
        for field in dataclasses.fields(kind):
            assert field.metadata["meaning"].endswith("."), field.name
            assert field.default is dataclasses.MISSING, field.name


def test_a_free_key_may_change_on_resume():
    recorded = parse({}).as_dict()
    free = {"training.steps": "9000", "mesh.fsdp": "2", "decoding.alpha": "1",
            "data.directory": "x", "batches.executor": "python"}  # fmt: skip
    assert list(parse(free).changes(recorded)) == []
    fixed = {"training.seed": "1", "model.dropout": "0.5", "data.train": "x"}
    assert {name for name, *_ in parse(fixed).changes(recorded)} == fixed.keys()


def test_a_whole_number_is_a_number():
    rate = parse({"optimizer.learning_rate_scale": "2"}).optimizer.learning_rate_scale
    assert type(rate) is float
