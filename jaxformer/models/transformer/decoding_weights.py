"""Parameters of a decoder, rearranged for decoding: features first.

Made once per checkpoint, which keeps the names and shapes of `transformer.py`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.transformer import SUBLAYERS


class Linear(NamedTuple):
    """y = weight @ x + bias, features first."""

    weight: jax.Array  # [out, in]
    bias: jax.Array | None  # f32 [out]


class Norm(NamedTuple):
    """Scale and bias of a layer norm, f32 [D] both."""

    scale: jax.Array
    bias: jax.Array


class LayerWeights(NamedTuple):
    """One decoder layer."""

    self_input: Linear  # [H (2K + U), D]: queries, keys, values
    self_output: Linear  # [D, H U]
    cross_query: Linear  # [H K, D]
    cross_memory: Linear  # [H (K + U), D]: keys, values
    cross_output: Linear  # [D, H U]
    hidden: Linear  # [F, D]
    output: Linear  # [D, F]
    norms: dict[str, Norm]  # by sub-layer


class DecodingWeights(NamedTuple):
    """The decoder's parameters as a step wants them."""

    embedding: jax.Array  # [V, D]
    logits_bias: jax.Array | None  # f32 [V]
    positions: jax.Array | None  # f32 [N, D] if learned
    layers: tuple[LayerWeights, ...]
    norm: Norm | None  # that closes a pre-norm stack


def decoding_weights(
    config: TransformerConfig, params: Mapping[str, Any]
) -> DecodingWeights:
    """Rearrange the parameters of a `Transformer`, matrices in the config's dtype."""
    dtype = jnp.dtype(config.dtype)
    decoder = params["decoder"]
    return DecodingWeights(
        params["embedding"].astype(dtype),
        params.get("logits_bias"),
        params.get("position_embedding"),
        tuple(
            _layer_weights(decoder[f"layer_{n}"], dtype)
            for n in range(config.decoder_layers)
        ),
        Norm(**decoder["norm"]) if config.norm_first else None,
    )


def _layer_weights(layer: Mapping[str, Any], dtype: jnp.dtype) -> LayerWeights:
    own, cross = layer["self_attention"], layer["cross_attention"]
    feed = layer["feed_forward"]
    return LayerWeights(
        self_input=_from_heads(dtype, own["query"], own["key"], own["value"]),
        self_output=_to_model(own["output"], dtype),
        cross_query=_from_heads(dtype, cross["query"]),
        cross_memory=_from_heads(dtype, cross["key"], cross["value"]),
        cross_output=_to_model(cross["output"], dtype),
        hidden=_to_model(feed["hidden"], dtype),
        output=_to_model(feed["output"], dtype),
        norms={
            name: Norm(**layer[f"{name}_sublayer"]["norm"])
            for name in SUBLAYERS["decoder"]
        },
    )


def _from_heads(dtype: jnp.dtype, *projections: Mapping[str, Any]) -> Linear:
    """Kernels [D, H, K] below each other as one [out, D]."""
    kernels = [p["kernel"] for p in projections]
    weight = jnp.concatenate([k.reshape(k.shape[0], -1).T for k in kernels])
    if "bias" not in projections[0]:
        return Linear(weight.astype(dtype), None)
    bias = jnp.concatenate([p["bias"].reshape(-1) for p in projections])
    return Linear(weight.astype(dtype), bias)


def _to_model(dense: Mapping[str, Any], dtype: jnp.dtype) -> Linear:
    """A kernel [..., out] as [out, in]."""
    kernel = dense["kernel"]
    weight = kernel.reshape(-1, kernel.shape[-1]).T
    return Linear(weight.astype(dtype), dense.get("bias"))
