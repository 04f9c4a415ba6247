"""Recurrent models as a `jaxformer.models.sequence_model.Model`."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxformer.batch import Batch
from jaxformer.models.recurrent.cells import GATES
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.recurrent.decoder import RecurrentDecoder
from jaxformer.models.recurrent.recurrent import Recurrent
from jaxformer.models.sequence_model import AttentionMaps, Features, Parameters


@dataclass(frozen=True)
class RecurrentModel:
    """The systems that the paper set out to beat, before convolutions."""

    config: RecurrentConfig
    vocab_size: int
    rematerialise: bool
    longest: ClassVar[None] = None

    @property
    def d_model(self) -> int:
        return self.config.d_model

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def network(self) -> Recurrent:
        return Recurrent(self.config, self.vocab_size, self.rematerialise)

    @property
    def decoder(self) -> RecurrentDecoder:
        return RecurrentDecoder(self.config, self.network)

    def _apply(self, params: Parameters, *inputs: Any, **options: Any) -> Any:
        return self.network.apply({"params": params}, *inputs, **options)

    def init(self, key: jax.Array) -> Parameters:
        row = jnp.ones((1, 2), jnp.int32)  # has no effect on parameters
        return self.network.init(key, Batch(row, row, row, row))["params"]

    def features(self, params: Parameters, batch: Batch, key: jax.Array) -> Features:
        rngs = {"dropout": key}
        return Features(
            *self._apply(params, batch, rngs=rngs, method="features"), bias=None
        )

    def logits(self, params: Parameters, batch: Batch) -> jax.Array:
        return self._apply(params, batch)

    def attention(self, params: Parameters, batch: Batch) -> AttentionMaps | None:
        """One map, of the decoder's attention; those of local attention are scaled."""
        if self.config.attention == "none":
            return None
        shares = self._apply(params, batch, method="run")[-1].shares
        shares /= shares.sum(axis=-1, keepdims=True)
        rows, target, source = shares.shape
        none = (jnp.zeros((0, rows, 1, length, length)) for length in (source, target))
        return AttentionMaps(*none, shares[None, :, None])

    def watch(
        self, params: Parameters, batch: Batch, key: jax.Array
    ) -> dict[str, jax.Array]:
        """Names are as "encoder/layer_0", "decoder/start" and "decoder/output"."""
        rngs = {"dropout": key}
        model = replace(self, rematerialise=False)
        named, *_ = model._apply(params, batch, rngs=rngs, method="run")
        return {name: jnp.isfinite(x).all() for name, x in named.items()}

    def flops(self, rows: int, source: int, target: int) -> int:
        """Count two operations for each weight and position forward, four backward."""
        config, d = self.config, self.d_model
        gates, kind = GATES[config.cell], config.attention
        # An encoder's layer has two directions of D inputs and D / 2 states.
        of_source = config.encoder_layers * gates * (d + d // 2) * d
        of_target = config.decoder_layers * gates * 2 * d * d + d * d
        of_target += d * self.vocab_size
        of_target += (config.feeding != "none") * gates * d * d
        scores = 0
        if kind != "none":
            of_source += (kind in ("additive", "general", "local")) * d * d
            of_target += 2 * d * d + (kind in ("additive", "local")) * d * d
            of_target += (kind == "local") * d
            scores = 2 * d
        start = 2 * (d // 2) * source  # a product chooses the final states
        positions = source * of_source + target * (of_target + source * scores + start)
        return 6 * rows * positions

    def activations(self, rows: int, source: int, target: int) -> int:
        config, gates = self.config, GATES[self.config.cell]
        encoder = config.encoder_layers * (gates + 3) * source
        decoder = (config.decoder_layers * (gates + 3) + 6) * target
        return rows * (self.d_model * (encoder + decoder) + 2 * source * target)
