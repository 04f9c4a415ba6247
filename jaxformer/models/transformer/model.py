"""The Transformer as a `jaxformer.models.sequence_model.Model`."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float32

from jaxformer.batch import Batch
from jaxformer.models.arrays import Flags, RandomKey
from jaxformer.models.kernels.mixed_precision import default_activation_dtype
from jaxformer.models.layers import LayerNorm, Sublayer
from jaxformer.models.linen_model import LinenModel
from jaxformer.models.local_attention import keys_computed
from jaxformer.models.sequence_model import AttentionMaps, Parameters
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.decoder import TransformerDecoder
from jaxformer.models.transformer.transformer import Transformer


@dataclass(frozen=True)
class TransformerModel(LinenModel):
    """The paper's model, and its variants."""

    config: TransformerConfig
    network_type: ClassVar = Transformer
    wide_results: ClassVar = True
    decoder_type: ClassVar = TransformerDecoder

    @property
    def network(self) -> Transformer:
        dtype = self.activation_dtype or default_activation_dtype(self.config.dtype)
        sizes = self.vocab_size, self.rematerialise, self.source_vocab_size
        return Transformer(self.config, *sizes, dtype)

    def attention(self, params: Parameters, batch: Batch) -> AttentionMaps:
        _, found = self.apply(params, batch, method="hidden", mutable="intermediates")

        def maps(stack: str, attention: str) -> Float32[Array, "N B H T S"]:
            names = [f"layer_{n}" for n in range(self.config.layers(stack))]
            is_encoder, config = stack == "encoder", self.config
            is_projected = is_encoder and config.encoder_projected_keys is not None
            if is_projected or attention not in config.sublayers(stack):
                rows, length = (batch.source if is_encoder else batch.target).shape
                return jnp.zeros((0, rows, config.num_heads, length, length))
            layers = (found["intermediates"][stack][name] for name in names)
            return jnp.stack([layer[attention]["weights"][0] for layer in layers])

        kinds = ("encoder", "self"), ("decoder", "self"), ("decoder", "cross")
        return AttentionMaps(
            *(maps(stack, f"{kind}_attention") for stack, kind in kinds)
        )

    def watch(self, params: Parameters, batch: Batch, key: RandomKey) -> Flags:
        """Names are as "decoder/layer_0/cross_attention" and "encoder/norm"."""
        found = {}

        def keep(function, args, kwargs, context):
            output, module = function(*args, **kwargs), context.module
            is_last_norm = isinstance(module, LayerNorm) and len(module.path) == 2
            if is_last_norm or isinstance(module, Sublayer):
                name = "/".join(module.path).removesuffix("_sublayer")
                found[name] = jnp.isfinite(output).all()
            return output

        with nn.intercept_methods(keep):  # no array can leave a rematerialised layer
            replace(self, rematerialise=False).features(params, batch, key)
        return found

    def flops(self, rows: int, source: int, target: int) -> int:
        """Count two operations for each weight and position forward, four backward."""
        config = self.config
        encoder, decoder = config.encoder_layers, config.decoder_layers
        d, head_pair = config.d_model, config.num_heads * (config.d_k + config.d_v)
        attention, feed_forward = 2 * d * head_pair, 2 * d * config.d_ff
        # Cross-attention projects the target twice and the source twice.
        of_source = encoder * (attention + feed_forward) + decoder * attention // 2
        own = 2 * d * d if config.has_ssru else attention
        of_target = decoder * (own + attention // 2 + feed_forward)
        of_target += d * self.vocab_size
        window = config.attention_window
        read = keys_computed(source, window=window, is_causal=False)
        written = keys_computed(target, window=window, is_causal=True)
        if config.encoder_projected_keys is not None:
            read = 2 * config.encoder_projected_keys  # mixed, and multiplied with
        if config.encoder_global_positions is not None:
            first = min(config.encoder_global_positions, source)
            read += first if read == source else 2 * first  # they see, and are seen
            of_source += encoder * attention // 2  # keys and values of their own
        if config.relative_distance is not None:
            read += 2 * config.relative_distance + 1
            written += 2 * config.relative_distance + 1
        written = 0 if config.has_ssru else written
        scores = source * encoder * read + target * decoder * (written + source)
        return 6 * rows * (source * of_source + target * of_target + head_pair * scores)

    def activations(self, rows: int, source: int, target: int) -> int:
        config = self.config
        encoder, decoder = config.encoder_layers, config.decoder_layers
        projected = config.num_heads * (config.d_k + config.d_v)
        width = 4 * config.d_model + 2 * projected + 2 * config.d_ff
        keys, heads = config.encoder_projected_keys or source, config.num_heads
        own = heads * target  # weights
        if config.has_ssru:  # gate, state and output, not queries, keys and values
            own = 3 * config.d_model - projected
        of_source = encoder * (width + heads * keys)
        of_target = decoder * (width + own + heads * source)
        return rows * (source * of_source + target * of_target)
