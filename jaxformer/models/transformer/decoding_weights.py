"""A decoder's parameters in the layout of decoding, made once per checkpoint."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.models.sequence_model import Parameters
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.transformer import SUBLAYERS


class Linear(NamedTuple):
    """A linear map with features first."""

    weight: jax.Array  # [out, in]
    bias: jax.Array | None  # float32 [out]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x [in, R] to [out, R]."""
        y = self.weight @ x
        return y if self.bias is None else y + self.bias.astype(y.dtype)[:, None]


class LayerWeights(NamedTuple):
    """The parameters of a decoder layer, matrices in the config's dtype."""

    self_input: Linear  # [H (2K + U), D]: queries, keys, values
    self_output: Linear  # [D, H U]
    cross_query: Linear  # [H K, D]
    cross_memory: Linear  # [H (K + U), D]: keys, values
    cross_output: Linear  # [D, H U]
    hidden: Linear  # [F, D]
    output: Linear  # [D, F]
    norms: dict[str, dict[str, jax.Array]]  # scale and bias by sub-layer, float32 [D]


class Weights(NamedTuple):
    """Parameters, and the matrices of decoding."""

    params: Parameters
    embedding: jax.Array  # [V, D] in the config's dtype
    layers: tuple[LayerWeights, ...]


def decoding_weights(config: TransformerConfig, params: Parameters) -> Weights:
    """Arrange the parameters of a `Transformer` for decoding."""
    dtype, d_model = jnp.dtype(config.dtype), config.d_model
    heads, names = config.num_heads * config.d_v, SUBLAYERS["decoder"]

    def linear(inputs: int, *projections: Mapping[str, Any]) -> Linear:
        """Stack kernels, as matrices [inputs, out], to one [sum of out, inputs]."""
        kernels = [p["kernel"].reshape(inputs, -1).T for p in projections]
        biases = [p["bias"].reshape(-1) for p in projections if "bias" in p]
        weight = jnp.concatenate(kernels).astype(dtype)
        return Linear(weight, jnp.concatenate(biases) if biases else None)

    def arranged(layer: Mapping[str, Any]) -> LayerWeights:
        own, cross, feed = (layer[name] for name in names)
        return LayerWeights(
            self_input=linear(d_model, own["query"], own["key"], own["value"]),
            self_output=linear(heads, own["output"]),
            cross_query=linear(d_model, cross["query"]),
            cross_memory=linear(d_model, cross["key"], cross["value"]),
            cross_output=linear(heads, cross["output"]),
            hidden=linear(d_model, feed["hidden"]),
            output=linear(config.d_ff, feed["output"]),
            norms={name: layer[f"{name}_sublayer"]["norm"] for name in names},
        )

    layers = (params["decoder"][f"layer_{n}"] for n in range(config.decoder_layers))
    embedding = params["embedding"].astype(dtype)
    return Weights(params, embedding, tuple(map(arranged, layers)))
