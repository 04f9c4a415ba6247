"""Tiny models of every architecture for the tests of every room."""

from functools import cache

import jax
import numpy as np
from flax import linen as nn

from jaxformer.config.settings import Section
from jaxformer.models.architectures import config_type, make_model
from jaxformer.models.hybrid.config import SHARED
from jaxformer.models.sequence_model import Model, Parameters

VOCABULARY = 24
VALUES = {
    "transformer": {
        "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32,
        "num_heads": 2, "d_k": 8, "d_v": 8, "dropout": 0.0, "positions": "sinusoidal",
        "first_input": "bos", "decoder_self_attention": "attention",
        "max_positions": 64, "norm_first": False,
        "dtype": "float32", "attention_window": None, "encoder_projected_keys": None,
        "encoder_global_positions": None, "fused_attention": False,
        "biases": "none", "activation": "relu",
        "layer_norm_epsilon": 1e-6,
        "tied_embeddings": "all",
    },
    "convolutional": {
        "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "kernel_width": 3,
        "max_dilation": 1, "separable": False, "dropout": 0.0, "max_positions": 64,
        "dtype": "float32", "tied_embeddings": "all",
    },
    "recurrent": {
        "cell": "lstm", "bidirectional": True, "encoder_layers": 1,
        "decoder_layers": 1, "d_model": 16,
        "attention": "dot", "attention_window": None, "attention_reading": "soft",
        "feeding": "none",
        "dropout": 0.0, "dtype": "float32", "tied_embeddings": "all",
    },
}  # fmt: skip


def side_of(side: str, architecture: str, **changes) -> dict:
    """The keys of a hybrid's encoder or decoder."""
    other = {"encoder": "decoder", "decoder": "encoder"}[side]
    left_out = {*SHARED, *config_type(architecture).of_side[other]}
    values = {k: v for k, v in VALUES[architecture].items() if k not in left_out}
    return {"architecture": architecture} | values | changes


def sides_of(encoder: str, decoder: str, source: dict, target: dict) -> dict:
    """The keys by which a hybrid differs from that of VALUES."""
    return {
        "architecture": "hybrid",
        "encoder": side_of("encoder", encoder, **source),
        "decoder": side_of("decoder", decoder, **target),
    }


VALUES["hybrid"] = {
    **sides_of("transformer", "recurrent", {}, {}),
    **{key: VALUES["recurrent"][key] for key in SHARED},
}
# A hybrid of each two kinds, in one of their variants.
HYBRIDS = {
    f"{source} to {target}": sides_of(source, target, *changes)
    for source, target, *changes in (
        (
            "transformer", "recurrent", {"positions": "learned", "biases": "all"},
            {"attention": "additive", "feeding": "context", "cell": "gru"},
        ),
        (
            "transformer", "convolutional", {"attention_window": 2},
            {"decoder_layers": 2, "max_dilation": 2},
        ),
        (
            "recurrent", "transformer", {"cell": "gru"},
            {"decoder_self_attention": "ssru", "biases": "all"},
        ),
        (
            "recurrent", "convolutional", {"bidirectional": False},
            {"separable": True},
        ),
        (
            "convolutional", "transformer", {"separable": True},
            {"decoder_layers": 2, "positions": "rotary"},
        ),
        (
            "convolutional", "recurrent", {"encoder_layers": 2},
            {"attention": "none", "feeding": "context"},
        ),
    )
}  # fmt: skip


def config_of(architecture: str = "transformer", **changes) -> Section:
    """A config of tiny sizes; `layers` is the number of layers in each stack."""
    if "layers" in changes:
        changes["encoder_layers"] = changes["decoder_layers"] = changes.pop("layers")
    values = {"architecture": architecture} | VALUES[architecture] | changes
    return config_type(architecture)(**values)


def model_of(
    vocab_size: int = VOCABULARY,
    *,
    rematerialise: bool = False,
    source_vocab_size: int | None = None,
    activation_dtype: str | None = None,
    **changes,
) -> Model:
    """A model of `config_of(**changes)`."""
    return make_model(
        config_of(**changes), vocab_size=vocab_size, rematerialise=rematerialise,
        source_vocab_size=source_vocab_size, activation_dtype=activation_dtype,
    )  # fmt: skip


def shapes_of(model: Model) -> Parameters:
    """The parameters' shapes."""
    return nn.unbox(jax.eval_shape(model.init, jax.random.key(0)))


@cache
def params_of(model, seed: int = 1) -> Parameters:
    """Parameters none of which is zero, one or otherwise easy to miss; numpy arrays."""
    draw = np.random.default_rng(seed)

    def leaf(shape):
        mean, deviation = (0.5, 0.3) if len(shape.shape) == 1 else (0.0, 0.25)
        return draw.normal(mean, deviation, shape.shape).astype(np.float32)

    return jax.tree.map(leaf, shapes_of(model))
