"""ConvS2S as a `jaxformer.models.sequence_model.Model`."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import PyTree

from jaxformer.batch import Batch
from jaxformer.models.arrays import Floats
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.convolutional.decoder import ConvolutionalDecoder
from jaxformer.models.convolutional.layers import NormalisedWeight
from jaxformer.models.convolutional.network import ConvS2S
from jaxformer.models.linen_model import DecoderMaps, LinenModel, Sown


@dataclass(frozen=True)
class ConvolutionalModel(LinenModel):
    """Gehring et al. (2017), also with dilated and separable convolutions."""

    config: ConvolutionalConfig
    network_type: ClassVar = ConvS2S
    decoder_type: ClassVar = ConvolutionalDecoder

    def decoder_maps(self, sown: Sown, batch: Batch) -> DecoderMaps:
        """Attention of the decoder layers to the source, each with one head."""
        rows, length = batch.target.shape
        names = (f"layer_{n}" for n in range(self.config.decoder_layers))
        layers = (sown["decoder"][name] for name in names)
        cross = jnp.stack([layer["attention"]["weights"][0] for layer in layers])
        return jnp.zeros((0, rows, 1, length, length)), cross

    def outputs(
        self, module: nn.Module, method: str, output: PyTree
    ) -> dict[str, Floats]:
        """Names are as "decoder/layer_0/attention/query" and "encoder/input"."""
        is_map = isinstance(module, NormalisedWeight)
        return {"/".join(module.path): output} if is_map else {}

    def products(self, source: int, target: int) -> tuple[int, int]:
        config, square = self.config, self.d_model**2
        convolution = 2 * config.kernel_width * square
        if config.separable:
            convolution = config.kernel_width * self.d_model + 2 * square
        of_source = convolution * config.encoder_layers + 2 * square
        of_target = (convolution + 2 * square) * config.decoder_layers + 2 * square
        scores = 2 * config.decoder_layers * target * source * self.d_model
        logits = target * self.d_model * self.vocab_size
        return source * of_source, target * of_target + logits + scores

    def kept(self, source: int, target: int) -> tuple[int, int]:
        config, scores = self.config, target * source
        of_source = (config.kernel_width + 4) * config.encoder_layers
        of_target = (config.kernel_width + 7) * config.decoder_layers
        decoder = self.d_model * target * of_target + config.decoder_layers * scores
        return self.d_model * source * of_source, decoder
