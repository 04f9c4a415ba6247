"""An encoder and a decoder of two architectures as a `sequence_model.Model`."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, PyTree

from jaxformer.batch import Batch
from jaxformer.models.arrays import Ids, RandomKey
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.convolutional.model import ConvolutionalModel
from jaxformer.models.hybrid.config import HybridConfig
from jaxformer.models.linen_model import DecoderMaps, LinenModel, Sown, options_of
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.recurrent.model import RecurrentModel
from jaxformer.models.sequence_model import Decoder, Encoded, Features, Parameters
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.model import TransformerModel

MODELS = {
    TransformerConfig: TransformerModel,
    RecurrentConfig: RecurrentModel,
    ConvolutionalConfig: ConvolutionalModel,
}
# Names of the encoder's parameters in a model of its architecture, and here.
NAMES = {
    "encoder": "encoder",
    "source_embedding": "source_embedding",
    "position_embedding": "source_position_embedding",
}


@dataclass(frozen=True)
class HybridModel(LinenModel):
    """The encoder of one model and the decoder of another.

    Parameters have the names that they have in these models, but for NAMES. A decoder
    takes what `Encoded` has, whatever the encoder.
    """

    config: HybridConfig

    @property
    def source(self) -> LinenModel:
        """The model that lends its encoder."""
        return self._half("encoder")

    @property
    def target(self) -> LinenModel:
        """The model that lends its decoder."""
        return self._half("decoder")

    def _half(self, side: str) -> LinenModel:
        config = self.config.sides[side]
        sizes = self.vocab_size, self.rematerialise, self.source_vocab_size
        return MODELS[type(config)](config, *sizes, self.activation_dtype)

    @property
    def wide_results(self) -> bool:
        return self.source.wide_results and self.target.wide_results

    @property
    def decoder(self) -> Decoder:
        target = self.target
        return target.decoder_type(target.config, target.network, self)

    def init(self, key: RandomKey) -> Parameters:
        first, second = jax.random.split(key)
        found = self.source.init(first)
        own = {name: found[old] for old, name in NAMES.items() if old in found}
        return {**self.target.init(second), **own}

    def _of_source(self, params: Parameters) -> Parameters:
        """Name parameters as in the model that lends its encoder.

        It may also declare a bias of logits, which an encoder has no use for.
        """
        own = {old: params[name] for old, name in NAMES.items() if name in params}
        return {"logits_bias": jnp.zeros(self.vocab_size), **params, **own}

    def _handed_over(self, encoded: Encoded) -> Encoded:
        dtype = self.target.activation_type
        return jax.tree.map(lambda leaf: leaf.astype(dtype), encoded)

    def encode(self, params: Parameters, source: Ids) -> Encoded:
        encoded = self.source.encode(self._of_source(params), source)
        return self._handed_over(encoded)

    def run(
        self,
        params: Parameters,
        batch: Batch,
        key: RandomKey | None = None,
        *,
        is_sown: bool = False,
    ) -> tuple[Features, Sown]:
        keys = (None, None) if key is None else jax.random.split(key)
        first, second = (options_of(each, is_sown=is_sown) for each in keys)
        ids, own = (batch.source, batch.source_segments), self._of_source(params)
        (encoded, tables), read = self.source.apply(own, *ids, method="encode", **first)
        inputs = batch, self._handed_over(encoded), tables
        features, written = self.target.apply(
            params, *inputs, method="decode", **second
        )
        sown = (each.get("intermediates", {}) for each in (read, written))
        return features, {k: v for each in sown for k, v in each.items()}

    def encoder_maps(self, sown: Sown, batch: Batch) -> Float32[Array, "N B H S S"]:
        return self.source.encoder_maps(sown, batch)

    def decoder_maps(self, sown: Sown, batch: Batch) -> DecoderMaps:
        return self.target.decoder_maps(sown, batch)

    def outputs(
        self, module: nn.Module, method: str, output: PyTree
    ) -> Mapping[str, Float[Array, "..."]]:
        each = (
            half.outputs(module, method, output) for half in (self.source, self.target)
        )
        return {name: x for found in each for name, x in found.items()}

    def products(self, source: int, target: int) -> tuple[int, int]:
        return (
            self.source.products(source, target)[0],
            self.target.products(source, target)[1],
        )

    def kept(self, source: int, target: int) -> tuple[int, int]:
        return self.source.kept(source, target)[0], self.target.kept(source, target)[1]
