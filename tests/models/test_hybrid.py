"""Hybrids: the halves of two models, and what each gives to the other."""

from dataclasses import asdict, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.hybrid.model import NAMES
from jaxformer.models.sequence_model import parameter_count
from jaxformer.system.errors import InputError
from tests.models import tiny
from tests.models.test_transformer import BATCH, PACKED
from tests.models.tiny import HYBRIDS, config_of, model_of, params_of, shapes_of

PURE = {
    "transformer": {"positions": "learned", "biases": "all"},
    "recurrent": {"attention": "general", "encoder_layers": 2},
    "convolutional": {"decoder_layers": 2},
}


def hybrid_of(source, target):
    """The hybrid of one model's encoder and another one's decoder."""
    sides = {}
    for side, config in (("encoder", source.config), ("decoder", target.config)):
        keys = tiny.side_of(side, config.architecture)
        sides[side] = {
            key: value for key, value in asdict(config).items() if key in keys
        }
    return model_of(architecture="hybrid", **sides)


@partial(jax.jit, static_argnums=0)
def results(model, params, batch):
    """Logits, their gradient, maps, and what a step decoder begins with."""

    def total(params):
        logits = model.logits(params, batch)
        return jnp.square(logits * batch.target_segments[..., None]).sum(), logits

    grads, logits = jax.grad(total, has_aux=True)(params)
    weights = model.decoder.weights(params)
    memory = model.decoder.encode(weights, batch.source)
    return logits, grads, model.attention(params, batch), memory


@pytest.mark.parametrize("architecture", PURE)
def test_a_hybrid_of_one_architecture_is_this_architecture(architecture):
    """To the last bit, with its parameters; a table of positions is there twice."""
    plain = model_of(architecture=architecture, **PURE[architecture])
    model, params = hybrid_of(plain, plain), params_of(plain)
    own = {NAMES[name]: params[name] for name in NAMES if name in params}
    logits, grads, *others = results(model, {**params, **own}, PACKED)
    expected, theirs, *same = results(plain, params, PACKED)
    jax.tree.map(np.testing.assert_array_equal, (logits, others), (expected, same))
    assert type(model.decoder) is type(plain.decoder)
    if "source_position_embedding" in grads:
        grads["position_embedding"] += grads.pop("source_position_embedding")
    equal = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(equal, grads, theirs)
    for sizes in ((1, 1, 1), (2, 7, 5)):
        assert model.flops(*sizes) == plain.flops(*sizes)
        assert model.activations(*sizes) == plain.activations(*sizes)
    assert model.longest == plain.longest
    assert model.config.halves == plain.config.halves


@pytest.mark.slow
@pytest.mark.parametrize("name", HYBRIDS)
def test_its_parameters_are_those_of_two_halves(name):
    model = model_of(**HYBRIDS[name])
    source, target = map(shapes_of, model.sides)
    own = {new: source.get(old) for old, new in NAMES.items()}
    shapes = target | {name: leaf for name, leaf in own.items() if leaf is not None}
    assert shapes_of(model) == shapes
    encoders = (parameter_count(each.get("encoder")) for each in (source, target))
    more, less = encoders
    table = parameter_count(own["source_position_embedding"])
    assert parameter_count(shapes) == parameter_count(target) + more - less + table


def test_padding_may_exceed_the_encoder_s_positions():
    sides = "transformer", "recurrent", {"positions": "learned", "max_positions": 5}
    model = model_of(**tiny.sides_of(*sides, {}))
    assert model.longest == 5
    decoder = model.decoder

    @jax.jit
    def memories(params):
        weights, padded = (
            decoder.weights(params),
            np.pad(BATCH.source, [(0, 0), (0, 4)]),
        )
        memory = decoder.encode(weights, BATCH.source)
        resized = decoder.resize_memory(memory, length=9)
        return decoder.encode(weights, padded), resized

    close = partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(close, *memories(params_of(model)))


def test_a_recurrent_decoder_begins_with_the_mean_of_other_states():
    model = model_of(**HYBRIDS["transformer to recurrent"])
    params, is_real = params_of(model), np.array(BATCH.source_segments)[..., None]

    @jax.jit
    def found(params):
        memory = model.decoder.encode(model.decoder.weights(params), BATCH.source)
        return model.encode(params, BATCH.source).states, memory.start[:, 0]

    states, start = map(np.array, found(params))
    mean = (states * is_real).sum(axis=1) / is_real.sum(axis=1)
    layer = params["decoder"]
    expected = np.tanh(mean @ layer["start"]["kernel"] + layer["start_bias"])
    np.testing.assert_allclose(start, expected, atol=1e-5)


def test_kinds_of_attention_have_the_same_number_of_heads():
    """Those of the encoder are two; the map of the decoder is there twice."""
    name = "transformer to recurrent"
    model = model_of(**HYBRIDS[name])
    maps = jax.jit(model.attention)(params_of(model), BATCH)
    assert maps.encoder.shape == (1, 2, 2, 5, 5)
    assert maps.decoder.shape == (0, 2, 2, 4, 4)
    assert maps.cross.shape == (1, 2, 2, 4, 5)
    np.testing.assert_array_equal(maps.cross[:, :, 0], maps.cross[:, :, 1])
    assert (maps.encoder[:, :, 0] != maps.encoder[:, :, 1]).any()


def test_bfloat16_is_handed_over_in_the_decoder_s_type():
    """On CPUs a Transformer has activations in float32."""
    types = {"transformer to recurrent": "bfloat16", "recurrent to transformer": "f"}
    for name, kind in types.items():
        changes = {**HYBRIDS[name], "dtype": "bfloat16", "activation_dtype": "float32"}
        model = model_of(**changes)
        found = jax.eval_shape(model.encode, shapes_of(model), BATCH.source)
        assert {leaf.dtype for leaf in found} == {jnp.dtype(kind)}


ENCODER = tiny.VALUES["hybrid"]["encoder"]


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (
            {"num_head": 2},
            r"key model\.encoder\.num_head; did you .*encoder\.num_heads",
        ),
        ({"decoder_layers": 2}, "unknown key model.encoder.decoder_layers"),
        ({"d_model": 16}, "unknown key model.encoder.d_model"),
        ({"d_ff": 0}, "^model.encoder.d_ff is 0; it must be at least 1"),
        ({"architecture": "hybrid"}, "encoder.architecture is 'hybrid'; use 'tran"),
        ({"architecture": []}, r"encoder.architecture is \[\]; use 'tran"),
        ({"positions": "rotary", "d_k": 3}, "model.encoder.positions=rotary"),
    ],
)
def test_a_wrong_side_is_refused_in_one_line(encoder, said):
    with pytest.raises(InputError, match=said) as refused:
        config_of("hybrid", encoder=ENCODER | encoder)
    assert "\n" not in str(refused.value)


def test_a_side_is_a_section_without_the_other_side():
    config = config_of("hybrid")
    without = {k: v for k, v in ENCODER.items() if k != "attention_window"}
    assert config_of("hybrid", encoder=without) == config  # a key that may be None
    older = config_of(**HYBRIDS["recurrent to transformer"])
    values = asdict(older)
    for side, key in (("encoder", "bidirectional"), ("decoder", "first_input")):
        del values[side][key]  # which earlier versions lack
    assert older.of(older.recorded(values)) == older
    free = replace(config, encoder=ENCODER | {"fused_attention": True}, dropout=0.5)
    assert free.fixed() == config.fixed()
    assert hash(free) != hash(config)
    packs = config_of("hybrid", encoder=ENCODER | {"encoder_projected_keys": 3})
    assert (config.packs, packs.packs) == (True, False)
    assert packs.longest == ENCODER["max_positions"]
    decoder = tiny.side_of("decoder", "transformer", num_heads=3)
    both = config_of("hybrid", encoder=ENCODER | {"num_heads": 6}, decoder=decoder)
    found = config_of(**HYBRIDS["convolutional to recurrent"])
    assert [each.num_heads for each in (config, both, found)] == [2, 3, None]
