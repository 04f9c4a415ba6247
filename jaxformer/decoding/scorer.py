"""One model, or an ensemble with one vocabulary, as the decoder of a search."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import no_rules
from jaxformer.decoding.search import SearchResult, search
from jaxformer.models.sequence_model import Model, Newest
from jaxformer.system.errors import InputError
from jaxformer.tokens import PAD

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


def search_translations(
    models: Sequence[Model],
    params: Sequence[Any],
    source: jax.Array,
    *,
    options: SearchOptions,
    extra_length: int,
) -> SearchResult:
    """Search the best translations of source ids int32 [B, S], as one pure function.

    Each row is one sentence, or empty. Returns hypotheses best first. Raises InputError
    if S is more than the positions of a model, which also bound the hypotheses.
    """
    most = min((m.longest for m in models if m.longest is not None), default=None)
    rows, length = source.shape
    if most is not None and length > most:
        raise InputError(
            f"sources of {length} pieces exceed model.max_positions={most}; give a "
            f"source length of at most {most}"
        )
    scorer = Scorer(models)
    weights = scorer.weights(params)
    memory = scorer.encode(weights, source)
    lengths = (source != PAD).sum(axis=1)  # [B], EOS counted as in the output
    steps = min(length + extra_length, most or math.inf)
    limits = jnp.where(lengths > 0, jnp.minimum(lengths + extra_length, steps), 0)
    cache = scorer.empty_cache(batch=rows, width=options.beam_size, length=steps)
    step_fn = functools.partial(scorer.step, weights, memory)
    return search(step_fn, cache, no_rules(limits), options, max_steps=steps)
