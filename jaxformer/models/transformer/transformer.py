"""Section 3: the encoder-decoder Transformer, whole.

`Transformer.__call__` is what training differentiates; `encode` is its first half.
Decoding runs the second half one position at a time, from the same parameters in
another layout: `jaxformer.models.transformer.decode`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.batch import Batch, positions_in_segments, shift_right
from jaxformer.models.attention import Mask, MultiHeadAttention
from jaxformer.models.layers import (
    Dropout,
    FeedForward,
    LayerNorm,
    Sublayer,
    embedding_scale,
    residual_gain,
    sinusoidal_positions,
)
from jaxformer.models.local_attention import self_attention_mask
from jaxformer.models.masks import segment_mask
from jaxformer.models.shards import by_shard, copy_for_shards, look_up
from jaxformer.models.transformer.config import TransformerConfig


def _attention(config: TransformerConfig, sublayers: int) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.d_k,
        config.d_v,
        jnp.dtype(config.dtype),
        config.attention_bias,
        residual_gain(sublayers),
        config.fused_attention,
    )


def _feed_forward(config: TransformerConfig, sublayers: int) -> FeedForward:
    return FeedForward(
        config.d_model,
        config.d_ff,
        config.activation,
        jnp.dtype(config.dtype),
        residual_gain(sublayers),
    )


def _sublayer(config: TransformerConfig) -> Sublayer:
    return Sublayer(config.dropout, config.norm_first, config.layer_norm_epsilon)


def _final_norm(config: TransformerConfig) -> LayerNorm | None:
    return LayerNorm(config.layer_norm_epsilon) if config.norm_first else None


def _call(
    layer: nn.Module, *inputs: jax.Array | Mask, train: bool, rematerialise: bool
) -> jax.Array:
    """Apply a layer to its inputs.

    To `rematerialise`, the backward pass is left these inputs alone and computes what
    is inside the layer again: the same numbers in less memory, for a third more work.
    """

    def call(layer: nn.Module, *inputs: jax.Array | Mask) -> jax.Array:
        return layer(*inputs, train=train)

    def forward(layer: nn.Module, *inputs: jax.Array | Mask) -> tuple:
        return nn.vjp(nn.remat(call), layer, *inputs)

    def backward(pullback: Callable, gradient: jax.Array) -> tuple:
        # XLA compiles for CPUs as if `nn.remat` were not there: it moves the second
        # computation up to the first. What waits for the gradient it cannot move.
        late = 0.0 * gradient[:1, :1, :1]
        pullback = jax.tree.map(
            lambda kept: kept + late if kept.shape == gradient.shape else kept, pullback
        )
        return pullback(gradient)

    if rematerialise and train:
        return nn.custom_vjp(call, forward, backward)(layer, *inputs)
    return call(layer, *inputs)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (Figure 1, left)."""

    config: TransformerConfig

    def setup(self) -> None:
        """Declare the two functions and the sub-layer around each."""
        sublayers = 2 * self.config.num_layers
        self.self_attention = _attention(self.config, sublayers)
        self.self_attention_sublayer = _sublayer(self.config)
        self.feed_forward = _feed_forward(self.config, sublayers)
        self.feed_forward_sublayer = _sublayer(self.config)

    def __call__(self, x: jax.Array, mask: Mask, *, train: bool) -> jax.Array:
        """Map x [B, S, D] to [B, S, D]; mask of [B, 1, S, S]."""
        x = self.self_attention_sublayer(
            x, lambda y: self.self_attention(y, y, mask), train=train
        )
        return self.feed_forward_sublayer(x, self.feed_forward, train=train)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward (Figure 1, right)."""

    config: TransformerConfig

    def setup(self) -> None:
        """Declare the three functions and the sub-layer around each."""
        sublayers = 3 * self.config.num_layers
        self.self_attention = _attention(self.config, sublayers)
        self.self_attention_sublayer = _sublayer(self.config)
        self.cross_attention = _attention(self.config, sublayers)
        self.cross_attention_sublayer = _sublayer(self.config)
        self.feed_forward = _feed_forward(self.config, sublayers)
        self.feed_forward_sublayer = _sublayer(self.config)

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        self_mask: Mask,
        cross_mask: jax.Array,
        *,
        train: bool,
    ) -> jax.Array:
        """Map x [B, T, D] to [B, T, D] given memory [B, S, D].

        Masks are of [B, 1, T, T] and bool [B, 1, T, S].
        """
        x = self.self_attention_sublayer(
            x, lambda y: self.self_attention(y, y, self_mask), train=train
        )
        x = self.cross_attention_sublayer(
            x, lambda y: self.cross_attention(y, memory, cross_mask), train=train
        )
        return self.feed_forward_sublayer(x, self.feed_forward, train=train)


class Encoder(nn.Module):
    """A stack of N encoder layers; pre-norm closes with one more layer norm."""

    config: TransformerConfig
    rematerialise: bool

    def setup(self) -> None:
        """Declare the layers as layer_0 ... layer_{N-1}."""
        self.layer = [EncoderLayer(self.config) for _ in range(self.config.num_layers)]
        self.norm = _final_norm(self.config)

    def __call__(self, x: jax.Array, mask: Mask, *, train: bool) -> jax.Array:
        """Map embedded source [B, S, D] to memory [B, S, D]."""
        for layer in self.layer:
            x = _call(layer, x, mask, train=train, rematerialise=self.rematerialise)
        return x if self.norm is None else self.norm(x)


class Decoder(nn.Module):
    """A stack of N decoder layers, for a whole target or one position at a time."""

    config: TransformerConfig
    rematerialise: bool

    def setup(self) -> None:
        """Declare the layers as layer_0 ... layer_{N-1}."""
        self.layer = [DecoderLayer(self.config) for _ in range(self.config.num_layers)]
        self.norm = _final_norm(self.config)

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        self_mask: Mask,
        cross_mask: jax.Array,
        *,
        train: bool,
    ) -> jax.Array:
        """Map embedded target [B, T, D] and memory [B, S, D] to [B, T, D]."""
        for layer in self.layer:
            x = _call(
                layer, x, memory, self_mask, cross_mask, train=train,
                rematerialise=self.rematerialise,
            )  # fmt: skip
        return x if self.norm is None else self.norm(x)


class Transformer(nn.Module):
    """The whole model. One matrix embeds both languages and makes the logits (3.4)."""

    config: TransformerConfig
    rematerialise: bool = False  # layers, in training (see `_call`)

    def setup(self) -> None:
        """Declare the shared embedding, the positions and the two stacks."""
        config = self.config
        # Standard deviation d_model^-0.5: after the paper's factor sqrt(d_model) an
        # embedding has the scale of a position, and first logits are of order one.
        init = nn.initializers.normal(config.d_model**-0.5)
        self.embedding = self.param(
            "embedding",
            nn.with_logical_partitioning(init, ("vocab", "embed")),
            (config.vocab_size, config.d_model),
        )
        self.embedding_copies = copy_for_shards(self.embedding)
        self.logits_bias = self.logits_bias_copies = None
        if config.logits_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            self.logits_bias = self.param("logits_bias", zeros, (config.vocab_size,))
            self.logits_bias_copies = copy_for_shards(self.logits_bias)
        if config.positions == "learned":
            self.position_embedding = self.param(
                "position_embedding",
                nn.with_logical_partitioning(
                    nn.initializers.normal(1.0), ("position", "embed")
                ),
                (config.max_positions, config.d_model),
            )
        self.dropout = Dropout(config.dropout)
        self.encoder = Encoder(config, self.rematerialise)
        self.decoder = Decoder(config, self.rematerialise)

    def _position_table(self, length: int) -> jax.Array:
        """Positions 0 ... length-1 as float32 [length, D]."""
        if self.config.positions == "sinusoidal":
            return jnp.asarray(sinusoidal_positions(length, self.config.d_model))
        if length > self.config.max_positions:
            raise ValueError(
                f"a sequence of {length} pieces is longer than "
                f"model.max_positions = {self.config.max_positions}"
            )
        return self.position_embedding[:length]

    def _embed(self, ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Embedding times sqrt(d_model), plus position: ids [B, L] -> [B, L, D]."""
        x = look_up(self.embedding_copies, ids) * embedding_scale(self.config.d_model)
        return (x + positions).astype(self.config.dtype)

    def _embed_segments(
        self, ids: jax.Array, segments: jax.Array, *, train: bool
    ) -> jax.Array:
        table = self._position_table(ids.shape[1])
        positions = jnp.take(table, positions_in_segments(segments), axis=0)
        x = self.dropout(self._embed(ids, positions), train=train)
        return nn.with_logical_constraint(x, ("batch", "length", "activation"))

    def logits(self, x: jax.Array) -> jax.Array:
        """Pre-softmax scores by the shared matrix: [B, L, D] -> float32 [B, L, V]."""
        scores = jnp.einsum(
            "bld,vd->blv",
            x,
            self.embedding.astype(x.dtype),
            preferred_element_type=jnp.float32,
        )
        if self.logits_bias is not None:
            scores += self.logits_bias[None, None]
        return nn.with_logical_constraint(scores, ("batch", "length", "vocab"))

    def encode(
        self, source: jax.Array, segments: jax.Array, *, train: bool = False
    ) -> jax.Array:
        """Encode source ids int [B, S]: memory [B, S, D]."""
        x = self._embed_segments(source, segments, train=train)
        mask = self_attention_mask(
            segments, window=self.config.attention_window, is_causal=False
        )
        return self.encoder(x, mask, train=train)

    def hidden(self, batch: Batch, *, train: bool) -> jax.Array:
        """The decoder's output for a whole target, the future masked: [B, T, D]."""
        memory = self.encode(batch.source, batch.source_segments, train=train)
        segments = batch.target_segments
        x = self._embed_segments(
            shift_right(batch.target, segments), segments, train=train
        )
        self_mask = self_attention_mask(
            segments, window=self.config.attention_window, is_causal=True
        )
        cross_mask = segment_mask(segments, batch.source_segments)
        return self.decoder(x, memory, self_mask, cross_mask, train=train)

    def hidden_and_projection(
        self, batch: Batch, *, train: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """`hidden` by shard of the batch, and what makes logits of it.

        [N, B/N, T, D]; the embeddings [N, V, D], the copies that embedded the batch
        (see `jaxformer.models.shards`); and copies [N, V] of the logits' bias, if any.
        """
        hidden = by_shard(self.hidden(batch, train=train))
        return hidden, self.embedding_copies, self.logits_bias_copies

    def __call__(self, batch: Batch, *, train: bool) -> jax.Array:
        """Score every next target piece: float32 logits [B, T, V]."""
        return self.logits(self.hidden(batch, train=train))
