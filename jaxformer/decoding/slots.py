"""Device programs of continuous batching: begin, fill, advance and resize slots.

Pure functions of arrays, each compiled once for a shape. `jaxformer.decoding.engine`
decides when each runs. The `cache` of a `SearchState` is a pair here: the memory of the
sources, and the cache of the decoder.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import SearchState, advance, start
from jaxformer.decoding.shapes import ProgramShape
from jaxformer.models.sequence_model import pad, resize_ring


class SlotPrograms:
    """The compiled programs; `advance` and `insert` donate the given state.

    `encode` has a program of its own, which does not depend on the length of the ring.
    `rows` shards the slots; the clock is replicated.
    """

    def __init__(
        self,
        scorer: Scorer,
        options: SearchOptions,
        rows: jax.sharding.NamedSharding | None,
    ) -> None:
        self._scorer, self._options, self._rows = scorer, options, rows
        shardings, on_mesh = None, contextlib.nullcontext
        if rows is not None:
            clock = jax.sharding.NamedSharding(rows.mesh, jax.sharding.PartitionSpec())
            shardings = SearchState(clock, *[rows] * (len(SearchState._fields) - 1))
            mesh = rows.mesh.abstract_mesh
            on_mesh = functools.partial(jax.sharding.use_abstract_mesh, mesh)

        def jit(program: Callable, out_shardings: Any = shardings, **how: Any) -> Any:
            @functools.wraps(program)
            def traced(*args: Any, **named: Any) -> Any:
                with on_mesh():  # from which a model reads the platform
                    return program(*args, **named)

            compiled = jax.jit(traced, out_shardings=out_shardings, **how)
            lock = threading.Lock()

            def run(*args: Any) -> Any:
                with lock:  # threads that need a new shape at once compile it once
                    return compiled(*args)

            run.lower = compiled.lower
            return run

        self.encode = jit(self._encode, out_shardings=None)
        self.begin = jit(self._begin, static_argnums=2)
        self.insert = jit(self._insert, donate_argnums=0)
        self.advance = jit(self._advance, donate_argnums=1)
        self.resize = jit(self._resize, static_argnums=2)

    def _encode(self, weights: Any, source: jax.Array) -> Any:
        """Encode sources int32 [B, S]; devices share them if they can do so evenly."""
        memory = self._scorer.encode(weights, source)
        if self._rows is None or len(source) % self._rows.num_devices:
            return memory
        return jax.lax.with_sharding_constraint(memory, self._rows)

    def _begin(self, memory: Any, requests: Requests, ring: int) -> SearchState:
        """Start the memory of B sources in new slots."""
        sizes = {"width": self._options.beam_size, "length": ring}
        batch = len(requests.max_lengths)
        cache = self._scorer.empty_cache(batch=batch, **sizes)
        return start(requests, (memory, cache), **sizes)

    def _insert(
        self, state: SearchState, indices: jax.Array, memory: Any, requests: Requests
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
        self, weights: Any, state: SearchState, steps: jax.Array, until_done: jax.Array
    ) -> SearchState:
        memory, cache = state.cache
        state = advance(
            functools.partial(self._scorer.step, weights, memory),
            state._replace(cache=cache), self._options,
            steps=steps, until_done=until_done,
        )  # fmt: skip
        return state._replace(cache=(memory, state.cache))

    def _resize(
        self, state: SearchState, origin: jax.Array, shape: ProgramShape
    ) -> SearchState:
        """Copy slot `origin`[i] into slot i of another shape; -1 leaves it empty."""
        is_taken, ring = origin >= 0, shape.ring
        sizes = {"width": self._options.beam_size, "length": ring}

        def pick(leaf: jax.Array) -> jax.Array:
            return jnp.take(leaf, jnp.maximum(origin, 0), axis=0) if leaf.ndim else leaf

        def fit(tokens: jax.Array, length: int) -> jax.Array:
            return pad(tokens, 0, length - tokens.shape[-1], axis=-1)  # PAD is 0

        state = jax.tree.map(pick, state)
        requests, finished = state.requests, state.finished
        memory, cache = state.cache
        return state._replace(
            clock=jnp.full_like(state.clock, ring),
            done=state.done | ~is_taken,
            requests=requests._replace(
                max_lengths=jnp.where(is_taken, requests.max_lengths, 0),
                prefixes=fit(requests.prefixes, ring),
            ),
            tokens=fit(state.tokens, ring),
            ancestors=resize_ring(state.ancestors, state.clock, axis=2, length=ring),
            finished=finished._replace(tokens=fit(finished.tokens, ring)),
            cache=(
                self._scorer.resize_memory(memory, length=shape.source),
                self._scorer.resize_cache(cache, state.clock, **sizes),
            ),
        )
