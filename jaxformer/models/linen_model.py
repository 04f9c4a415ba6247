"""The part of a model that passes its arguments to a Linen module."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float32, PyTree

from jaxformer.batch import Batch
from jaxformer.config.settings import Section
from jaxformer.models.arrays import RandomKey
from jaxformer.models.sequence_model import Decoder, Features, Parameters


@dataclass(frozen=True)
class LinenModel:
    """A base of models; see `jaxformer.models.sequence_model.Model`.

    The module has the first four fields of a model. Its `__call__` returns logits, and
    its method `features` returns their factors.
    """

    config: Section
    vocab_size: int
    rematerialise: bool
    source_vocab_size: int | None = None  # None: vocab_size
    activation_dtype: str | None = None  # None: see `mixed_precision`
    network_type: ClassVar[type[nn.Module]]
    wide_results: ClassVar[bool] = False  # see `mixed_precision`
    decoder_type: ClassVar[type]  # made from the config and the module

    @property
    def d_model(self) -> int:
        return self.config.d_model

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def longest(self) -> int | None:
        return self.config.longest

    @property
    def network(self) -> nn.Module:
        fields = self.config, self.vocab_size, self.rematerialise
        return self.network_type(*fields, self.source_vocab_size)

    @property
    def decoder(self) -> Decoder:
        return self.decoder_type(self.config, self.network)

    def apply(self, params: Parameters, *inputs: PyTree, **options: object) -> PyTree:
        """Apply the module; `options` are those of its `apply`."""
        return self.network.apply({"params": params}, *inputs, **options)

    def init(self, key: RandomKey) -> Parameters:
        row = jnp.ones((1, 2), jnp.int32)  # has no effect on parameters
        return self.network.init(key, Batch(row, row, row, row))["params"]

    def features(self, params: Parameters, batch: Batch, key: RandomKey) -> Features:
        return self.apply(params, batch, rngs={"dropout": key}, method="features")

    def logits(self, params: Parameters, batch: Batch) -> Float32[Array, "B T V"]:
        return self.apply(params, batch)
