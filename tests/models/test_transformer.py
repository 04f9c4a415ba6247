"""Masks, padding and packing; the names of the Transformer's parameters."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.config.settings import Section
from jaxformer.configs import demo
from jaxformer.models.architectures import make_model
from jaxformer.models.sequence_model import Model
from jaxformer.runs.config_files import parse_config
from jaxformer.system.errors import InputError
from jaxformer.tokens import EOS, PAD
from tests.models.tiny import HYBRIDS, config_of, model_of, params_of, shapes_of

V = 23
PROJECTED = {"encoder_projected_keys": 4}
GLOBAL = {"attention_window": 4, "encoder_global_positions": 2}
CONFIG = config_of(layers=2, d_v=4, dropout=0.1, max_positions=32)
SHORT = replace(CONFIG, encoder_layers=1, decoder_layers=1)
recurrent = partial(config_of, "recurrent")
VARIANTS = {
    "paper": CONFIG,
    "published": replace(CONFIG, biases="all", activation="swish"),
    "learned positions": replace(SHORT, positions="learned"),
    "pre-norm": replace(SHORT, norm_first=True),
    "rotary": replace(SHORT, positions="rotary"),
    "relative": replace(SHORT, positions="relative", max_positions=2),
    "projected keys": replace(SHORT, encoder_projected_keys=3),
    "global positions": replace(
        SHORT, attention_window=2, encoder_global_positions=1, positions="rotary"
    ),
    "ssru": replace(CONFIG, decoder_self_attention="ssru"),
    "convolutional": config_of("convolutional"),
    "dilated": config_of("convolutional", layers=2, max_dilation=2),
    "deep recurrent": recurrent(layers=2, attention="general"),
    "fixed context": recurrent(cell="gru", attention="none", feeding="context"),
    "local": recurrent(attention="local", attention_window=2, encoder_layers=3),
    "attentional": recurrent(layers=2, attention="dot", feeding="attentional"),
    "context first": recurrent(
        layers=2, cell="gru", attention="additive", feeding="context"
    ),
    "hard": recurrent(
        layers=2, attention="general", attention_reading="hard", feeding="attentional"
    ),
    "hard after all layers": recurrent(attention="additive", attention_reading="hard"),
    "separable": config_of("convolutional", layers=2, max_dilation=2, separable=True),
    "forwards": recurrent(
        layers=2, cell="tanh", bidirectional=False, attention="general"
    ),
    **{name: config_of(**changes) for name, changes in HYBRIDS.items()},
}


SOURCE = jnp.array([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]], jnp.int32)
TARGET = jnp.array([[11, 12, 13, EOS], [14, 15, 16, EOS]], jnp.int32)
BATCH = Batch(
    SOURCE, TARGET, *((side != PAD).astype(jnp.int32) for side in (SOURCE, TARGET))
)
PACKED = Batch(
    source=jnp.array([[5, 6, 7, 8, EOS, 9, 10, EOS, PAD]]),
    target=jnp.array([[11, 12, 13, EOS, 14, 15, 16, EOS, PAD]]),
    source_segments=jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]]),
    target_segments=jnp.array([[1, 1, 1, 1, 2, 2, 2, 2, 0]]),
)


def make(config: Section) -> Model:
    return make_model(config, vocab_size=V, rematerialise=False)


logits_of = jax.jit(
    lambda model, params, batch: model.logits(params, batch), static_argnums=0
)


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request) -> tuple[Model, dict]:
    model = make(VARIANTS[request.param])
    return model, params_of(model)


def test_tokens_change_the_logits_that_depend_on_them_and_no_others(variant):
    model, params = variant
    before = logits_of(model, params, BATCH)
    changed = TARGET.at[:, 2].set(20)
    after = logits_of(model, params, BATCH._replace(target=changed))
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3] != after[:, 3]).all()
    changed = SOURCE.at[0, 4].set(20)
    after = logits_of(model, params, BATCH._replace(source=changed))
    assert (jnp.abs(before[0] - after[0]).max(axis=-1) > 1e-6).all()
    np.testing.assert_array_equal(before[1], after[1])


def test_the_first_memory_tells_sources_and_their_tokens_apart():
    """Otherwise cross-attention learns nothing for a long time."""
    model = model_of(500, encoder_layers=6, d_model=64, d_ff=128, d_k=32, d_v=32)

    @jax.jit
    def encode():
        params = nn.unbox(model.init(jax.random.key(0)))
        source = jax.random.randint(jax.random.key(1), (16, 12), EOS + 1, 500)
        ones = jnp.ones_like(source)
        encoded, _ = model.apply(params, source, ones, method="encode")
        return params, encoded.states

    params, memory = encode()
    # Times sqrt(d_model) an embedding has the scale of a position.
    assert params["embedding"].std() == pytest.approx(64**-0.5, rel=0.02)
    shared = jnp.square(memory.mean(axis=(0, 1))).mean()  # of what layer norm makes 1
    assert shared < 0.35  # 0.91 when every matrix is Xavier's
    variance = memory.var(axis=(0, 1)).mean()
    assert memory.var(axis=1).mean() > 0.8 * variance  # within sentences


def test_packed_pairs_get_the_logits_they_get_alone(variant):
    model, params = variant
    if not model.config.packs:
        return
    alone = logits_of(model, params, BATCH)
    logits = logits_of(model, params, PACKED)[0]
    np.testing.assert_allclose(logits[:4], alone[0], atol=1e-5)
    np.testing.assert_allclose(logits[4:8], alone[1], atol=1e-5)


@pytest.mark.parametrize("name", ["paper", "published"])
def test_parameter_names_are_the_checkpoint_format(name):
    """One matrix embeds both languages and makes the logits."""
    is_published = name == "published"

    def linear(*shape, has_bias=is_published, outputs=slice(1, None)):
        return {"kernel": shape} | ({"bias": shape[outputs]} if has_bias else {})

    norm = {"norm": {"scale": (16,), "bias": (16,)}}
    own = {
        "query": linear(16, 2, 8),
        "key": linear(16, 2, 8),
        "value": linear(16, 2, 4),
    }
    own["output"] = linear(2, 4, 16, outputs=slice(2, None))
    hidden, output = linear(16, 32, has_bias=True), linear(32, 16, has_bias=True)
    encoder = {
        "self_attention": own, "self_attention_sublayer": norm,
        "feed_forward": {"hidden": hidden, "output": output},
        "feed_forward_sublayer": norm,
    }  # fmt: skip
    decoder = {"cross_attention": own, "cross_attention_sublayer": norm} | encoder
    shapes = shapes_of(make(VARIANTS[name]))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
    assert jax.tree.map(jnp.shape, shapes) == {
        "embedding": (23, 16),
        "encoder": {"layer_0": encoder, "layer_1": encoder},
        "decoder": {"layer_0": decoder, "layer_1": decoder},
        **({"logits_bias": (23,)} if is_published else {}),
    }


@pytest.mark.parametrize("changes", [PROJECTED, GLOBAL])
def test_what_cannot_be_packed_is_refused_in_one_line(changes):
    values = demo.get_config().to_dict()
    values["model"] |= changes
    with pytest.raises(InputError, match=r"apart; set batches\.layout=buckets$"):
        parse_config(values)
    values["batches"]["layout"] = "buckets"
    assert not parse_config(values).model.packs


def test_projected_keys_and_learned_positions_have_a_longest_sequence():
    for changes in (PROJECTED, {"positions": "learned"}):
        assert model_of(**changes, max_positions=9).longest == 9
    assert model_of(**GLOBAL).longest is None
    model = model_of(positions="learned", max_positions=4)
    with pytest.raises(ValueError, match=r"5 tokens .* model.max_positions = 4"):
        logits_of(model, params_of(model), BATCH)
