"""Greedy, beam and sampling search (section 6.1) as pure functions, inside `jax.jit`.

The search sees a step function and never a model:

    step_fn(tokens, ages, clock, ancestors, cache) -> (logits f32[V, B, W], cache)

`tokens` int32 [B, W] are the newest tokens (BOS at age 0) of W hypotheses of B
sentences, and `ages` int32 [B] how many tokens each has. The cache never moves: what a
step stores at place `clock` mod L for hypothesis w stays there, and `ancestors` int32
[B, W, L] tells, for each hypothesis, which of the W wrote each place of its past. The
newest `ages` + 1 places are its own.

Rows of a batch never meet here and need not have begun together: a sentence may take
the place of a finished one at any step (`jaxformer.decoding.engine`).

What counts as a hypothesis, for all searches:

- It ends with EOS, and its length n counts EOS. At its last allowed place only EOS can
  be chosen, so every hypothesis is complete and its log P is that of the text returned.
- PAD, UNK and BOS are never produced: none of them stands for text. Probabilities are
  still normalised over the whole vocabulary, and before any rule or temperature, so
  log P is what teacher forcing gives.
- A row with maximal length 0 only fills the batch: it takes no steps, and its result is
  length 0, nothing but PAD, log P of -inf.

N is the number of steps, the other letters are those of `jaxformer.models.attention`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import BOS, EOS, PAD
from jaxformer.decoding.candidates import Rules, sampled_token, top_candidates
from jaxformer.decoding.options import SearchOptions

Cache = Any  # a pytree of arrays
StepFunction = Callable[..., tuple[jax.Array, Cache]]


class Requests(NamedTuple):
    """What each sentence asks for."""

    max_lengths: jax.Array  # int32 [B], EOS included; 0 marks an empty row
    min_lengths: jax.Array  # int32 [B], EOS included
    prefixes: jax.Array  # int32 [B, P], PAD after the end: how each translation begins
    seeds: jax.Array  # uint32 [B], of sampling


class SearchResult(NamedTuple):
    """Finished hypotheses of each sentence; those of a beam best first.

    A slot that no hypothesis fills (a short limit allows fewer than W) has length 0,
    nothing but PAD and -inf twice.
    """

    tokens: jax.Array  # int32 [B, W, N], PAD after EOS
    lengths: jax.Array  # int32 [B, W], including EOS
    scores: jax.Array  # f32 [B, W], log P / length penalty
    log_probabilities: jax.Array  # f32 [B, W], log P, natural logarithm


class SearchState(NamedTuple):
    """A search between two steps; N = L, the places of the ring."""

    clock: jax.Array  # int32 [], steps made
    ages: jax.Array  # int32 [B], tokens made by each row
    done: jax.Array  # bool [B]
    requests: Requests
    previous: jax.Array  # int32 [B, W], the last token of each live hypothesis
    tokens: jax.Array  # int32 [B, W, N], live hypotheses, PAD from `ages` on
    log_probabilities: jax.Array  # f32 [B, W], best first; -inf marks an empty slot
    ancestors: jax.Array  # int32 [B, W, L]
    finished: SearchResult
    cache: Cache


class _Extensions(NamedTuple):
    """Live hypotheses grown by one token, best first: C = 2W, or W of them."""

    log_probabilities: jax.Array  # f32 [B, C]; -inf marks an empty slot
    parents: jax.Array  # int32 [B, C], which live hypothesis was grown
    tokens: jax.Array  # int32 [B, C]


def no_rules(max_lengths: jax.Array) -> Requests:
    """Requests that only limit lengths, int32 [B]."""
    zeros = jnp.zeros_like(max_lengths)
    prefixes = jnp.full((max_lengths.shape[0], 0), PAD, jnp.int32)
    return Requests(max_lengths, zeros, prefixes, zeros.astype(jnp.uint32))


def search(
    step_fn: StepFunction,
    cache: Cache,
    requests: Requests,
    options: SearchOptions,
    *,
    max_steps: int,
) -> SearchResult:
    """Search all rows from their beginning to the end of the last.

    `max_steps` = N limits all rows, and the ring of `cache` has as many places.
    """
    limits = jnp.minimum(requests.max_lengths, max_steps)
    state = start(
        requests._replace(max_lengths=limits),
        cache,
        width=options.beam_size,
        length=max_steps,
    )
    return advance(
        step_fn, state, options, steps=max_steps, enough=limits.shape[0]
    ).finished


def start(requests: Requests, cache: Cache, *, width: int, length: int) -> SearchState:
    """Every row at its beginning: BOS alone; width W, and `length` places = N = L."""
    batch = requests.max_lengths.shape[0]
    shape = (batch, width)
    empty = jnp.full(shape, -jnp.inf, jnp.float32)
    no_tokens = jnp.full((*shape, length), PAD, jnp.int32)
    return SearchState(
        clock=jnp.int32(0),
        ages=jnp.zeros(batch, jnp.int32),
        done=requests.max_lengths < 1,
        requests=requests,
        previous=jnp.full(shape, BOS, jnp.int32),
        tokens=no_tokens,
        log_probabilities=empty.at[:, 0].set(0.0),
        ancestors=jnp.broadcast_to(
            jnp.arange(width, dtype=jnp.int32)[None, :, None], (*shape, length)
        ),
        finished=SearchResult(no_tokens, jnp.zeros(shape, jnp.int32), empty, empty),
        cache=cache,
    )


def advance(
    step_fn: StepFunction,
    state: SearchState,
    options: SearchOptions,
    *,
    steps: jax.Array | int,
    enough: jax.Array | int,
) -> SearchState:
    """Take up to `steps` steps, fewer if `enough` rows are done before.

    Of a beam, each step grows the W live hypotheses and ranks all extensions by log P.
    Those that end with EOS among the first W compete by score for the W finished
    places; the first W that do not end live on. An EOS of lower rank is dropped, so
    that improbable early ends do not win by being short, and so that W = 1 is greedy.

    A sentence is done when no live hypothesis can still become one of its `n_best`, so
    that stopping never changes them.
    """
    end = state.clock + steps
    step = _beam_step if options.is_beam else _independent_step

    def go_on(state: SearchState) -> jax.Array:
        return (state.clock < end) & (state.done.sum() < enough)

    def body(state: SearchState) -> SearchState:
        return step(step_fn, state, options)

    return jax.lax.while_loop(go_on, body, state)


def _score(
    step_fn: StepFunction, state: SearchState
) -> tuple[jax.Array, jax.Array, Cache]:
    """Logits [V, B, W], the ancestors with this step's place, and the cache."""
    _, width, length = state.ancestors.shape
    own = jnp.arange(width, dtype=jnp.int32)[None, :, None]
    is_here = (jnp.arange(length) == state.clock % length)[None, None]
    ancestors = jnp.where(is_here, own, state.ancestors)
    logits, cache = step_fn(
        state.previous, state.ages, state.clock, ancestors, state.cache
    )
    return logits, ancestors, cache


def _rules(state: SearchState, options: SearchOptions) -> Rules:
    """What may be chosen at this step."""
    lengths = state.ages + 1
    at_limit = state.requests.max_lengths <= lengths
    forced = jnp.where(at_limit, EOS, PAD)
    prefixes = state.requests.prefixes
    if prefixes.shape[1]:
        place = jnp.minimum(state.ages, prefixes.shape[1] - 1)
        given = jnp.take_along_axis(prefixes, place[:, None], axis=1)[:, 0]
        given = jnp.where(state.ages < prefixes.shape[1], given, PAD)
        forced = jnp.where(given != PAD, given, forced)
    banned = None
    if options.no_repeat_ngram:
        banned = _repeating(state, options.no_repeat_ngram)
    return Rules(forced, state.requests.min_lengths > lengths, banned)


def _repeating(state: SearchState, n: int) -> jax.Array:
    """Tokens that would repeat an n-gram: int32 [B, W, N - n + 1], PAD for none."""
    tokens, ages = state.tokens, state.ages
    steps = tokens.shape[2]
    windows = max(steps - n + 1, 0)
    repeats = jnp.ones((*tokens.shape[:2], windows), bool)
    for i in range(n - 1):  # does window j begin with the last n - 1 tokens?
        place = jnp.clip(ages - (n - 1) + i, 0, steps - 1)[:, None, None]
        last = jnp.take_along_axis(tokens, place, axis=2)  # [B, W, 1]
        repeats &= tokens[:, :, i : i + windows] == last
    ends = jnp.arange(windows) + n - 1  # where the last token of each window is
    is_past = ends[None, :] < ages[:, None]  # [B, windows]
    return jnp.where(repeats & is_past[:, None], tokens[:, :, n - 1 :], PAD)


def _beam_step(
    step_fn: StepFunction, state: SearchState, options: SearchOptions
) -> SearchState:
    """One step of a beam search."""
    logits, ancestors, cache = _score(step_fn, state)
    width = options.beam_size
    extensions = _best_extensions(
        logits, state.log_probabilities, _rules(state, options)
    )
    finished = _keep_finished(state, extensions, options)
    live = _keep_live(extensions, width)
    # log P only falls: the best that can still happen to a live hypothesis is the
    # largest penalty to divide by.
    limits = state.requests.max_lengths
    penalty = length_penalty(limits, options.alpha, options.length_penalty)
    bound = live.log_probabilities[:, 0] / penalty  # [B]
    return state._replace(
        clock=state.clock + 1,
        ages=state.ages + ~state.done,
        done=state.done | (bound <= finished.scores[:, options.n_best - 1]),
        previous=live.tokens,
        tokens=_grow(state, live),
        log_probabilities=live.log_probabilities,
        ancestors=_reorder(ancestors, live.parents),
        finished=finished,
        cache=cache,
    )


def _independent_step(
    step_fn: StepFunction, state: SearchState, options: SearchOptions
) -> SearchState:
    """One step of W hypotheses that know nothing of each other: greedy, or samples."""
    logits, ancestors, cache = _score(step_fn, state)
    rules = _rules(state, options)
    if options.is_sampling:
        keys = _keys(state)
        token, gain = sampled_token(
            logits,
            rules,
            keys,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
        )
    else:
        best, tokens, normaliser = top_candidates(logits, rules, 1)
        token, gain = tokens[:, :, 0], best[:, :, 0] - normaliser
    finished = state.finished
    is_live = (finished.lengths == 0) & ~state.done[:, None]  # [B, W]
    before = state.log_probabilities
    if options.is_sampling:  # all W begin at once, where a beam begins with one
        before = jnp.where(state.ages[:, None] == 0, 0.0, before)
    log_probabilities = jnp.where(is_live, before + gain, before)
    token = jnp.where(is_live, token, PAD)
    tokens = jnp.where(
        _is_newest(state) & is_live[:, :, None], token[:, :, None], state.tokens
    )
    ends = is_live & (token == EOS)
    lengths = jnp.where(ends, state.ages[:, None] + 1, finished.lengths)
    score = log_probabilities / length_penalty(
        lengths, options.alpha, options.length_penalty
    )
    finished = SearchResult(
        tokens=jnp.where(ends[:, :, None], tokens, finished.tokens),
        lengths=lengths,
        scores=jnp.where(ends, score, finished.scores),
        log_probabilities=jnp.where(
            ends, log_probabilities, finished.log_probabilities
        ),
    )
    return state._replace(
        clock=state.clock + 1,
        ages=state.ages + ~state.done,
        done=state.done | (finished.lengths > 0).all(axis=1),
        previous=token,
        tokens=tokens,
        log_probabilities=log_probabilities,
        ancestors=ancestors,
        finished=finished,
        cache=cache,
    )


def _keys(state: SearchState) -> jax.Array:
    """A key for each hypothesis and step, of (seed, age, w) alone: [B, W]."""

    def key(seed: jax.Array, age: jax.Array, w: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), age), w)

    of_row = jax.vmap(key, (None, None, 0))
    writers = jnp.arange(state.previous.shape[1])
    return jax.vmap(of_row, (0, 0, None))(state.requests.seeds, state.ages, writers)


def _reorder(tree: Any, slots: jax.Array) -> Any:
    """Each leaf [B, W, ...] at `slots` int32 [B, W'] of its axis 1: [B, W', ...]."""

    def pick(leaf: jax.Array) -> jax.Array:
        index = slots.reshape(slots.shape + (1,) * (leaf.ndim - 2))
        return jnp.take_along_axis(leaf, index, axis=1, mode="promise_in_bounds")

    return jax.tree.map(pick, tree)


def _is_newest(state: SearchState) -> jax.Array:
    """Where this step's token goes: bool [B, 1, N]."""
    places = jnp.arange(state.tokens.shape[2])
    return places[None, None, :] == state.ages[:, None, None]


def _grow(state: SearchState, extensions: _Extensions) -> jax.Array:
    """All tokens of the extended hypotheses: int32 [B, C, N]."""
    tokens = _reorder(state.tokens, extensions.parents)
    return jnp.where(_is_newest(state), extensions.tokens[:, :, None], tokens)


def _best_extensions(
    logits: jax.Array, log_probabilities: jax.Array, rules: Rules
) -> _Extensions:
    """The 2W most probable one-token extensions of W live hypotheses.

    At most W of them end, one for each hypothesis, so at least W can live on.
    """
    vocabulary, batch, width = logits.shape
    k = min(2 * width, vocabulary)
    best, tokens, normaliser = top_candidates(logits, rules, k)  # [B, W, k], [B, W]
    # The normaliser is subtracted from what is kept instead of from all V logits.
    gains = best - normaliser[:, :, None]
    grown = log_probabilities[:, :, None] + gains  # [B, W, k]
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
    state: SearchState, extensions: _Extensions, options: SearchOptions
) -> SearchResult:
    """The W best of the finished hypotheses and those that end now.

    A sentence that is done keeps what it has, whatever its row still computes.
    """
    width = options.beam_size
    best = _Extensions(*(x[:, :width] for x in extensions))  # [B, W]
    ends = (best.tokens == EOS) & ~state.done[:, None]
    log_probabilities = jnp.where(ends, best.log_probabilities, -jnp.inf)
    lengths = jnp.broadcast_to(state.ages[:, None] + 1, ends.shape)
    penalty = length_penalty(lengths, options.alpha, options.length_penalty)
    ending = SearchResult(
        tokens=_grow(state, best),
        lengths=lengths,
        scores=log_probabilities / penalty,
        log_probabilities=log_probabilities,
    )
    # Earlier ones first: top_k prefers them when scores are equal, so an empty slot is
    # never replaced by a hypothesis of -inf.
    both = jax.tree.map(
        lambda old, new: jnp.concatenate([old, new], axis=1), state.finished, ending
    )  # [B, 2W, ...]
    return _reorder(both, jax.lax.top_k(both.scores, width)[1])


def length_penalty(lengths: jax.Array, alpha: float, kind: str = "gnmt") -> jax.Array:
    """What log P is divided by for n tokens, EOS included: f32, shaped as `lengths`.

    "gnmt" is ((5 + n) / 6)^alpha: section 6.1 takes it from Wu et al. (2016), equation
    14, where |Y| is the length of the output; tensor2tensor, which trained the paper's
    models, counts EOS, as here. "power" is n^alpha.
    """
    n = lengths.astype(jnp.float32)
    base = (5 + n) / 6 if kind == "gnmt" else jnp.maximum(n, 1)
    return base**alpha
