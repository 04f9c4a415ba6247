"""One model, or an ensemble with one vocabulary, as the decoder of a search."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.models.sequence_model import Model, Newest

Members = tuple[Any, ...]  # weights, memories or caches, one of each model


class Scorer:
    """The `Decoder` of several models; its docstrings apply to each member."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._members = [model.decoder for model in models]

    def _each(self, method: str, *own: Members, **shared: Any) -> Members:
        """Call a method of all members, each with its own and the shared arguments."""
        return tuple(
            getattr(member, method)(*each, **shared)
            for member, *each in zip(self._members, *own, strict=True)
        )

    def weights(self, params: Sequence[Any]) -> Members:
        return self._each("weights", params)

    def encode(self, weights: Members, source: jax.Array) -> Members:
        return self._each("encode", weights, source=source)

    def resize_memory(self, memory: Members, **sizes: int) -> Members:
        return self._each("resize_memory", memory, **sizes)

    def empty_cache(self, **sizes: int) -> Members:
        return self._each("empty_cache", **sizes)

    def resize_cache(self, cache: Members, clock: jax.Array, **sizes: int) -> Members:
        return self._each("resize_cache", cache, clock=clock, **sizes)

    def step(
        self, weights: Members, memory: Members, cache: Members, newest: Newest
    ) -> tuple[jax.Array, Members]:
        """Score by the log of the members' mean probability; a single one's logits."""
        scored = self._each("step", weights, memory, cache, newest=newest)
        logits, caches = zip(*scored, strict=True)
        if len(logits) == 1:
            return logits[0], caches
        each = jnp.stack([jax.nn.log_softmax(x, axis=0) for x in logits])
        return jax.nn.logsumexp(each, axis=0) - jnp.log(len(logits)), caches
