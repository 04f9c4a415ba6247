"""The decoder of `recurrent.py` one position at a time."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from jaxformer.models.arrays import Ids, Integer, Table
from jaxformer.models.linen_model import LinenModel
from jaxformer.models.recurrent.attention import Source, source_of
from jaxformer.models.recurrent.cells import along
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.recurrent.recurrent import Recurrent, restart, start_of
from jaxformer.models.recurrent.step import DecoderWeights, Past, advance, first_past
from jaxformer.models.sequence_model import Newest, Parameters, pad, step_logits
from jaxformer.tokens import PAD


class RecurrentWeights(NamedTuple):
    """Parameters, and the matrices of decoding."""

    params: Parameters
    embedding: Table  # in the config's dtype, of targets
    output: Table | None  # None: it is the embedding
    decoder: DecoderWeights


class RecurrentMemory(NamedTuple):
    """B encoded sources, constant while they are decoded."""

    source: Source
    is_real: Bool[Array, "B S"]
    start: Float32[Array, "B 1 D"]  # the decoder's first state


@dataclass(frozen=True)
class RecurrentDecoder:
    """A recurrent `Decoder`; its cache is the newest state of each hypothesis."""

    config: RecurrentConfig
    network: Recurrent
    model: LinenModel  # which encodes

    def weights(self, params: Parameters) -> RecurrentWeights:
        variables = {"params": params}
        decoder = self.network.apply(variables, method=lambda net: net.decoder())
        embedding, output = jax.tree.map(
            lambda table: table.astype(self.config.dtype),
            (params["embedding"], params.get("output_embedding")),
        )
        return RecurrentWeights(params, embedding, output, decoder)

    def encode(self, weights: RecurrentWeights, source: Ids) -> RecurrentMemory:
        encoded, is_real = self.model.encode(weights.params, source), source != PAD
        start = start_of(weights.decoder, encoded.summary, is_real[:, None])
        memory = source_of(weights.decoder.attention, encoded.states)
        return RecurrentMemory(memory, is_real, start)

    def resize_memory(self, memory: RecurrentMemory, *, length: int) -> RecurrentMemory:
        after = length - memory.is_real.shape[1]
        source, is_real = jax.tree.map(
            lambda leaf: pad(leaf, 0, after, axis=1), memory[:2]
        )
        return RecurrentMemory(source, is_real, memory.start)

    def empty_cache(self, *, batch: int, width: int, length: int) -> Past:
        layers = range(self.config.decoder_layers)
        zeros = jnp.zeros((batch, width, self.config.d_model))
        states = (zeros,) * (2 if self.config.cell == "lstm" else 1)
        fed = None if self.config.feeding == "none" else zeros
        return Past([states for _ in layers], fed)

    def resize_cache(
        self, cache: Past, clock: Integer, *, width: int, length: int
    ) -> Past:
        return cache

    def step(
        self,
        weights: RecurrentWeights,
        memory: RecurrentMemory,
        cache: Past,
        newest: Newest,
    ) -> tuple[Float32[Array, "V B W"], Past]:
        tokens, ages, clock, ancestors = newest
        decoder, config = weights.decoder, self.config
        parents = ancestors[:, :, (clock - 1) % ancestors.shape[2]]  # [B, W]
        past = jax.tree.map(
            lambda leaf: jnp.take_along_axis(leaf, parents[..., None], axis=1), cache
        )
        first = first_past(config, decoder, memory.start)
        past = restart(past, (ages == 0)[:, None], first)
        cell, rows = decoder.layers[0], jnp.take(weights.embedding, tokens, axis=0)
        gates = rows @ cell.input + along(cell.bias, rows)
        mask = memory.is_real[:, None]
        past, found = advance(config, decoder, memory.source, mask, gates, past)
        hidden = found.hidden.reshape(-1, config.d_model).T  # [D, B W]
        table = weights.embedding if weights.output is None else weights.output
        logits = step_logits(table, hidden)
        return logits.reshape(-1, *tokens.shape), past
