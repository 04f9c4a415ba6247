"""Greedy and beam search (section 6.1) as pure functions that run inside `jax.jit`.

The search sees a step function and never a model:

    step_fn(tokens: int32[B, W], step: int32[], cache) -> (logits: f32[B, W, V], cache)

`tokens` are the previous tokens (BOS at step 0) of W hypotheses of B sentences. Every
leaf of `cache` has leading axes [B, W, ...] and follows its hypothesis when the search
re-orders them along W; what does not change (encoder output, keys and values of the
cross-attention) is closed over by `step_fn`. Rows of a batch never meet here, so a
translation depends on its neighbours only if `step_fn` lets it.

What counts as a hypothesis, for both searches:

- It ends with EOS, and its length n counts EOS. At its last allowed place only EOS can
  be chosen, so every hypothesis is complete and its log P is that of the text returned.
- PAD, UNK and BOS are never produced: none of them stands for text. Probabilities are
  still normalised over the whole vocabulary, so log P is what teacher forcing gives.
- A row with maximal length 0 only fills the batch: it takes no steps, and its result is
  length 0, nothing but PAD, log P of -inf.

Used by `jaxformer.decoding.translate`. N is the number of steps, the other letters are
those of `jaxformer.model.attention`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import BOS, EOS, PAD
from jaxformer.errors import InputError

Cache = Any  # a pytree of arrays [B, W, ...]
StepFunction = Callable[[jax.Array, jax.Array, Cache], tuple[jax.Array, Cache]]

# Ids in a block of the two-level selection; the best on a CPU lie between 16 and 64.
_BLOCK = 32


class SearchResult(NamedTuple):
    """Finished hypotheses of each sentence, best first.

    A slot that no hypothesis fills (a short limit allows fewer than W) has length 0,
    nothing but PAD and -inf twice.
    """

    tokens: jax.Array  # int32 [B, W, N], PAD after EOS
    lengths: jax.Array  # int32 [B, W], including EOS
    scores: jax.Array  # f32 [B, W], log P / length_penalty
    log_probabilities: jax.Array  # f32 [B, W], log P, natural logarithm


class _Extensions(NamedTuple):
    """Live hypotheses grown by one token, best first: C = 2W, or W of them."""

    log_probabilities: jax.Array  # f32 [B, C]; -inf marks an empty slot
    parents: jax.Array  # int32 [B, C], which live hypothesis was grown
    tokens: jax.Array  # int32 [B, C]


class _BeamState(NamedTuple):
    step: jax.Array  # int32 []
    done: jax.Array  # bool [B]
    previous: jax.Array  # int32 [B, W], the last token of each live hypothesis
    tokens: jax.Array  # int32 [B, W, N], live hypotheses, PAD from `step` on
    log_probabilities: jax.Array  # f32 [B, W], best first; -inf marks an empty slot
    finished: SearchResult
    cache: Cache


def length_penalty(lengths: jax.Array, alpha: float) -> jax.Array:
    """((5 + n) / 6)^alpha for n tokens, EOS included: f32, the shape of `lengths`.

    Section 6.1 takes it from Wu et al. (2016), equation 14, where |Y| is the length of
    the output; tensor2tensor, which trained the paper's models, counts EOS, as here.
    """
    return ((5 + lengths.astype(jnp.float32)) / 6) ** alpha


def greedy_search(
    step_fn: StepFunction, cache: Cache, *, max_lengths: jax.Array, max_steps: int
) -> SearchResult:
    """The most probable next token at every step, until EOS.

    `max_lengths` int32 [B] limits the tokens of each sentence, EOS included, and is
    itself limited to `max_steps` = N. Leaves of `cache` are [B, 1, ...]. Returns W = 1;
    `scores` equals `log_probabilities`.
    """
    limits = jnp.minimum(max_lengths, max_steps)  # [B]
    batch = limits.shape[0]

    def is_unfinished(state):
        return (state[0] < max_steps) & ~state[1].all()

    def advance(state):
        step, done, previous, tokens, lengths, log_probabilities, cache = state
        logits, cache = step_fn(previous, step, cache)  # [B, 1, V]
        best, token = top_candidates(logits, limits <= step + 1, 1)  # [B, 1, 1]
        normaliser = jax.nn.logsumexp(logits, axis=2, keepdims=True)  # [B, 1, 1]
        gain = (best - normaliser)[:, :, 0]  # [B, 1]
        token = jnp.where(done[:, None], PAD, token[:, :, 0])  # [B, 1]
        return (
            step + 1,
            done | (token[:, 0] == EOS),
            token,
            jax.lax.dynamic_update_index_in_dim(tokens, token, step, axis=2),
            lengths + ~done[:, None],
            jnp.where(done[:, None], log_probabilities, log_probabilities + gain),
            cache,
        )

    is_filler = limits < 1
    *_, tokens, lengths, log_probabilities, _ = jax.lax.while_loop(
        is_unfinished,
        advance,
        (
            jnp.int32(0),
            is_filler,
            jnp.full((batch, 1), BOS, jnp.int32),
            jnp.full((batch, 1, max_steps), PAD, jnp.int32),
            jnp.zeros((batch, 1), jnp.int32),
            jnp.where(is_filler, -jnp.inf, 0.0)[:, None],  # [B, 1]
            cache,
        ),
    )
    return SearchResult(tokens, lengths, log_probabilities, log_probabilities)


def beam_search(
    step_fn: StepFunction,
    cache: Cache,
    *,
    max_lengths: jax.Array,
    max_steps: int,
    beam_size: int,
    alpha: float,
) -> SearchResult:
    """The W best finished hypotheses by log P / length_penalty (section 6.1).

    `max_lengths` int32 [B] limits the tokens of each sentence, EOS included, and is
    itself limited to `max_steps` = N. W is `beam_size`.

    Each step grows the W live hypotheses and ranks all extensions by log P. Those that
    end with EOS among the first W compete by score for the W finished places; the first
    W that do not end live on. An EOS of lower rank is dropped, so that improbable early
    ends do not win by being short, and so that W = 1 with alpha 0 is greedy search.

    A sentence stops when no live hypothesis can still enter its finished list, so that
    stopping never changes the result. Raises InputError for `beam_size` < 1, and for
    `alpha` < 0, with which that bound would not hold.
    """
    if beam_size < 1:
        raise InputError(f"decoding.beam_size is {beam_size}; set it to 1 or more.")
    if alpha < 0:
        raise InputError(f"decoding.alpha is {alpha}; set it to 0 or more.")
    limits = jnp.minimum(max_lengths, max_steps)  # [B]

    def is_unfinished(state: _BeamState) -> jax.Array:
        return (state.step < max_steps) & ~state.done.all()

    def advance(state: _BeamState) -> _BeamState:
        logits, cache = step_fn(state.previous, state.step, state.cache)  # [B, W, V]
        at_limit = limits <= state.step + 1  # [B]
        extensions = _best_extensions(logits, state.log_probabilities, at_limit)
        finished = _keep_finished(state, extensions, alpha)
        live = _keep_live(extensions, beam_size)
        # log P only falls: the best that can still happen to a live hypothesis is the
        # largest penalty to divide by.
        bound = live.log_probabilities[:, 0] / length_penalty(limits, alpha)  # [B]
        return _BeamState(
            step=state.step + 1,
            done=state.done | (bound <= finished.scores[:, -1]),
            previous=live.tokens,
            tokens=_grow(state, live),
            log_probabilities=live.log_probabilities,
            finished=finished,
            cache=_reorder(cache, live.parents),
        )

    start = _initial_state(cache, limits, max_steps, beam_size)
    return jax.lax.while_loop(is_unfinished, advance, start).finished


def top_candidates(
    logits: jax.Array, at_limit: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """The k largest allowed logits of each hypothesis, and their ids: both [B, W, k].

    `at_limit` bool [B] says where only EOS is allowed; forbidden ids come last, as
    -inf. Equals `lax.top_k` of the masked logits, ties included, in roughly half its
    time on a CPU (V of 8,000 to 40,000): the k largest values lie in the k blocks with
    the largest maxima, since any other block has k values before it, and maxima are
    cheap.
    """
    batch, width, vocabulary = logits.shape
    at_limit = at_limit[:, None, None]  # [B, 1, 1]
    ids = jnp.arange(vocabulary, dtype=jnp.int32)[None, None]  # [1, 1, V]
    allowed = jnp.where(_is_allowed(ids, at_limit), logits, -jnp.inf)  # [B, W, V]
    if vocabulary <= 2 * k * _BLOCK:
        return jax.lax.top_k(allowed, k)

    missing = -vocabulary % _BLOCK
    padding = ((0, 0), (0, 0), (0, missing))
    blocks = jnp.pad(allowed, padding, constant_values=-jnp.inf)
    maxima = blocks.reshape(batch, width, -1, _BLOCK).max(axis=3)  # [B, W, blocks]
    # Ascending blocks keep equal values in the order of their ids.
    chosen = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=2)  # [B, W, k]
    places = jnp.arange(_BLOCK, dtype=jnp.int32)[None, None, None]
    ids = (chosen[..., None] * _BLOCK + places).reshape(batch, width, k * _BLOCK)
    # Gathering from `logits` and masking again spares a masked copy of size [B, W, V].
    inside = jnp.take_along_axis(logits, jnp.minimum(ids, vocabulary - 1), axis=2)
    is_real = _is_allowed(ids, at_limit) & (ids < vocabulary)
    best, index = jax.lax.top_k(jnp.where(is_real, inside, -jnp.inf), k)  # [B, W, k]
    return best, jnp.take_along_axis(ids, index, axis=2)


def _is_allowed(ids: jax.Array, at_limit: jax.Array) -> jax.Array:
    """EOS always; words, whose ids follow EOS, before the last allowed place."""
    return (ids == EOS) | ((ids > EOS) & ~at_limit)


def _reorder(tree: Any, slots: jax.Array) -> Any:
    """Each leaf [B, W, ...] at `slots` int32 [B, W'] of its axis 1: [B, W', ...]."""

    def pick(leaf: jax.Array) -> jax.Array:
        index = slots.reshape(slots.shape + (1,) * (leaf.ndim - 2))
        return jnp.take_along_axis(leaf, index, axis=1, mode="promise_in_bounds")

    return jax.tree.map(pick, tree)


def _grow(state: _BeamState, extensions: _Extensions) -> jax.Array:
    """All tokens of the extended hypotheses: int32 [B, W, N]."""
    tokens = _reorder(state.tokens, extensions.parents)
    return jax.lax.dynamic_update_index_in_dim(
        tokens, extensions.tokens, state.step, axis=2
    )


def _initial_state(
    cache: Cache, limits: jax.Array, max_steps: int, beam_size: int
) -> _BeamState:
    """One live hypothesis, BOS alone, in a beam of otherwise empty slots."""
    shape = (limits.shape[0], beam_size)  # [B, W]
    empty = jnp.full(shape, -jnp.inf, jnp.float32)
    no_tokens = jnp.full((*shape, max_steps), PAD, jnp.int32)
    return _BeamState(
        step=jnp.int32(0),
        done=limits < 1,
        previous=jnp.full(shape, BOS, jnp.int32),
        tokens=no_tokens,
        log_probabilities=empty.at[:, 0].set(0.0),
        finished=SearchResult(no_tokens, jnp.zeros(shape, jnp.int32), empty, empty),
        cache=cache,
    )


def _best_extensions(
    logits: jax.Array, log_probabilities: jax.Array, at_limit: jax.Array
) -> _Extensions:
    """The 2W most probable one-token extensions of W live hypotheses.

    At most W of them end, one for each hypothesis, so at least W can live on.
    """
    batch, width, vocabulary = logits.shape
    k = min(2 * width, vocabulary)
    best, tokens = top_candidates(logits, at_limit, k)  # [B, W, k]
    # The normaliser is subtracted from what is kept instead of from all V logits.
    normaliser = jax.nn.logsumexp(logits, axis=2, keepdims=True)  # [B, W, 1]
    grown = log_probabilities[:, :, None] + (best - normaliser)  # [B, W, k]
    grown, index = jax.lax.top_k(grown.reshape(batch, width * k), 2 * width)
    tokens = jnp.take_along_axis(tokens.reshape(batch, width * k), index, axis=1)
    return _Extensions(grown, index // k, tokens)


def _keep_live(extensions: _Extensions, width: int) -> _Extensions:
    """The W best extensions that do not end."""
    ends = extensions.tokens == EOS
    log_probabilities = jnp.where(ends, -jnp.inf, extensions.log_probabilities)
    slots = jax.lax.top_k(log_probabilities, width)[1]  # [B, W]
    return _reorder(extensions._replace(log_probabilities=log_probabilities), slots)


def _keep_finished(
    state: _BeamState, extensions: _Extensions, alpha: float
) -> SearchResult:
    """The W best of the finished hypotheses and those that end now.

    A sentence that is done keeps what it has, whatever its row still computes.
    """
    width = state.previous.shape[1]
    best = _Extensions(*(x[:, :width] for x in extensions))  # [B, W]
    ends = (best.tokens == EOS) & ~state.done[:, None]
    log_probabilities = jnp.where(ends, best.log_probabilities, -jnp.inf)
    lengths = jnp.full_like(best.tokens, state.step + 1)
    ending = SearchResult(
        tokens=_grow(state, best),
        lengths=lengths,
        scores=log_probabilities / length_penalty(lengths, alpha),
        log_probabilities=log_probabilities,
    )
    # Earlier ones first: top_k prefers them when scores are equal, so an empty slot is
    # never replaced by a hypothesis of -inf.
    both = jax.tree.map(
        lambda old, new: jnp.concatenate([old, new], axis=1), state.finished, ending
    )  # [B, 2W, ...]
    return _reorder(both, jax.lax.top_k(both.scores, width)[1])
