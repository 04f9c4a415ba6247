"""ConvS2S on whole targets, as a Linen module (Gehring et al. 2017, section 3)."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, PyTree

from jaxformer.batch import Batch, positions_in_segments, shift_right
from jaxformer.models.arrays import Ids, Sources, Vectors
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.convolutional.layers import (
    HALF,
    ConvolutionalLayer,
    ConvolutionalLinear,
    scale_gradient,
)
from jaxformer.models.embeddings import Tables, make_tables
from jaxformer.models.kernels.rematerialise import rematerialised
from jaxformer.models.layers import Dropout
from jaxformer.models.masks import segment_lengths, segment_mask
from jaxformer.models.sequence_model import Encoded, Features, mean_summary


class ConvolutionalStack(nn.Module):
    """The encoder or the decoder: positions, and layers between two linear maps."""

    config: ConvolutionalConfig
    stack: str  # "encoder" or "decoder"
    rematerialise: bool

    def setup(self) -> None:
        config = self.config
        d, dtype = config.d_model, jnp.dtype(config.dtype)
        init = nn.initializers.normal(0.1)
        init = nn.with_logical_partitioning(init, ("position", "embed"))
        shape = config.max_positions, d
        self.position_embedding = self.param("position_embedding", init, shape)
        self.dropout = Dropout(config.dropout)
        self.input = ConvolutionalLinear((d, d), 1 - config.dropout, dtype)
        count = getattr(config, f"{self.stack}_layers")
        self.layers = [
            ConvolutionalLayer(config, self.stack, n, name=f"layer_{n}")
            for n in range(count)
        ]
        self.output = ConvolutionalLinear((d, d), 1.0, dtype)

    def embed(self, rows: Vectors, segments: Ids) -> Vectors:
        """Add positions to rows of the embedding (section 3.1)."""
        if rows.shape[1] > self.config.max_positions:
            raise ValueError(
                f"a sequence of {rows.shape[1]} tokens is longer than "
                f"model.max_positions = {self.config.max_positions}"
            )
        numbers = positions_in_segments(segments)
        x = rows + jnp.take(self.position_embedding, numbers, axis=0)
        x = self.dropout(x.astype(self.config.dtype))
        return nn.with_logical_constraint(x, ("batch", "length", "activation"))

    def __call__(self, x: Vectors, segments: Ids, *source: PyTree[Array]) -> Vectors:
        """Apply the layers; `source` are further inputs of their attention."""
        apply = ConvolutionalLayer.__call__
        if self.rematerialise and self.has_rng("dropout"):  # in training
            apply = rematerialised
        x = self.input(x)
        for layer in self.layers:
            x = apply(layer, x, segments, *source)
        return self.output(x)


def keys_and_values(
    config: ConvolutionalConfig, encoded: Encoded, segments: Ids
) -> tuple[Sources, Sources]:
    """Return what all attentions of the decoder attend to (section 3.3)."""
    # Each attention adds a gradient to keys and to values. The paper divides by the
    # number of attentions (section 3.4), its implementation by twice that number.
    key = scale_gradient(encoded.states, 0.5 / config.decoder_layers)
    # The mean of m values has the variance of one after a factor m^0.5.
    count = segment_lengths(segments)[..., None].astype(jnp.float32)  # [B, S, 1]
    scale = (HALF * jnp.sqrt(count)).astype(key.dtype)
    return key, (key + encoded.embedded) * scale


class ConvS2S(nn.Module):
    """Both stacks, with the matrices of `jaxformer.models.embeddings`.

    The paper has one for each of the three uses.
    """

    config: ConvolutionalConfig
    vocab_size: int  # of targets
    rematerialise: bool
    source_vocab_size: int | None = None  # None: vocab_size

    def setup(self) -> None:
        self.tables = make_tables(self, nn.initializers.normal(0.1))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        self.logits_bias = self.param("logits_bias", zeros, (self.vocab_size,))
        self.dropout = Dropout(self.config.dropout)
        self.encoder = ConvolutionalStack(self.config, "encoder", self.rematerialise)
        self.decoder = ConvolutionalStack(self.config, "decoder", self.rematerialise)

    def encode(self, source: Ids, segments: Ids) -> tuple[Encoded, Tables]:
        """Run the encoder; return also the tables for the decoder."""
        rows, tables = self.tables.look_up_source(source, self.config.dtype)
        x = self.encoder.embed(rows, segments)
        states = self.encoder(x, segments)
        return Encoded(states, x, mean_summary(states, segments)), tables

    def decode(self, batch: Batch, encoded: Encoded, tables: Tables) -> Features:
        """Run the decoder on whole targets."""
        segments = batch.target_segments
        inputs = shift_right(batch.target, segments)
        rows, table = tables.look_up_target(inputs, self.config.dtype)
        source = keys_and_values(self.config, encoded, batch.source_segments)
        x = self.decoder.embed(rows, segments)
        mask = segment_mask(segments, batch.source_segments)
        hidden = self.dropout(self.decoder(x, segments, x, source, mask))
        return Features(hidden, table, self.logits_bias)

    def features(self, batch: Batch) -> Features:
        """Compute the factors of the logits."""
        return self.decode(batch, *self.encode(batch.source, batch.source_segments))
