"""The part of a model that passes its arguments to a Linen module."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32, PyTree

from jaxformer.batch import Batch
from jaxformer.config.settings import Section
from jaxformer.models.arrays import Flags, Ids, RandomKey
from jaxformer.models.sequence_model import (
    AttentionMaps,
    Decoder,
    Encoded,
    Features,
    Parameters,
    batch_logits,
    pad,
)
from jaxformer.tokens import PAD

Sown = Mapping[str, PyTree[Array]]  # by module
Keys = dict[str, RandomKey]  # by use: "dropout"
DecoderMaps = tuple[Float32[Array, "N B H T T"], Float32[Array, "M B H T S"]]


@dataclass(frozen=True)
class LinenModel:
    """A base of models; see `jaxformer.models.sequence_model.Model`.

    The module has the first four fields of a model. Its method `encode` takes source
    ids and segments, and returns `Encoded` and the embeddings. Its method `decode`
    takes a batch and these two, and returns `Features`. `features` is both.
    """

    config: Section
    vocab_size: int
    rematerialise: bool
    source_vocab_size: int | None = None  # None: vocab_size
    activation_dtype: str | None = None  # None: see `mixed_precision`
    network_type: ClassVar[type[nn.Module]]
    wide_results: ClassVar[bool] = False  # see `mixed_precision`
    decoder_type: ClassVar[type]  # made from the config, the module and the model

    @property
    def d_model(self) -> int:
        return self.config.d_model

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def activation_type(self) -> str:
        return self.config.dtype

    @property
    def longest(self) -> int | None:
        return self.config.longest

    @property
    def samples(self) -> bool:
        return False

    @property
    def network(self) -> nn.Module:
        fields = self.config, self.vocab_size, self.rematerialise
        return self.network_type(*fields, self.source_vocab_size)

    @property
    def decoder(self) -> Decoder:
        return self.decoder_type(self.config, self.network, self)

    def apply(self, params: Parameters, *inputs: PyTree, **options: object) -> PyTree:
        """Apply the module; `options` are those of its `apply`."""
        return self.network.apply({"params": params}, *inputs, **options)

    def init(self, key: RandomKey) -> Parameters:
        row = jnp.ones((1, 2), jnp.int32)  # has no effect on parameters
        batch = Batch(row, row, row, row)
        return self.network.init(key, batch, method="features")["params"]

    def encode(self, params: Parameters, source: Ids) -> Encoded:
        """Encode source ids, one sentence a row; padding may exceed `longest`."""
        ids = source[:, : self.longest]
        segments = (ids != PAD).astype(jnp.int32)
        encoded, _ = self.apply(params, ids, segments, method="encode")
        after = source.shape[1] - ids.shape[1]
        return jax.tree.map(lambda leaf: pad(leaf, 0, after, axis=1), encoded)

    def run(
        self, params: Parameters, batch: Batch, rngs: Keys | None = None, sown: str = ""
    ) -> tuple[Features, Sown]:
        """Run on whole targets; return also what modules sow in the collection `sown`.

        The paths of what is sown are those of parameters.
        """
        options = {"rngs": rngs, "mutable": [sown]}
        features, found = self.apply(params, batch, method="features", **options)
        return features, found.get(sown, {})

    def features(self, params: Parameters, batch: Batch, key: RandomKey) -> Features:
        return self.run(params, batch, {"dropout": key})[0]

    def logits(self, params: Parameters, batch: Batch) -> Float32[Array, "B T V"]:
        return batch_logits(self.run(params, batch)[0])

    def attention(self, params: Parameters, batch: Batch) -> AttentionMaps | None:
        _, sown = self.run(params, batch, sown="intermediates")
        maps = self.encoder_maps(sown, batch), *self.decoder_maps(sown, batch)
        heads = max(each.shape[2] for each in maps)
        maps = AttentionMaps(*(with_heads(each, heads) for each in maps))
        return maps if len(maps.cross) else None

    def encoder_maps(self, sown: Sown, batch: Batch) -> Float32[Array, "N B H S S"]:
        """Stack the maps of the encoder's layers; N is 0 if there are none."""
        rows, length = batch.source.shape
        return jnp.zeros((0, rows, 1, length, length))

    def decoder_maps(self, sown: Sown, batch: Batch) -> DecoderMaps:
        """Stack the maps of the decoder's self-attention and of its cross-attention."""
        raise NotImplementedError

    def watch(self, params: Parameters, batch: Batch, key: RandomKey) -> Flags:
        found = {}

        def keep(function, args, kwargs, context):
            output = function(*args, **kwargs)
            named = self.outputs(context.module, context.method_name, output)
            found.update({name: jnp.isfinite(x).all() for name, x in named.items()})
            return output

        with nn.intercept_methods(keep):  # no array can leave a rematerialised layer
            replace(self, rematerialise=False).features(params, batch, key)
        return found

    def outputs(
        self, module: nn.Module, method: str, output: PyTree
    ) -> Mapping[str, Float[Array, "..."]]:
        """Name what `watch` checks in the output of a module's method, if anything."""
        raise NotImplementedError

    def flops(self, rows: int, source: int, target: int) -> int:
        """Count two operations for each product forward, four backward."""
        return 6 * rows * sum(self.products(source, target))

    def activations(self, rows: int, source: int, target: int) -> int:
        return rows * sum(self.kept(source, target))

    def products(self, source: int, target: int) -> tuple[int, int]:
        """Count the products of a row's matrix products in encoder and decoder."""
        raise NotImplementedError

    def kept(self, source: int, target: int) -> tuple[int, int]:
        """Estimate a row's `activations` in encoder and decoder."""
        raise NotImplementedError


def with_heads(
    maps: Float32[Array, "N B H T S"], heads: int
) -> Float32[Array, "N B {heads} T S"]:
    """Repeat the maps of fewer heads, so that all kinds of attention have as many."""
    own = maps.shape[2]
    return maps[:, :, jnp.arange(heads) * own // heads] if own < heads else maps
