"""Section 3: the encoder-decoder Transformer on whole targets, as a Linen module.

`decoder.py` computes the same one token at a time; change both files together.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float32

from jaxformer.batch import Batch, positions_in_segments, shift_right
from jaxformer.models.arrays import Ids, Sources, Vectors
from jaxformer.models.attention import MultiHeadAttention
from jaxformer.models.embeddings import Tables, make_tables
from jaxformer.models.global_attention import GlobalAttention
from jaxformer.models.kernels.elementwise import copies
from jaxformer.models.kernels.rematerialise import rematerialised
from jaxformer.models.layers import (
    Dropout,
    FeedForward,
    LayerNorm,
    Sublayer,
    residual_gain,
)
from jaxformer.models.local_attention import SelfMask, self_attention_mask
from jaxformer.models.masks import segment_mask
from jaxformer.models.positions import position_table
from jaxformer.models.projected_attention import ProjectedAttention
from jaxformer.models.relative_attention import RelativeAttention
from jaxformer.models.sequence_model import Encoded, Features, mean_summary
from jaxformer.models.ssru import SSRU, Starts
from jaxformer.models.transformer.config import SINUSOIDS, TransformerConfig
from jaxformer.tokens import BOS, EOS

USES = {"self_attention": 3, "ssru": 2}  # of the input of a sub-layer, if not one


def self_attention(
    config: TransformerConfig, stack: str
) -> Callable[..., MultiHeadAttention]:
    """Choose the kind of self-attention of a stack."""
    if config.positions == "relative":
        return functools.partial(RelativeAttention, distance=config.relative_distance)
    if stack == "encoder" and config.encoder_projected_keys is not None:
        return functools.partial(
            ProjectedAttention,
            count=config.encoder_projected_keys,
            longest=config.max_positions,
        )
    if stack == "encoder" and config.encoder_global_positions is not None:
        return functools.partial(GlobalAttention, first=config.encoder_global_positions)
    return MultiHeadAttention


class Layer(nn.Module):
    """A layer of the encoder or the decoder (Figure 1)."""

    config: TransformerConfig
    stack: str  # "encoder" or "decoder"

    @nn.compact
    def __call__(
        self,
        x: Vectors,
        mask: SelfMask | Starts,
        positions: Ids | None,  # that self-attention rotates by
        *source: Sources | Bool[Array, "B 1 L S"],  # memory, twice, and its mask
    ) -> Vectors:
        config, names = self.config, self.config.sublayers(self.stack)
        dtype = jnp.dtype(config.dtype)
        gain = residual_gain(len(names) * config.layers(self.stack))
        sizes = (
            config.num_heads, config.d_k, config.d_v, dtype, config.attention_bias,
            gain, config.fused_attention,
        )  # fmt: skip
        own = self_attention(config, self.stack)(*sizes, name="self_attention")
        # Without parameters until called.
        ssru = SSRU(dtype, name="ssru")
        cross = MultiHeadAttention(*sizes, name="cross_attention")
        functions = {
            "self_attention": lambda *three: own(*three, mask, positions),
            "ssru": lambda *two: ssru(*two, mask),
            "cross_attention": lambda y: cross(y, *source),
            "feed_forward": FeedForward(
                config.d_model, config.d_ff, config.activation, dtype, gain,
                name="feed_forward",
            ),
        }  # fmt: skip
        for name in names:
            sublayer = Sublayer(
                config.dropout, config.norm_first, config.layer_norm_epsilon,
                name=f"{name}_sublayer",
            )  # fmt: skip
            x = sublayer(x, functions[name], uses=USES.get(name, 1))
        return x


class Stack(nn.Module):
    """The encoder or the decoder: N layers, and pre-norm's last layer norm."""

    config: TransformerConfig
    stack: str
    rematerialise: bool

    @nn.compact
    def __call__(
        self,
        x: Vectors,
        mask: SelfMask | Starts,
        positions: Ids | None,
        memory: Sources | None = None,
        source_mask: Bool[Array, "B 1 L S"] | None = None,
    ) -> Vectors:
        config, apply = self.config, Layer.__call__
        count = config.layers(self.stack)
        if self.rematerialise and self.has_rng("dropout"):  # in training
            apply = rematerialised
        sources = [()] * count
        if memory is not None:
            uses = copies(memory, 2 * count)
            pairs = zip(uses[::2], uses[1::2], strict=True)
            sources = [(*pair, source_mask) for pair in pairs]
        for n in range(count):
            layer = Layer(config, self.stack, name=f"layer_{n}")
            # The gradient of the last layer comes first.
            x = apply(layer, x, mask, positions, *sources[-1 - n])
        if config.norm_first:
            x = LayerNorm(config.layer_norm_epsilon, name="norm")(x)
        return x


class Transformer(nn.Module):
    """Both stacks, with the embeddings and the output matrix of section 3.4."""

    config: TransformerConfig
    vocab_size: int  # of targets
    rematerialise: bool
    source_vocab_size: int | None  # None: vocab_size
    activation_dtype: str  # float32 or the dtype of the config

    def setup(self) -> None:
        config, named = self.config, nn.with_logical_partitioning
        # After the paper's factor sqrt(d_model) an embedding has the scale of a
        # position, and initial logits are of order one.
        init = nn.initializers.normal(config.d_model**-0.5)
        # One matrix for sources, targets and logits, unless `tied_embeddings` differs.
        self.tables = make_tables(self, init)
        if config.logits_bias:
            zeros = named(nn.initializers.zeros, ("vocab",))
            self.logits_bias = self.param("logits_bias", zeros, (self.vocab_size,))
        if config.has_table:
            init = named(nn.initializers.normal(1.0), ("position", "embed"))
            shape = config.max_positions, config.d_model
            self.position_embedding = self.param("position_embedding", init, shape)
        self.dropout = Dropout(config.dropout)
        self.encoder = Stack(config, "encoder", self.rematerialise)
        self.decoder = Stack(config, "decoder", self.rematerialise)

    def _position_table(self, length: int) -> Float32[Array, "{length} D"]:
        config = self.config
        if config.positions in SINUSOIDS:
            return jnp.asarray(position_table(config.positions, length, config.d_model))
        if length > config.max_positions:
            raise ValueError(
                f"a sequence of {length} tokens is longer than "
                f"model.max_positions = {config.max_positions}"
            )
        return self.position_embedding[:length]

    def _rotary_positions(self, segments: Ids) -> Ids | None:
        is_rotary = self.config.positions == "rotary"
        return positions_in_segments(segments) if is_rotary else None

    def _embed(self, rows: Vectors, segments: Ids) -> Vectors:
        """Embedding times sqrt(d_model) (3.4), plus position."""
        config, positions = self.config, None
        if config.adds_positions:
            numbers = positions_in_segments(segments)
            positions = jnp.take(self._position_table(rows.shape[1]), numbers, axis=0)
        x = rows * jnp.float32(config.embedding_scale)
        x = x if positions is None else x + positions
        x = self.dropout(x.astype(self.activation_dtype))
        return nn.with_logical_constraint(x, ("batch", "length", "activation"))

    def encode(self, source: Ids, segments: Ids) -> tuple[Encoded, Tables]:
        """Run the encoder; return also the tables for the decoder."""
        config, dtype = self.config, self.activation_dtype
        rows, tables = self.tables.look_up_source(source, dtype)
        x = self._embed(rows, segments)
        if config.encoder_projected_keys is not None:
            mask = (segments != 0)[:, None, None]
        else:
            mask = self_attention_mask(
                segments, window=config.attention_window, is_causal=False,
                first=config.encoder_global_positions or 0,
            )  # fmt: skip
        states = self.encoder(x, mask, self._rotary_positions(segments))
        return Encoded(states, x, mean_summary(states, segments)), tables

    def decode(self, batch: Batch, encoded: Encoded, tables: Tables) -> Features:
        """Run the decoder on whole targets."""
        segments = batch.target_segments
        inputs = shift_right(batch.target, segments)
        is_first, kind = inputs == BOS, self.config.first_input
        inputs = jnp.where(is_first, EOS, inputs) if kind == "eos" else inputs
        target, table = tables.look_up_target(inputs, self.activation_dtype)
        if kind == "zeros":
            target = jnp.where(is_first[..., None], jnp.zeros_like(target), target)
        x = self._embed(target, segments)
        if self.config.has_ssru:
            past = (positions_in_segments(segments) == 0)[..., None]
        else:
            window = self.config.attention_window
            past = self_attention_mask(segments, window=window, is_causal=True)
        cross_mask = segment_mask(segments, batch.source_segments)
        positions = self._rotary_positions(segments)
        hidden = self.decoder(x, past, positions, encoded.states, cross_mask)
        bias = self.logits_bias if self.config.logits_bias else None
        return Features(hidden.astype(self.config.dtype), table, bias)

    def features(self, batch: Batch) -> Features:
        """Compute the factors of the logits."""
        return self.decode(batch, *self.encode(batch.source, batch.source_segments))
