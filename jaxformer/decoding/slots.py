"""What a device does for continuous batching: slots made, filled, advanced, resized.

Pure functions of arrays, each compiled once for a shape. Used by
`jaxformer.decoding.engine`, which decides when. E is how many sentences come in.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import PAD
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import Requests, SearchState, advance, start
from jaxformer.models.sequence_model import Memory, resize_ring


class Slots(NamedTuple):
    """What the device holds: the search, and the sources it translates."""

    state: SearchState
    memory: tuple[Memory, ...]


class Shape(NamedTuple):
    """Sizes that are compiled for."""

    slots: int  # B
    source: int  # S
    ring: int  # L, and N
    prefix: int  # P


class SlotPrograms:
    """The compiled programs; what they are given of `Slots` is theirs to overwrite.

    `rows` says how slots lie on the devices of this process, None on one.
    """

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
        """Slots with nobody in them."""
        width = self._options.beam_size
        nobody = Requests(
            max_lengths=jnp.zeros(shape.slots, jnp.int32),
            min_lengths=jnp.zeros(shape.slots, jnp.int32),
            prefixes=jnp.full((shape.slots, shape.prefix), PAD, jnp.int32),
            seeds=jnp.zeros(shape.slots, jnp.uint32),
        )
        cache = self._scorer.empty_cache(
            batch=shape.slots, width=width, length=shape.ring
        )
        return self._lay_out(
            Slots(
                start(nobody, cache, width=width, length=shape.ring),
                self._scorer.empty_memory(batch=shape.slots, length=shape.source),
            )
        )

    def _advance(
        self, weights: Any, slots: Slots, steps: jax.Array, enough: jax.Array
    ) -> Slots:
        state = advance(
            functools.partial(self._scorer.step, weights, slots.memory),
            slots.state,
            self._options,
            steps=steps,
            enough=enough,
        )
        return self._lay_out(Slots(state, slots.memory))

    def _insert(
        self,
        weights: Any,
        slots: Slots,
        where: jax.Array,
        source: jax.Array,
        requests: Requests,
    ) -> Slots:
        """Encode sources int32 [E, S] and begin them in slots `where` int32 [E]."""
        state = slots.state
        _, width, length = state.tokens.shape
        fresh = start(requests, state.cache, width=width, length=length)

        def put(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[where].set(new, mode="drop")

        rows = _rows_of(state)
        state = state._replace(**jax.tree.map(put, rows, _rows_of(fresh)))
        memory = jax.tree.map(put, slots.memory, self._scorer.encode(weights, source))
        return self._lay_out(Slots(state, memory))

    def _resize(self, slots: Slots, origin: jax.Array, shape: Shape) -> Slots:
        """Slots of another shape; slot i holds what `origin`[i] held, -1: nothing."""
        state, width = slots.state, self._options.beam_size
        is_taken = origin >= 0

        def pick(leaf: jax.Array) -> jax.Array:
            return jnp.take(leaf, jnp.maximum(origin, 0), axis=0)

        def fit(leaf: jax.Array, size: int, value: int) -> jax.Array:
            leaf = leaf[..., :size]
            widths = [(0, 0)] * (leaf.ndim - 1) + [(0, size - leaf.shape[-1])]
            return jnp.pad(leaf, widths, constant_values=value)

        memory = self._scorer.resize_memory(
            jax.tree.map(pick, slots.memory), length=shape.source
        )
        rows = jax.tree.map(pick, _rows_of(state))
        requests, finished = rows["requests"], rows["finished"]
        rows["requests"] = requests._replace(
            max_lengths=jnp.where(is_taken, requests.max_lengths, 0),
            prefixes=fit(requests.prefixes, shape.prefix, PAD),
        )
        rows["done"] = rows["done"] | ~is_taken
        rows["tokens"] = fit(rows["tokens"], shape.ring, PAD)
        rows["finished"] = finished._replace(
            tokens=fit(finished.tokens, shape.ring, PAD)
        )
        ring = functools.partial(self._scorer.resize_cache, length=shape.ring)
        rows["ancestors"] = resize_ring(
            rows["ancestors"], state.clock, axis=2, length=shape.ring
        )
        state = state._replace(
            clock=jnp.full_like(state.clock, shape.ring),
            cache=ring(jax.tree.map(pick, state.cache), state.clock, width=width),
            **rows,
        )
        return self._lay_out(Slots(state, memory))

    def _places(self, slots: Slots) -> Any:
        """Where each leaf lies: those with rows on their devices, the clock on all."""
        rows = self._rows
        if rows is None:
            return jax.tree.map(lambda leaf: None, slots)
        everywhere = jax.sharding.NamedSharding(rows.mesh, jax.sharding.PartitionSpec())
        return jax.tree.map(lambda leaf: rows if leaf.ndim else everywhere, slots)

    def _lay_out(self, slots: Slots) -> Slots:
        if self._rows is None:
            return slots
        return jax.lax.with_sharding_constraint(slots, self._places(slots))


def _rows_of(state: SearchState) -> dict[str, Any]:
    """The parts of a state that belong to its rows and are small."""
    rows = state._asdict()
    del rows["clock"], rows["cache"]
    return rows
