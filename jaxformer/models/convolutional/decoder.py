"""The decoder of `network.py` one position at a time.

Features are the first axis: x is [D, R] for R = B x W hypotheses, and weights are
[out, in] (see `jaxformer.models.transformer.decoder`). The cache of a layer is a ring
of the newest inputs of its convolution. It is not re-ordered: `ancestors` says which
hypothesis wrote the inputs of each one's past.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Float32

from jaxformer.models.arrays import Columns, Ids, Integer, Sources, Table
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.convolutional.layers import HALF, normalise_weight, weighted_sum
from jaxformer.models.convolutional.network import ConvS2S, keys_and_values
from jaxformer.models.linen_model import LinenModel
from jaxformer.models.masks import MASKED
from jaxformer.models.sequence_model import (
    Newest,
    Parameters,
    pad,
    resize_ring,
    step_logits,
)
from jaxformer.tokens import PAD


class Affine(NamedTuple):
    """A linear map with features first, in the config's dtype."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]

    def __call__(self, x: Float[Array, "in R"]) -> Float[Array, "out R"]:
        return self.weight @ x + self.bias[:, None]


class Depthwise(NamedTuple):
    """A convolution of each channel by itself, in the config's dtype."""

    weight: Float[Array, "k D"]

    def __call__(self, x: Float[Array, "inputs R"]) -> Columns:
        inputs = x.reshape(*self.weight.shape, -1)
        return weighted_sum(list(inputs), self.weight[..., None])


class ConvolutionalWeights(NamedTuple):
    """Parameters, and the matrices of decoding."""

    params: Parameters
    embedding: Table  # in the config's dtype, of targets
    output: Table | None  # None: it is the embedding
    maps: Mapping  # of the decoder, by the names of its parameters


class ConvolutionalMemory(NamedTuple):
    """Keys and values of B sources, which all layers share."""

    key: Sources
    value: Sources
    is_real: Bool[Array, "B S"]


Ring = Float[Array, "B _ W D"]  # of P slots
Cache = list[Ring]  # of each layer


@dataclass(frozen=True)
class ConvolutionalDecoder:
    """The `jaxformer.models.sequence_model.Decoder` of a convolutional model."""

    config: ConvolutionalConfig
    network: ConvS2S
    model: LinenModel  # which encodes

    def weights(self, params: Parameters) -> ConvolutionalWeights:
        dtype = self.config.dtype

        def arrange(node: Mapping) -> Mapping | Affine | Depthwise:
            if "kernel" not in node:
                return {name: arrange(child) for name, child in node.items()}
            weight = normalise_weight(node["kernel"], node["scale"], dtype)
            if "bias" not in node:
                return Depthwise(weight)
            return Affine(weight.T, node["bias"].astype(dtype))

        maps = {k: v for k, v in params["decoder"].items() if k != "position_embedding"}
        embedding, output = jax.tree.map(
            lambda table: table.astype(dtype),
            (params["embedding"], params.get("output_embedding")),
        )
        return ConvolutionalWeights(params, embedding, output, arrange(maps))

    def encode(self, weights: ConvolutionalWeights, source: Ids) -> ConvolutionalMemory:
        encoded, is_real = self.model.encode(weights.params, source), source != PAD
        both = keys_and_values(self.config, encoded, is_real.astype(jnp.int32))
        return ConvolutionalMemory(*both, is_real)

    def resize_memory(
        self, memory: ConvolutionalMemory, *, length: int
    ) -> ConvolutionalMemory:
        return jax.tree.map(
            lambda leaf: pad(leaf, 0, length - leaf.shape[1], axis=1), memory
        )

    def empty_cache(self, *, batch: int, width: int, length: int) -> Cache:
        d, dtype = self.config.d_model, self.config.dtype
        return [
            jnp.zeros((batch, slots, width, d), dtype) for slots in self._slots(length)
        ]

    def resize_cache(
        self, cache: Cache, clock: Integer, *, width: int, length: int
    ) -> Cache:
        def resize(ring: Ring, slots: int) -> Float[Array, "B {slots} W D"]:
            ring = resize_ring(ring, clock, axis=1, length=slots)
            return jnp.roll(ring, length % slots, axis=1)

        return list(map(resize, cache, self._slots(length)))

    def step(
        self,
        weights: ConvolutionalWeights,
        memory: ConvolutionalMemory,
        cache: Cache,
        newest: Newest,
    ) -> tuple[Float32[Array, "V B W"], Cache]:
        batch, width = newest.tokens.shape
        positions = weights.params["decoder"]["position_embedding"][newest.ages]
        embedded = weights.embedding[newest.tokens] + positions[:, None]  # [B, W, D]
        embedded = embedded.astype(self.config.dtype).reshape(batch * width, -1).T
        x, rings = weights.maps["input"](embedded), []
        for number, ring in enumerate(cache):
            layer = weights.maps[f"layer_{number}"]
            offsets = self.config.offsets("decoder", number)
            window, ring = _windows(x, ring, offsets, newest)
            if self.config.separable:
                y = layer["pointwise"](layer["depthwise"](window))
            else:
                y = layer["convolution"](window)
            y = nn.glu(y, axis=0)
            maps = layer["attention"]
            query = (maps["query"](y) + embedded) * HALF
            y = (y + maps["output"](_attend(query, memory))) * HALF
            x = (x + y) * HALF
            rings.append(ring)
        x = weights.maps["output"](x)
        table = weights.embedding if weights.output is None else weights.output
        logits = step_logits(table, x, weights.params["logits_bias"])
        return logits.reshape(-1, batch, width), rings

    def _slots(self, length: int) -> list[int]:
        """P of each layer: the steps, of L = `length`, that its convolution sees."""
        layers = range(self.config.decoder_layers)
        oldest = [self.config.offsets("decoder", number)[0] for number in layers]
        return [min(1 - offset, length) for offset in oldest]


def _windows(
    x: Columns, ring: Ring, offsets: list[int], newest: Newest
) -> tuple[Float[Array, "{len(offsets)}*D R"], Ring]:
    """Add x to a ring; return the inputs at the offsets, and the ring.

    Inputs before a hypothesis began are zeros.
    """
    _, ages, clock, ancestors = newest
    batch, slots, width, size = ring.shape
    rows = x.T.reshape(batch, width, size)
    ring = jax.lax.dynamic_update_index_in_dim(ring, rows, clock % slots, axis=1)

    def at(offset: int) -> Float[Array, "B W D"]:
        if offset == 0:
            return rows
        if -offset >= slots:  # before every hypothesis of a ring so short
            return jnp.zeros_like(rows)
        slot = (clock + offset) % slots
        past = jax.lax.dynamic_index_in_dim(ring, slot, axis=1, keepdims=False)
        own = ancestors[:, :, (clock + offset) % ancestors.shape[2]]  # [B, W]
        past = jnp.take_along_axis(past, own[..., None], axis=1)
        is_past = (ages >= -offset)[:, None, None]
        return jnp.where(is_past, past, jnp.zeros_like(past))

    window = jnp.concatenate([at(offset) for offset in offsets], axis=-1)
    return window.reshape(batch * width, -1).T, ring


def _attend(query: Columns, memory: ConvolutionalMemory) -> Columns:
    """Return the contexts of queries."""
    rows = query.T.reshape(len(memory.key), -1, len(query))  # [B, W, D]
    scores = jnp.einsum(
        "bwd,bsd->bws", rows, memory.key, preferred_element_type=jnp.float32
    )
    scores = jnp.where(memory.is_real[:, None], scores, MASKED)
    shares = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("bws,bsd->bwd", shares, memory.value).reshape(-1, len(query)).T
