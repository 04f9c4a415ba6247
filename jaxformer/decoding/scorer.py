"""What a search needs of one model, or of several that vote: sources in, logits out.

The only place where decoding meets `jaxformer.models`. An ensemble is the mean of its
members' probabilities at every step; they share one vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import PAD
from jaxformer.models.transformer.decode import (
    Cache,
    Memory,
    decode_step,
    empty_cache,
    empty_memory,
    project_memory,
    resize_cache,
    resize_memory,
)
from jaxformer.models.transformer.decoding_weights import (
    DecodingWeights,
    decoding_weights,
)
from jaxformer.models.transformer.transformer import Transformer


class Weights(NamedTuple):
    """Parameters of one member, as encoding and as decoding wants them."""

    params: Any
    decoding: DecodingWeights


class Scorer:
    """The members of an ensemble as one step function; a single model is one member.

    Everything here is a pure function of its arguments, to be called inside `jax.jit`.
    Memories and caches are tuples, one entry a member.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = tuple(models)

    def weights(self, params: Sequence[Any]) -> tuple[Weights, ...]:
        """Rearrange the members' parameters."""
        return tuple(
            Weights(p, decoding_weights(m.config, p))
            for m, p in zip(self.models, params, strict=True)
        )

    def encode(
        self, weights: Sequence[Weights], source: jax.Array
    ) -> tuple[Memory, ...]:
        """Encode source ids int32 [B, S], each row one sentence."""
        length = source.shape[1]

        def memory(model: Transformer, own: Weights) -> Memory:
            ids = source
            if model.config.positions == "learned":  # padding may go beyond them
                ids = source[:, : model.config.max_positions]
            is_real = ids != PAD
            encoded = model.apply(
                {"params": own.params}, ids, is_real.astype(jnp.int32), method="encode"
            )
            known = project_memory(model.config, own.decoding, encoded, is_real)
            return resize_memory(known, length=length)

        return tuple(map(memory, self.models, weights))

    def empty_memory(self, *, batch: int, length: int) -> tuple[Memory, ...]:
        """Room for B sources of `length` pieces."""
        return tuple(
            empty_memory(m.config, batch=batch, length=length) for m in self.models
        )

    def empty_cache(self, *, batch: int, width: int, length: int) -> tuple[Cache, ...]:
        """Room for `length` pieces of B x W hypotheses."""
        return tuple(
            empty_cache(m.config, batch=batch, width=width, length=length)
            for m in self.models
        )

    def resize_memory(
        self, memory: Sequence[Memory], *, length: int
    ) -> tuple[Memory, ...]:
        """Cut or pad sources to `length` pieces."""
        return tuple(resize_memory(m, length=length) for m in memory)

    def resize_cache(
        self, cache: Sequence[Cache], clock: jax.Array, *, width: int, length: int
    ) -> tuple[Cache, ...]:
        """Move the ring into one of `length` places, the newest last."""
        return tuple(
            resize_cache(m.config, c, clock, width=width, length=length)
            for m, c in zip(self.models, cache, strict=True)
        )

    def step(
        self,
        weights: Sequence[Weights],
        memory: Sequence[Memory],
        tokens: jax.Array,
        ages: jax.Array,
        clock: jax.Array,
        ancestors: jax.Array,
        cache: Sequence[Cache],
    ) -> tuple[jax.Array, tuple[Cache, ...]]:
        """The step function of `jaxformer.decoding.search`."""
        scored = [
            decode_step(
                model.config, own.decoding, source, past,
                tokens=tokens, ages=ages, clock=clock, ancestors=ancestors,
            )
            for model, own, source, past in zip(
                self.models, weights, memory, cache, strict=True
            )
        ]  # fmt: skip
        logits, caches = zip(*scored, strict=True)
        return _mean_probability(logits), caches


def _mean_probability(logits: Sequence[jax.Array]) -> jax.Array:
    """Log of the members' mean probability, [V, B, W]; one member's logits as is."""
    if len(logits) == 1:
        return logits[0]
    each = jnp.stack([jax.nn.log_softmax(x, axis=0) for x in logits])
    return jax.nn.logsumexp(each, axis=0) - jnp.log(len(logits))
