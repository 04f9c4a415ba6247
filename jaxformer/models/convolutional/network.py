"""ConvS2S on whole targets, as a Linen module (Gehring et al. 2017, section 3)."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float32, PyTree

from jaxformer.batch import Batch, positions_in_segments, shift_right
from jaxformer.models.arrays import Ids, Table, Targets, Vectors
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.convolutional.layers import (
    HALF,
    ConvolutionalLayer,
    ConvolutionalLinear,
    scale_gradient,
)
from jaxformer.models.embeddings import make_tables
from jaxformer.models.kernels.elementwise import look_up
from jaxformer.models.kernels.rematerialise import rematerialised
from jaxformer.models.layers import Dropout
from jaxformer.models.masks import segment_mask
from jaxformer.models.sequence_model import Features, batch_logits


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

    def encode(self, source: Ids, segments: Ids) -> tuple[Vectors, Vectors]:
        """Encode source ids; return keys and values of the attention."""
        rows, _ = look_up(self.tables.source, source, self.config.dtype)
        return self._encode(rows, segments)

    def _encode(self, rows: Vectors, segments: Ids) -> tuple[Vectors, Vectors]:
        x = self.encoder.embed(rows, segments)
        # Each attention adds a gradient to keys and to values. The paper divides by the
        # number of attentions (section 3.4), its implementation by twice that number.
        factor = 0.5 / self.config.decoder_layers
        key = scale_gradient(self.encoder(x, segments), factor)
        # The mean of m values has the variance of one after a factor m^0.5.
        is_own = segment_mask(segments, segments)[:, 0]  # [B, S, S]
        count = is_own.sum(axis=-1)[..., None].astype(jnp.float32)  # [B, S, 1]
        return key, (key + x) * (HALF * jnp.sqrt(count)).astype(x.dtype)

    def hidden(self, batch: Batch) -> tuple[Targets, Table]:
        """Run both stacks on a whole target; also return the output table."""
        dtype, segments = self.config.dtype, batch.target_segments
        inputs = shift_right(batch.target, segments)
        rows, target, table = self.tables.look_up(batch.source, inputs, dtype)
        source = self._encode(rows, batch.source_segments)
        x = self.decoder.embed(target, segments)
        mask = segment_mask(segments, batch.source_segments)
        return self.dropout(self.decoder(x, segments, x, source, mask)), table

    def features(self, batch: Batch) -> Features:
        """Return `hidden`, the output table and its bias."""
        return Features(*self.hidden(batch), self.logits_bias)

    def __call__(self, batch: Batch) -> Float32[Array, "B T V"]:
        """Compute the logits of every next target token."""
        return batch_logits(self.features(batch))
