"""Recurrent models as a `jaxformer.models.sequence_model.Model`."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PyTree

from jaxformer.batch import Batch
from jaxformer.models.linen_model import DecoderMaps, LinenModel, Sown
from jaxformer.models.recurrent.cells import GATES
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.recurrent.decoder import RecurrentDecoder
from jaxformer.models.recurrent.recurrent import Encoder, Recurrent


@dataclass(frozen=True)
class RecurrentModel(LinenModel):
    """Encoder and decoder of LSTMs, GRUs or tanh cells, with attention or without."""

    config: RecurrentConfig
    network_type: ClassVar = Recurrent
    decoder_type: ClassVar = RecurrentDecoder

    @property
    def samples(self) -> bool:
        return self.config.is_hard

    def decoder_maps(self, sown: Sown, batch: Batch) -> DecoderMaps:
        """One map, of the decoder's attention; those of local attention are scaled."""
        (rows, target), source = batch.target.shape, batch.source.shape[1]
        cross = jnp.zeros((0, rows, 1, target, source))
        if "shares" in sown:
            (shares,) = sown["shares"]
            cross = (shares / shares.sum(axis=-1, keepdims=True))[None, :, None]
        return jnp.zeros((0, rows, 1, target, target)), cross

    def outputs(
        self, module: nn.Module, method: str, output: PyTree
    ) -> dict[str, Float[Array, "..."]]:
        """Names are as "encoder/layer_0", "decoder/start" and "decoder/output"."""
        if isinstance(module, Encoder):
            return {f"encoder/layer_{n}": x for n, x in enumerate(output)}
        if not isinstance(module, Recurrent) or method != "outputs":
            return {}
        start, found = output
        layers = {f"decoder/layer_{n}": x for n, x in enumerate(found.layers)}
        named = {"decoder/start": start, **layers}
        if found.shares is not None:
            named |= {"decoder/attention": found.shares, "decoder/output": found.hidden}
        return named

    def products(self, source: int, target: int) -> tuple[int, int]:
        config, d = self.config, self.d_model
        gates, kind = GATES[config.cell], config.attention
        # An encoder's layer has D inputs and D states, or twice D / 2 of them.
        states = d // (1 + config.bidirectional)
        of_source = config.encoder_layers * gates * (d + states) * d
        of_target = config.decoder_layers * gates * 2 * d * d + d * d
        of_target += d * self.vocab_size
        of_target += (config.feeding != "none") * gates * d * d
        scores = keys = 0
        if kind != "none":
            keys = (kind in ("additive", "general", "local")) * d * d
            of_target += 2 * d * d + (kind in ("additive", "local")) * d * d
            of_target += (kind == "local") * d
            scores = (2 - config.is_hard) * d  # hard attention sums no states
        start = d * source  # a product chooses the final states
        of_decoder = source * keys + target * (of_target + source * scores + start)
        return source * of_source, of_decoder

    def kept(self, source: int, target: int) -> tuple[int, int]:
        config, gates = self.config, GATES[self.config.cell]
        encoder = config.encoder_layers * (gates + 3) * source
        decoder = (config.decoder_layers * (gates + 3) + 6) * target
        return self.d_model * encoder, self.d_model * decoder + 2 * source * target
