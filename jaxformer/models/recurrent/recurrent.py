"""Recurrent encoder and decoder on whole targets, as a Linen module.

From the second layer on, inputs are added to outputs (Wu et al. 2016). State begins
anew at each segment of a packed row.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float32

from jaxformer.batch import Batch, shift_right, starts_of_segments
from jaxformer.models.arrays import Ids, Sources, Table, Targets, Vectors
from jaxformer.models.embeddings import make_tables
from jaxformer.models.kernels.elementwise import look_up
from jaxformer.models.kernels.linear import multiply
from jaxformer.models.layers import Dropout
from jaxformer.models.masks import segment_mask
from jaxformer.models.recurrent.attention import Source, attend, source_of
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
from jaxformer.models.sequence_model import Features, batch_logits


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

    def encode(self, source: Ids, segments: Ids) -> Vectors:
        rows, _ = look_up(self.tables.source, source, self.config.dtype)
        return self.encoder(rows, segments)[-1]

    def run(self, batch: Batch) -> tuple[dict, Table, Outputs]:
        """Run both stacks; return outputs by name, the output table, and the decoder's.

        Names are in forward order.
        """
        config, tables = self.config, self.tables
        inputs = shift_right(batch.target, batch.target_segments)
        source, rows, table = tables.look_up(batch.source, inputs, config.dtype)
        encoded = self.encoder(source, batch.source_segments)
        mask = segment_mask(batch.target_segments, batch.source_segments)[:, 0]
        weights = self.decoder()
        start = start_of(config, weights, encoded[-1], mask)
        source = source_of(weights.attention, encoded[-1])
        decode = self._step_by_step if config.loops_over_attention else self._by_layers
        is_start = starts_of_segments(batch.target_segments)
        with jax.named_scope("decoder"):
            found = decode(weights, source, mask, self.dropout(rows), is_start, start)
        named = {f"encoder/layer_{n}": x for n, x in enumerate(encoded)}
        named["decoder/start"] = start
        named |= {f"decoder/layer_{n}": x for n, x in enumerate(found.layers)}
        if found.shares is not None:
            named |= {"decoder/attention": found.shares, "decoder/output": found.hidden}
        return named, table, found._replace(hidden=self.dropout(found.hidden))

    def _by_layers(
        self,
        weights: DecoderWeights,
        source: Source,
        mask: Bool[Array, "B T S"],
        x: Targets,
        is_start: Bool[Array, "B T"],
        start: Float32[Array, "B T D"],
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
            return Outputs(outputs, x, None)
        window = config.attention_window
        context, shares = attend(weights.attention, x, source, mask, window)
        return Outputs(outputs, attentional(weights, context, x), shares)

    def _step_by_step(
        self,
        weights: DecoderWeights,
        source: Source,
        mask: Bool[Array, "B T S"],
        x: Targets,
        is_start: Bool[Array, "B T"],
        start: Float32[Array, "B T D"],
    ) -> Outputs:
        """Compute position by position, because each is fed the one before."""
        config = self.config
        gates = multiply(x, weights.layers[0].input, x.dtype)
        gates += along(weights.layers[0].bias, x)
        factors = [self.dropout(jnp.ones_like(x)) for _ in weights.layers[1:]]

        def step(past: Past, inputs: tuple) -> tuple[Past, Outputs]:
            inputs = jax.tree.map(lambda leaf: leaf[:, None], inputs)  # N = 1
            mask, gates, is_start, start, factors = inputs
            past = restart(past, is_start, first_past(config, weights, start))
            return advance(config, weights, source, mask, gates, past, factors)

        step = jax.checkpoint(step) if self.rematerialise else step
        inputs = mask, gates, is_start, start, factors
        inputs = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), inputs)
        first = first_past(config, weights, jnp.zeros_like(start[:, :1]))
        _, found = jax.lax.scan(step, first, inputs)
        return jax.tree.map(lambda leaf: leaf[:, :, 0].swapaxes(0, 1), found)

    def features(self, batch: Batch) -> Features:
        """Return the factors of the logits."""
        _, table, found = self.run(batch)
        return Features(found.hidden, table, None)

    def __call__(self, batch: Batch) -> Float32[Array, "B T V"]:
        """Compute the logits of every next target token."""
        return batch_logits(self.features(batch))


def recurrence(rematerialise: bool, *, is_reverse: bool = False) -> Callable:
    """Return `recur`, which may keep its inputs alone for the backward pass."""
    layer = functools.partial(recur, is_reverse=is_reverse)
    return jax.checkpoint(layer) if rematerialise else layer


def restart(past: Past, is_start: Bool[Array, "B N"], first: Past) -> Past:
    """Take `first` where a sentence begins."""
    return jax.tree.map(
        lambda new, old: jnp.where(is_start[..., None], new, old), first, past
    )


def start_of(
    config: RecurrentConfig,
    weights: DecoderWeights,
    memory: Sources,
    mask: Bool[Array, "B T S"],
) -> Float32[Array, "B T D"]:
    """Compute the decoder's first state of each target position's sentence.

    It is tanh(W h + b) of the encoder's final states in its directions (Bahdanau et
    al. 2015, A.2.2).
    """
    length = memory.shape[1]
    indices = [length - 1 - jnp.flip(mask, -1).argmax(axis=-1)]  # the last tokens
    if config.bidirectional:
        indices.append(mask.argmax(axis=-1))
    parts = jnp.split(memory, len(indices), axis=-1)
    finals = [
        jax.nn.one_hot(index, length, dtype=memory.dtype) @ part
        for index, part in zip(indices, parts, strict=True)
    ]
    finals = jnp.concatenate(finals, axis=-1)
    start = multiply(finals, weights.start, finals.dtype)
    return jnp.tanh(start.astype(jnp.float32) + weights.start_bias[None, None])
