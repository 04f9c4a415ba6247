"""Recurrent models as a `jaxformer.models.sequence_model.Model`."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp

from jaxformer.batch import Batch
from jaxformer.models.arrays import Flags, RandomKey
from jaxformer.models.linen_model import LinenModel
from jaxformer.models.recurrent.cells import GATES
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.recurrent.decoder import RecurrentDecoder
from jaxformer.models.recurrent.recurrent import Recurrent
from jaxformer.models.sequence_model import AttentionMaps, Parameters, cross_maps


@dataclass(frozen=True)
class RecurrentModel(LinenModel):
    """Encoder and decoder of LSTMs, GRUs or tanh cells, with attention or without."""

    config: RecurrentConfig
    network_type: ClassVar = Recurrent
    decoder_type: ClassVar = RecurrentDecoder

    def attention(self, params: Parameters, batch: Batch) -> AttentionMaps | None:
        """One map, of the decoder's attention; those of local attention are scaled."""
        if self.config.attention == "none":
            return None
        shares = self.apply(params, batch, method="run")[-1].shares
        shares /= shares.sum(axis=-1, keepdims=True)
        return cross_maps(shares[None, :, None])

    def watch(self, params: Parameters, batch: Batch, key: RandomKey) -> Flags:
        """Names are as "encoder/layer_0", "decoder/start" and "decoder/output"."""
        rngs = {"dropout": key}
        model = replace(self, rematerialise=False)
        named, *_ = model.apply(params, batch, rngs=rngs, method="run")
        return {name: jnp.isfinite(x).all() for name, x in named.items()}

    def flops(self, rows: int, source: int, target: int) -> int:
        """Count two operations for each weight and position forward, four backward."""
        config, d = self.config, self.d_model
        gates, kind = GATES[config.cell], config.attention
        # An encoder's layer has D inputs and D states, or twice D / 2 of them.
        states = d // (1 + config.bidirectional)
        of_source = config.encoder_layers * gates * (d + states) * d
        of_target = config.decoder_layers * gates * 2 * d * d + d * d
        of_target += d * self.vocab_size
        of_target += (config.feeding != "none") * gates * d * d
        scores = 0
        if kind != "none":
            of_source += (kind in ("additive", "general", "local")) * d * d
            of_target += 2 * d * d + (kind in ("additive", "local")) * d * d
            of_target += (kind == "local") * d
            scores = 2 * d
        start = d * source  # a product chooses the final states
        positions = source * of_source + target * (of_target + source * scores + start)
        return 6 * rows * positions

    def activations(self, rows: int, source: int, target: int) -> int:
        config, gates = self.config, GATES[self.config.cell]
        encoder = config.encoder_layers * (gates + 3) * source
        decoder = (config.decoder_layers * (gates + 3) + 6) * target
        return rows * (self.d_model * (encoder + decoder) + 2 * source * target)
