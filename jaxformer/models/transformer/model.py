"""The Transformer as a `jaxformer.models.sequence_model.Model`."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float32, PyTree

from jaxformer.batch import Batch
from jaxformer.models.arrays import Ids, Vectors
from jaxformer.models.kernels.mixed_precision import default_activation_dtype
from jaxformer.models.layers import LayerNorm, Sublayer
from jaxformer.models.linen_model import DecoderMaps, LinenModel, Sown
from jaxformer.models.local_attention import keys_computed
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
    def activation_type(self) -> str:
        return self.activation_dtype or default_activation_dtype(self.config.dtype)

    @property
    def network(self) -> Transformer:
        sizes = self.vocab_size, self.rematerialise, self.source_vocab_size
        return Transformer(self.config, *sizes, self.activation_type)

    def encoder_maps(self, sown: Sown, batch: Batch) -> Float32[Array, "N B H S S"]:
        is_projected = self.config.encoder_projected_keys is not None
        kind = None if is_projected else "self_attention"
        return self._maps(sown, "encoder", kind, batch.source)

    def decoder_maps(self, sown: Sown, batch: Batch) -> DecoderMaps:
        kinds = "self_attention", "cross_attention"
        own, cross = (self._maps(sown, "decoder", k, batch.target) for k in kinds)
        return own, cross

    def _maps(
        self, sown: Sown, stack: str, kind: str | None, ids: Ids
    ) -> Float32[Array, "N B H T S"]:
        config, (rows, length) = self.config, ids.shape
        if kind not in config.sublayers(stack):
            return jnp.zeros((0, rows, config.num_heads, length, length))
        layers = (sown[stack][f"layer_{n}"] for n in range(config.layers(stack)))
        return jnp.stack([layer[kind]["weights"][0] for layer in layers])

    def outputs(
        self, module: nn.Module, method: str, output: PyTree
    ) -> dict[str, Vectors]:
        """Names are as "decoder/layer_0/cross_attention" and "encoder/norm"."""
        is_last_norm = isinstance(module, LayerNorm) and len(module.path) == 2
        if is_last_norm or isinstance(module, Sublayer):
            return {"/".join(module.path).removesuffix("_sublayer"): output}
        return {}

    def products(self, source: int, target: int) -> tuple[int, int]:
        config = self.config
        encoder, decoder = config.encoder_layers, config.decoder_layers
        d, head_pair = config.d_model, config.num_heads * (config.d_k + config.d_v)
        attention, feed_forward = 2 * d * head_pair, 2 * d * config.d_ff
        # Cross-attention projects the target twice and the source twice.
        of_source = encoder * (attention + feed_forward)
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
        memory = source * decoder * attention // 2
        scores = target * decoder * (written + source)
        return (
            source * (of_source + head_pair * encoder * read),
            memory + target * of_target + head_pair * scores,
        )

    def kept(self, source: int, target: int) -> tuple[int, int]:
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
        return source * of_source, target * of_target
