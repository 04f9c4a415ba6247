"""What a search needs of a model, or of an ensemble: sources in, logits out.

The probability that an ensemble gives to a token is the mean of its members'; they
share one vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.batch import PAD
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.search import SearchResult, no_rules, search
from jaxformer.models.sequence_model import Cache, Memory, Model, Parameters, Weights


class Scorer:
    """The `Decoder` of several models; weights, memories and caches are tuples."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._members = [model.decoder for model in models]

    def weights(self, params: Sequence[Parameters]) -> tuple[Weights, ...]:
        return tuple(member.weights(own) for member, own in self._with(params))

    def encode(
        self, weights: Sequence[Weights], source: jax.Array
    ) -> tuple[Memory, ...]:
        return tuple(member.encode(own, source) for member, own in self._with(weights))

    def empty_memory(self, *, batch: int, length: int) -> tuple[Memory, ...]:
        return tuple(m.empty_memory(batch=batch, length=length) for m in self._members)

    def resize_memory(
        self, memory: Sequence[Memory], *, length: int
    ) -> tuple[Memory, ...]:
        return tuple(
            member.resize_memory(own, length=length)
            for member, own in self._with(memory)
        )

    def empty_cache(self, *, batch: int, width: int, length: int) -> tuple[Cache, ...]:
        return tuple(
            member.empty_cache(batch=batch, width=width, length=length)
            for member in self._members
        )

    def resize_cache(
        self, cache: Sequence[Cache], clock: jax.Array, *, width: int, length: int
    ) -> tuple[Cache, ...]:
        return tuple(
            member.resize_cache(own, clock, width=width, length=length)
            for member, own in self._with(cache)
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
        scored = [
            member.step(own, source, tokens, ages, clock, ancestors, past)
            for member, own, source, past in self._with(weights, memory, cache)
        ]
        logits, caches = zip(*scored, strict=True)
        return _mean_probability(logits), caches

    def _with(self, *own: Sequence[Any]) -> Iterator[tuple]:
        return zip(self._members, *own, strict=True)


def _mean_probability(logits: Sequence[jax.Array]) -> jax.Array:
    """Log of the members' mean probability, [V, B, W]; one member's logits as is."""
    if len(logits) == 1:
        return logits[0]
    each = jnp.stack([jax.nn.log_softmax(x, axis=0) for x in logits])
    return jax.nn.logsumexp(each, axis=0) - jnp.log(len(logits))


def search_translations(
    models: Sequence[Model],
    params: Sequence[Parameters],
    source: jax.Array,
    *,
    options: SearchOptions,
    extra_length: int,
) -> SearchResult:
    """Search the best translations of source ids int32 [B, S], as one pure function.

    Each row is one sentence, or empty, which costs no steps; all begin together, and
    the last to end ends the search. Returns hypotheses best first.
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
