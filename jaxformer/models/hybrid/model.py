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
from jaxformer.models.linen_model import DecoderMaps, Keys, LinenModel, Sown
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
    def sides(self) -> list[LinenModel]:
        """The model that lends its encoder, and the one that lends its decoder."""
        sizes = self.vocab_size, self.rematerialise, self.source_vocab_size
        return [
            MODELS[type(config)](config, *sizes, self.activation_dtype)
            for config in self.config.sides.values()
        ]

    @property
    def wide_results(self) -> bool:
        return all(side.wide_results for side in self.sides)

    @property
    def samples(self) -> bool:
        return self.sides[1].samples

    @property
    def decoder(self) -> Decoder:
        _, target = self.sides
        return target.decoder_type(target.config, target.network, self)

    def init(self, key: RandomKey) -> Parameters:
        (source, target), (first, second) = self.sides, jax.random.split(key)
        params = source.init(first)
        own = {name: params[old] for old, name in NAMES.items() if old in params}
        return {**target.init(second), **own}

    def _of_source(self, params: Parameters) -> Parameters:
        """Name parameters as in the model that lends its encoder.

        It may also declare a bias of logits, which an encoder has no use for.
        """
        own = {old: params[name] for old, name in NAMES.items() if name in params}
        return {"logits_bias": jnp.zeros(self.vocab_size), **params, **own}

    def _handed_over(self, encoded: Encoded) -> Encoded:
        dtype = self.sides[1].activation_type
        return jax.tree.map(lambda leaf: leaf.astype(dtype), encoded)

    def encode(self, params: Parameters, source: Ids) -> Encoded:
        own = self._of_source(params)
        return self._handed_over(self.sides[0].encode(own, source))

    def run(
        self, params: Parameters, batch: Batch, rngs: Keys | None = None, sown: str = ""
    ) -> tuple[Features, Sown]:
        source, target = self.sides
        own, ids = self._of_source(params), (batch.source, batch.source_segments)
        keys = {name: jax.random.fold_in(key, 1) for name, key in (rngs or {}).items()}
        (encoded, tables), read = source.apply(
            own, *ids, method="encode", rngs=keys, mutable=[sown]
        )
        inputs = batch, self._handed_over(encoded), tables
        features, written = target.apply(
            params, *inputs, method="decode", rngs=rngs, mutable=[sown]
        )
        return features, {**read.get(sown, {}), **written.get(sown, {})}

    def encoder_maps(self, sown: Sown, batch: Batch) -> Float32[Array, "N B H S S"]:
        return self.sides[0].encoder_maps(sown, batch)

    def decoder_maps(self, sown: Sown, batch: Batch) -> DecoderMaps:
        return self.sides[1].decoder_maps(sown, batch)

    def outputs(
        self, module: nn.Module, method: str, output: PyTree
    ) -> Mapping[str, Float[Array, "..."]]:
        source, target = (side.outputs(module, method, output) for side in self.sides)
        return {**source, **target}

    def products(self, source: int, target: int) -> tuple[int, int]:
        first, second = (side.products(source, target) for side in self.sides)
        return first[0], second[1]

    def kept(self, source: int, target: int) -> tuple[int, int]:
        first, second = (side.kept(source, target) for side in self.sides)
        return first[0], second[1]
