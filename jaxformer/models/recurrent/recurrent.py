"""Recurrent encoder and decoder on whole targets, as a Linen module.

From the second layer on, inputs are added to outputs (Wu et al. 2016). State begins
anew at each segment of a packed row.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float32

from jaxformer.batch import Batch, shift_right, starts_of_segments
from jaxformer.models.arrays import Ids, Sources, Targets, Vectors
from jaxformer.models.embeddings import Tables, make_tables
from jaxformer.models.kernels.linear import multiply
from jaxformer.models.layers import Dropout, gumbel_noise
from jaxformer.models.masks import segment_mask
from jaxformer.models.recurrent.attention import Draws, Source, attend, source_of
from jaxformer.models.recurrent.cells import Cell, along, recur
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.recurrent.step import (
    DecoderParameters,
    DecoderWeights,
    Outputs,
    Past,
    advance,
    attentional,
    first_past,
)
from jaxformer.models.sequence_model import Encoded, Features


class EncoderLayer(nn.Module):
    """A layer that reads forwards and, if bidirectional, one that reads backwards."""

    config: RecurrentConfig
    rematerialise: bool

    @nn.compact
    def __call__(self, x: Vectors, segments: Ids) -> Vectors:
        config, d = self.config, x.shape[-1]
        starts = {"forward": starts_of_segments(segments)}
        if config.bidirectional:
            is_end = jnp.flip(starts_of_segments(jnp.flip(segments, 1)), 1)
            starts["backward"] = is_end
        axis, outputs = "half_embed" if config.halves else "embed", []
        for name, is_start in starts.items():
            size = d, d // len(starts), jnp.dtype(config.dtype)
            cell = Cell(config.cell, *size, state_axis=axis, name=name)()
            layer = recurrence(self.rematerialise, is_reverse=name == "backward")
            outputs.append(layer(cell, x, is_start))
        return jnp.concatenate(outputs, axis=-1)


class Encoder(nn.Module):
    """The encoder's layers."""

    config: RecurrentConfig
    rematerialise: bool

    @nn.compact
    def __call__(self, x: Vectors, segments: Ids) -> list[Vectors]:
        """Map embeddings to the outputs of all layers."""
        outputs, drop = [], Dropout(self.config.dropout, name="dropout")
        for n in range(self.config.encoder_layers):
            layer = EncoderLayer(self.config, self.rematerialise, name=f"layer_{n}")
            y = layer(drop(x), segments)
            outputs.append(x := x + y if n else y)
        return outputs


class Recurrent(nn.Module):
    """Both stacks, with the matrices of `jaxformer.models.embeddings`."""

    config: RecurrentConfig
    vocab_size: int  # of targets
    rematerialise: bool
    source_vocab_size: int | None = None  # None: vocab_size

    def setup(self) -> None:
        # At d_model 512 as wide as the uniform [-0.08, 0.08] of Sutskever et al. 2014.
        init = nn.initializers.normal(self.config.d_model**-0.5)
        self.tables = make_tables(self, init)
        self.encoder = Encoder(self.config, self.rematerialise)
        self.decoder = DecoderParameters(self.config)
        self.dropout = Dropout(self.config.dropout)

    def encode(self, source: Ids, segments: Ids) -> tuple[Encoded, Tables]:
        """Run the encoder; return also the tables for the decoder."""
        rows, tables = self.tables.look_up_source(source, self.config.dtype)
        states = self.encoder(rows, segments)[-1]
        summary = final_states(self.config, states, segments)
        return Encoded(states, rows, summary), tables

    def decode(self, batch: Batch, encoded: Encoded, tables: Tables) -> Features:
        """Run the decoder on whole targets."""
        inputs = shift_right(batch.target, batch.target_segments)
        rows, table = tables.look_up_target(inputs, self.config.dtype)
        _, found = self.outputs(batch, encoded, rows)
        if found.shares is not None:
            self.sow("intermediates", "shares", found.shares)
        hidden = self.dropout(found.hidden)
        return Features(hidden, table, None, found.log_choice)

    def outputs(
        self, batch: Batch, encoded: Encoded, rows: Targets
    ) -> tuple[Float32[Array, "B T D"], Outputs]:
        """Compute the decoder's first states and all its outputs."""
        config, weights = self.config, self.decoder()
        mask = segment_mask(batch.target_segments, batch.source_segments)[:, 0]
        start = start_of(weights, encoded.summary, mask)
        source = source_of(weights.attention, encoded.states)
        decode = self._step_by_step if config.loops_over_attention else self._by_layers
        is_start = starts_of_segments(batch.target_segments)
        with jax.named_scope("decoder"):
            x = self.dropout(rows)
            draws = self._draws(mask.shape)
            return start, decode(weights, source, mask, x, is_start, start, draws)

    def _draws(self, shape: tuple[int, ...]) -> Draws | None:
        """Draw what hard attention needs in training; `shape` is B, T, S."""
        if not self.config.is_hard or not self.has_rng("dropout"):
            return None
        noise = gumbel_noise(shape, key=self.make_rng("dropout"))
        coin = gumbel_noise((shape[0], 1), key=self.make_rng("dropout"))
        is_soft = coin > -math.log(math.log(2))  # the median
        return Draws(noise, jnp.broadcast_to(is_soft, shape[:2]))

    def _by_layers(
        self,
        weights: DecoderWeights,
        source: Source,
        mask: Bool[Array, "B T S"],
        x: Targets,
        is_start: Bool[Array, "B T"],
        start: Float32[Array, "B T D"],
        draws: Draws | None,
    ) -> Outputs:
        """Compute layer by layer, then attention, each for all positions."""
        config, outputs = self.config, []
        layer = recurrence(self.rematerialise)
        for n, cell in enumerate(weights.layers):
            fixed = None
            if cell.feed is not None:  # the same context at each step
                fixed = multiply(start.astype(x.dtype), cell.feed, x.dtype)
            y = layer(cell, x if n == 0 else self.dropout(x), is_start, start, fixed)
            outputs.append(x := x + y if n else y)
        if config.attention == "none":
            return Outputs(outputs, x, None, None)
        read = attend(config, weights.attention, x, source, mask, draws)
        hidden = attentional(weights, read.context, x)
        return Outputs(outputs, hidden, read.shares, read.log_choice)

    def _step_by_step(
        self,
        weights: DecoderWeights,
        source: Source,
        mask: Bool[Array, "B T S"],
        x: Targets,
        is_start: Bool[Array, "B T"],
        start: Float32[Array, "B T D"],
        draws: Draws | None,
    ) -> Outputs:
        """Compute position by position, because each is fed the one before."""
        config = self.config
        gates = multiply(x, weights.layers[0].input, x.dtype)
        gates += along(weights.layers[0].bias, x)
        factors = [self.dropout(jnp.ones_like(x)) for _ in weights.layers[1:]]

        def step(past: Past, inputs: tuple) -> tuple[Past, Outputs]:
            inputs = jax.tree.map(lambda leaf: leaf[:, None], inputs)  # N = 1
            mask, gates, is_start, start, *given = inputs
            past = restart(past, is_start, first_past(config, weights, start))
            return advance(config, weights, source, mask, gates, past, *given)

        step = jax.checkpoint(step) if self.rematerialise else step
        inputs = mask, gates, is_start, start, factors, draws
        inputs = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), inputs)
        first = first_past(config, weights, jnp.zeros_like(start[:, :1]))
        _, found = jax.lax.scan(step, first, inputs)
        return jax.tree.map(lambda leaf: leaf[:, :, 0].swapaxes(0, 1), found)

    def features(self, batch: Batch) -> Features:
        """Compute the factors of the logits."""
        return self.decode(batch, *self.encode(batch.source, batch.source_segments))


def recurrence(rematerialise: bool, *, is_reverse: bool = False) -> Callable:
    """Return `recur`, which may keep its inputs alone for the backward pass."""
    layer = functools.partial(recur, is_reverse=is_reverse)
    return jax.checkpoint(layer) if rematerialise else layer


def restart(past: Past, is_start: Bool[Array, "B N"], first: Past) -> Past:
    """Take `first` where a sentence begins."""
    return jax.tree.map(
        lambda new, old: jnp.where(is_start[..., None], new, old), first, past
    )


def final_states(config: RecurrentConfig, states: Sources, segments: Ids) -> Sources:
    """Keep the encoder's final states in its directions; others become zero."""
    is_end = jnp.flip(starts_of_segments(jnp.flip(segments, 1)), 1)
    flags = [is_end, starts_of_segments(segments)][: 1 + config.bidirectional]
    finals = [
        jnp.where(flag[..., None], part, jnp.zeros_like(part))
        for flag, part in zip(flags, jnp.split(states, len(flags), -1), strict=True)
    ]
    return jnp.concatenate(finals, axis=-1)


def start_of(
    weights: DecoderWeights, summary: Sources, mask: Bool[Array, "B T S"]
) -> Float32[Array, "B T D"]:
    """Compute the decoder's first state of each target position's sentence.

    It is tanh(W h + b) of the encoder's final states (Bahdanau et al. 2015, A.2.2), or
    of another sum of a `summary`.
    """
    dtype = weights.start.dtype
    finals = mask.astype(dtype) @ summary.astype(dtype)
    start = multiply(finals, weights.start, dtype)
    return jnp.tanh(start.astype(jnp.float32) + weights.start_bias[None, None])
