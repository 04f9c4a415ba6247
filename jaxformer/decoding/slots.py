"""Device programs of continuous batching: encode; begin, insert, advance, resize slots.

Pure functions of arrays, each compiled once for a shape. `jaxformer.decoding.engine`
decides when each runs. The `cache` of a `SearchState` is a pair here: the memory of the
sources, and the cache of the decoder.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.search import SearchState, advance, start
from jaxformer.decoding.shapes import ProgramShape
from jaxformer.models.sequence_model import (
    Cache,
    Memory,
    Model,
    Newest,
    Parameters,
    Weights,
    pad,
    resize_ring,
)


class Scorer:
    """One model, or an ensemble with one vocabulary, as the `Decoder` of a search.

    Weights, memories and caches are tuples with one entry for each model.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self._members = [model.decoder for model in models]

    def _each(self, method: str, *own: Weights, **shared: object) -> Weights:
        """Call a method of all members, each with its own and the shared arguments."""
        return tuple(
            getattr(member, method)(*each, **shared)
            for member, *each in zip(self._members, *own, strict=True)
        )

    resize_memory = functools.partialmethod(_each, "resize_memory")
    empty_cache = functools.partialmethod(_each, "empty_cache")

    def weights(self, params: Sequence[Parameters]) -> Weights:
        return self._each("weights", params)

    def encode(self, weights: Weights, source: jax.Array) -> Memory:
        return self._each("encode", weights, source=source)

    def resize_cache(self, cache: Cache, clock: jax.Array, **sizes: int) -> Cache:
        return self._each("resize_cache", cache, clock=clock, **sizes)

    def step(
        self, weights: Weights, memory: Memory, cache: Cache, newest: Newest
    ) -> tuple[jax.Array, Cache]:
        """Score by the log of the members' mean probability; a single one's logits."""
        scored = self._each("step", weights, memory, cache, newest=newest)
        logits, caches = zip(*scored, strict=True)
        if len(logits) == 1:
            return logits[0], caches
        each = jnp.stack([jax.nn.log_softmax(x, axis=0) for x in logits])
        return jax.nn.logsumexp(each, axis=0) - jnp.log(len(logits)), caches


class SlotPrograms:
    """The compiled programs, and the `weights` with which an engine calls them.

    Threads that need a new shape at once compile it once, while others run known ones.
    `advance` and `insert` donate the given state. `encode` has a program of its own,
    which does not depend on the length of the ring. `rows` shards the slots over the
    devices of this process; the clock is replicated. Replace `weights` only while no
    task is in flight.
    """

    def __init__(
        self, scorer: Scorer, options: SearchOptions, rows: jax.sharding.NamedSharding
    ) -> None:
        self._scorer, self.options, self._rows = scorer, options, rows
        self.weights: Weights = None
        self.devices = rows.num_devices
        clock = jax.sharding.NamedSharding(rows.mesh, jax.sharding.PartitionSpec())
        states = SearchState(clock, *[rows] * (len(SearchState._fields) - 1))

        def jit(
            program: Callable, out_shardings: SearchState | None = states, **how: int
        ) -> Callable:
            @functools.wraps(program)
            def traced(*args: object) -> object:
                # A model reads the platform from the mesh.
                with jax.sharding.use_abstract_mesh(rows.mesh.abstract_mesh):
                    return program(*args)

            return jax.jit(traced, out_shardings=out_shardings, **how)

        self.encode = jit(self._encode, out_shardings=None)
        self.begin = jit(self._begin, static_argnums=2)
        self.insert = jit(self._insert, donate_argnums=0)
        self.advance = jit(self._advance, donate_argnums=1)
        self.resize = jit(self._resize, static_argnums=2)

    def _encode(self, weights: Weights, source: jax.Array) -> Memory:
        """Encode sources int32 [B, S]; devices share them if they can do so evenly."""
        memory = self._scorer.encode(weights, source)
        if len(source) % self.devices:
            return memory
        return jax.lax.with_sharding_constraint(memory, self._rows)

    def _begin(self, memory: Memory, requests: Requests, ring: int) -> SearchState:
        """Start the memory of B sources in new slots."""
        batch, width = len(requests.max_lengths), self.options.beam_size
        cache = self._scorer.empty_cache(batch=batch, width=width, length=ring)
        return start(requests, (memory, cache), width=width, length=ring)

    def _insert(
        self, state: SearchState, indices: jax.Array, memory: Memory, requests: Requests
    ) -> SearchState:
        """Start the memory of E sources in slots `indices` int32 [E]."""
        new = self._begin(memory, requests, state.tokens.shape[2])

        def put(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[indices].set(new, mode="drop")

        def only_rows(state: SearchState) -> SearchState:
            return state._replace(clock=None, cache=state.cache[0])

        rows = jax.tree.map(put, only_rows(state), only_rows(new))
        return rows._replace(clock=state.clock, cache=(rows.cache, state.cache[1]))

    def _advance(
        self, weights: Weights, state: SearchState, steps: jax.Array, until: jax.Array
    ) -> SearchState:
        """Take `steps` steps, or fewer: stop as soon as `until` slots are done."""
        memory, cache = state.cache
        state = advance(
            functools.partial(self._scorer.step, weights, memory),
            state._replace(cache=cache), self.options, steps=steps, until_done=until,
        )  # fmt: skip
        return state._replace(cache=(memory, state.cache))

    def _resize(
        self, state: SearchState, origin: jax.Array, shape: ProgramShape
    ) -> SearchState:
        """Copy slot `origin`[i] into slot i of another shape; -1 leaves it empty."""
        ring, width = shape.ring, self.options.beam_size

        def pick(leaf: jax.Array) -> jax.Array:
            return jnp.take(leaf, jnp.maximum(origin, 0), axis=0) if leaf.ndim else leaf

        def fit(rows: jax.Array) -> jax.Array:
            return pad(rows, 0, ring - rows.shape[-1], axis=-1)  # PAD is 0

        state = jax.tree.map(pick, state)
        requests, finished = state.requests, state.finished
        memory, cache = state.cache
        memory = self._scorer.resize_memory(memory, length=shape.source)
        cache = self._scorer.resize_cache(cache, state.clock, width=width, length=ring)
        return state._replace(
            clock=jnp.full_like(state.clock, ring),
            done=state.done | (origin < 0),
            requests=requests._replace(prefixes=fit(requests.prefixes)),
            tokens=fit(state.tokens),
            sums=fit(state.sums),
            ancestors=resize_ring(state.ancestors, state.clock, axis=2, length=ring),
            finished=finished._replace(
                tokens=fit(finished.tokens), sums=fit(finished.sums)
            ),
            cache=(memory, cache),
        )
