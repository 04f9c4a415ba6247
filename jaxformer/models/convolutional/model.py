"""ConvS2S as a `jaxformer.models.sequence_model.Model`."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.models.arrays import Flags, RandomKey
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.convolutional.decoder import ConvolutionalDecoder
from jaxformer.models.convolutional.layers import NormalisedWeight
from jaxformer.models.convolutional.network import ConvS2S
from jaxformer.models.linen_model import LinenModel
from jaxformer.models.sequence_model import AttentionMaps, Parameters, cross_maps


@dataclass(frozen=True)
class ConvolutionalModel(LinenModel):
    """Gehring et al. (2017), also with dilated and separable convolutions."""

    config: ConvolutionalConfig
    network_type: ClassVar = ConvS2S
    decoder_type: ClassVar = ConvolutionalDecoder

    def attention(self, params: Parameters, batch: Batch) -> AttentionMaps:
        """Attention of the decoder layers to the source, each with one head."""
        _, found = self.apply(params, batch, method="hidden", mutable="intermediates")
        layers = found["intermediates"]["decoder"]
        names = [f"layer_{n}" for n in range(self.config.decoder_layers)]
        cross = jnp.stack([layers[name]["attention"]["weights"][0] for name in names])
        return cross_maps(cross)

    def watch(self, params: Parameters, batch: Batch, key: RandomKey) -> Flags:
        """Names are as "decoder/layer_0/attention/query" and "encoder/input"."""
        found = {}

        def keep(function, args, kwargs, context):
            output = function(*args, **kwargs)
            if isinstance(context.module, NormalisedWeight):
                found["/".join(context.module.path)] = jnp.isfinite(output).all()
            return output

        with nn.intercept_methods(keep):  # no array can leave a rematerialised layer
            replace(self, rematerialise=False).features(params, batch, key)
        return found

    def flops(self, rows: int, source: int, target: int) -> int:
        """Count two operations for each weight and position forward, four backward."""
        config, square = self.config, self.d_model**2
        convolution = 2 * config.kernel_width * square
        if config.separable:
            convolution = config.kernel_width * self.d_model + 2 * square
        of_source = convolution * config.encoder_layers + 2 * square
        of_target = (convolution + 2 * square) * config.decoder_layers + 2 * square
        scores = 2 * config.decoder_layers * target * source * self.d_model
        logits = target * self.d_model * self.vocab_size
        weights = source * of_source + target * of_target + logits
        return 6 * rows * (weights + scores)

    def activations(self, rows: int, source: int, target: int) -> int:
        config, scores = self.config, target * source
        of_source = (config.kernel_width + 4) * config.encoder_layers
        of_target = (config.kernel_width + 7) * config.decoder_layers
        numbers = self.d_model * (source * of_source + target * of_target)
        return rows * (numbers + config.decoder_layers * scores)
