"""One model, or an ensemble, as the decoder of a search.

An ensemble gives each token the mean of its members' probabilities; the members share
one vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.batch import PAD
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import no_rules
from jaxformer.decoding.search import SearchResult, search
from jaxformer.models.sequence_model import Model

Members = tuple[Any, ...]  # weights, memories or caches, one of each model


class Scorer:
    """The `Decoder` of several models; its docstrings apply to each member."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._members = [model.decoder for model in models]

    def weights(self, params: Sequence[Any]) -> Members:
        return self._each(lambda member, own: member.weights(own), params)

    def encode(self, weights: Members, source: jax.Array) -> Members:
        return self._each(lambda member, own: member.encode(own, source), weights)

    def empty_memory(self, **sizes: int) -> Members:
        return self._each(lambda member: member.empty_memory(**sizes))

    def resize_memory(self, memory: Members, *, length: int) -> Members:
        return self._each(
            lambda member, own: member.resize_memory(own, length=length), memory
        )

    def empty_cache(self, **sizes: int) -> Members:
        return self._each(lambda member: member.empty_cache(**sizes))

    def resize_cache(self, cache: Members, clock: jax.Array, **sizes: int) -> Members:
        return self._each(
            lambda member, own: member.resize_cache(own, clock, **sizes), cache
        )

    def step(
        self, weights: Members, memory: Members, *arguments: Any
    ) -> tuple[jax.Array, Members]:
        *shared, cache = arguments
        scored = self._each(
            lambda member, own, source, past: member.step(own, source, *shared, past),
            weights, memory, cache,
        )  # fmt: skip
        logits, caches = zip(*scored, strict=True)
        return _mean_probability(logits), caches

    def _each(self, call: Callable[..., Any], *own: Sequence[Any]) -> Members:
        return tuple(call(*each) for each in zip(self._members, *own, strict=True))


def _mean_probability(logits: Sequence[jax.Array]) -> jax.Array:
    """Log of the members' mean probability, [V, B, W]; one member's logits as is."""
    if len(logits) == 1:
        return logits[0]
    each = jnp.stack([jax.nn.log_softmax(x, axis=0) for x in logits])
    return jax.nn.logsumexp(each, axis=0) - jnp.log(len(logits))


def search_translations(
    models: Sequence[Model],
    params: Sequence[Any],
    source: jax.Array,
    *,
    options: SearchOptions,
    extra_length: int,
) -> SearchResult:
    """Search the best translations of source ids int32 [B, S], as one pure function.

    Each row is one sentence, or empty. All rows begin together, and the search ends
    with the last. Returns hypotheses best first.
    """
    scorer = Scorer(models)
    weights = scorer.weights(params)
    memory = scorer.encode(weights, source)
    rows, length = source.shape
    lengths = (source != PAD).sum(axis=1)  # [B], EOS counted as in the output
    limits = jnp.where(lengths > 0, lengths + extra_length, 0)
    steps = length + extra_length
    cache = scorer.empty_cache(batch=rows, width=options.beam_size, length=steps)

    def step_fn(*arguments: Any) -> tuple[jax.Array, Any]:
        return scorer.step(weights, memory, *arguments)

    return search(step_fn, cache, no_rules(limits), options, max_steps=steps)
