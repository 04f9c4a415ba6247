"""Device programs of continuous batching: create, fill, advance and resize slots.

Pure functions of arrays, each compiled once for a shape. `jaxformer.decoding.engine`
decides when each runs. E counts the sentences that are inserted.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import PAD
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Requests, no_rules
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import SearchState, advance, start
from jaxformer.models.sequence_model import Memory, resize_ring


class Slots(NamedTuple):
    """The arrays on the device: a search and the encoded sources."""

    state: SearchState
    memory: tuple[Memory, ...]


class Shape(NamedTuple):
    """The sizes of compiled programs."""

    slots: int  # B
    source: int  # S
    ring: int  # L, and N
    prefix: int  # P


class SlotPrograms:
    """The compiled programs; `advance` and `insert` donate the given `Slots`."""

    def __init__(
        self,
        scorer: Scorer,
        options: SearchOptions,
        rows: jax.sharding.NamedSharding | None,
    ) -> None:
        self._scorer, self._options, self._rows = scorer, options, rows
        self.empty = jax.jit(self._empty, static_argnums=0)
        self.advance = jax.jit(self._advance, donate_argnums=1)
        self.insert = jax.jit(self._insert, donate_argnums=1)
        self.resize = jax.jit(self._resize, static_argnums=2)

    def _empty(self, shape: Shape) -> Slots:
        requests = no_rules(jnp.zeros(shape.slots, jnp.int32), shape.prefix)
        sizes = {"width": self._options.beam_size, "length": shape.ring}
        cache = self._scorer.empty_cache(batch=shape.slots, **sizes)
        memory = self._scorer.empty_memory(batch=shape.slots, length=shape.source)
        return self._shard(Slots(start(requests, cache, **sizes), memory))

    def _advance(
        self, weights: Any, slots: Slots, steps: jax.Array, until_done: jax.Array
    ) -> Slots:
        step_fn = functools.partial(self._scorer.step, weights, slots.memory)
        state = advance(
            step_fn, slots.state, self._options, steps=steps, until_done=until_done
        )
        return self._shard(Slots(state, slots.memory))

    def _insert(
        self,
        weights: Any,
        slots: Slots,
        indices: jax.Array,
        source: jax.Array,
        requests: Requests,
    ) -> Slots:
        """Encode sources int32 [E, S] and start them in slots `indices` int32 [E]."""
        clock, cache = slots.state.clock, slots.state.cache
        old = slots.state._replace(clock=None, cache=None)  # only rows are replaced
        _, width, length = old.tokens.shape
        new = start(requests, None, width=width, length=length)._replace(clock=None)

        def put(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[indices].set(new, mode="drop")

        state = jax.tree.map(put, old, new)._replace(clock=clock, cache=cache)
        memory = jax.tree.map(put, slots.memory, self._scorer.encode(weights, source))
        return self._shard(Slots(state, memory))

    def _resize(self, slots: Slots, origin: jax.Array, shape: Shape) -> Slots:
        """Copy slot `origin`[i] into slot i of another shape; -1 leaves it empty."""
        is_taken, ring = origin >= 0, shape.ring
        sizes = {"width": self._options.beam_size, "length": ring}

        def pick(leaf: jax.Array) -> jax.Array:
            return jnp.take(leaf, jnp.maximum(origin, 0), axis=0) if leaf.ndim else leaf

        def fit(tokens: jax.Array, length: int) -> jax.Array:
            tokens = tokens[..., :length]
            widths = [(0, 0)] * tokens.ndim
            widths[-1] = (0, length - tokens.shape[-1])
            return jnp.pad(tokens, widths, constant_values=PAD)

        state, memory = jax.tree.map(pick, slots)
        requests, finished = state.requests, state.finished
        state = state._replace(
            clock=jnp.full_like(state.clock, ring),
            done=state.done | ~is_taken,
            requests=requests._replace(
                max_lengths=jnp.where(is_taken, requests.max_lengths, 0),
                prefixes=fit(requests.prefixes, shape.prefix),
            ),
            tokens=fit(state.tokens, ring),
            ancestors=resize_ring(state.ancestors, state.clock, axis=2, length=ring),
            finished=finished._replace(tokens=fit(finished.tokens, ring)),
            cache=self._scorer.resize_cache(state.cache, state.clock, **sizes),
        )
        memory = self._scorer.resize_memory(memory, length=shape.source)
        return self._shard(Slots(state, memory))

    def _shard(self, slots: Slots) -> Slots:
        """Shard leaves with rows over the devices; replicate the clock."""
        rows = self._rows
        if rows is None:
            return slots
        replicated = jax.sharding.NamedSharding(rows.mesh, jax.sharding.PartitionSpec())
        shardings = jax.tree.map(lambda leaf: rows if leaf.ndim else replicated, slots)
        return jax.lax.with_sharding_constraint(slots, shardings)
