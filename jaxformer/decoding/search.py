"""Greedy, beam and sampling search (section 6.1) as pure functions, inside `jax.jit`.

The search calls a `StepFunction` and never a model. This is `step` of
`jaxformer.models.sequence_model.Decoder` for given sources. Rows of a batch are
independent, and each may begin at any step (`jaxformer.decoding.engine`).

All searches share these rules:

- A hypothesis ends with EOS, and its length n counts EOS. EOS is forced at the maximal
  length, so log P is always that of a complete sentence.
- Probabilities are normalised over the whole vocabulary, before any rule
  (`jaxformer.decoding.rules`) or temperature, so log P is that of teacher forcing.
- A row with maximal length 0 is empty: it takes no steps.

N is the longest output, C counts extensions of hypotheses; the other letters are those
of `jaxformer.models.arrays`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32, Key, PyTree, Shaped, UInt32

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.phrases import (
    Progress,
    grow,
    no_progress,
    share_beam,
    with_next_pieces,
)
from jaxformer.decoding.rules import (
    Requests,
    Rules,
    rules_of_step,
    sampled_token,
    top_candidates,
)
from jaxformer.models.sequence_model import Cache, Newest
from jaxformer.tokens import BOS, EOS, PAD

Logits = Float32[Array, "V B W"]
StepFunction = Callable[[Cache, Newest], tuple[Logits, Cache]]
Leaf = Shaped[Array, "B W *N"]


class SearchResult(NamedTuple):
    """Finished hypotheses of each sentence; those of a beam best first.

    Fewer than W may exist if the limit is short. The other entries have length 0, PAD
    for tokens, and -inf for both scores.
    """

    tokens: Int32[Array, "B W N"]  # PAD after EOS
    lengths: Int32[Array, "B W"]  # including EOS
    scores: Float32[Array, "B W"]  # log P / length penalty
    log_probabilities: Float32[Array, "B W"]  # log P, natural logarithm
    sums: Float32[Array, "B W N"]  # log P up to each token, 0 after EOS


class SearchState(NamedTuple):
    """A search between two steps; N = L, the size of the cache's ring buffer."""

    clock: Int32[Array, ""]  # steps taken
    ages: Int32[Array, " B"]  # tokens of each live hypothesis
    done: Bool[Array, " B"]
    requests: Requests
    previous: Int32[Array, "B W"]  # the last token of each live hypothesis
    tokens: Int32[Array, "B W N"]  # live hypotheses, PAD from `ages` on
    sums: Float32[Array, "B W N"]  # their log P up to each token
    log_probabilities: Float32[Array, "B W"]  # best first; -inf: no hypothesis
    ancestors: Int32[Array, "B W L"]  # which of W wrote each entry that w sees
    progress: Progress | None  # of phrases, which all requests have or none
    finished: SearchResult
    cache: Cache


class _Extensions(NamedTuple):
    """Live hypotheses with one more token: C = 2W best first, or C = W."""

    log_probabilities: Float32[Array, "B C"]  # -inf: no hypothesis
    parents: Int32[Array, "B C"] | None  # indices of hypotheses; None: 0 ... W - 1
    tokens: Int32[Array, "B C"]


def search(
    step_fn: StepFunction,
    cache: Cache,
    requests: Requests,
    options: SearchOptions,
    *,
    max_steps: int,
) -> SearchResult:
    """Search all rows together until the last is done.

    `max_steps` = N = L, the size of the ring; no maximal length may exceed it.
    """
    state = start(requests, cache, width=options.beam_size, length=max_steps)
    rows = requests.max_lengths.shape[0]
    return advance(step_fn, state, options, steps=max_steps, until_done=rows).finished


def start(requests: Requests, cache: Cache, *, width: int, length: int) -> SearchState:
    """Begin every row: BOS alone; W = `width` and N = L = `length`."""
    shape = (requests.max_lengths.shape[0], width)
    empty = jnp.full(shape, -jnp.inf, jnp.float32)
    no_tokens = jnp.full((*shape, length), PAD, jnp.int32)
    no_sums, no_lengths = jnp.float32(no_tokens), jnp.zeros(shape, jnp.int32)
    return SearchState(
        clock=jnp.int32(0),
        ages=jnp.zeros_like(requests.max_lengths),
        done=requests.max_lengths < 1,
        requests=requests,
        previous=jnp.full(shape, BOS, jnp.int32),
        tokens=no_tokens,
        sums=no_sums,
        log_probabilities=empty.at[:, 0].set(0.0),
        ancestors=jnp.broadcast_to(
            jnp.arange(width, dtype=jnp.int32)[None, :, None], (*shape, length)
        ),
        progress=no_progress(requests.phrases, width),
        finished=SearchResult(no_tokens, no_lengths, empty, empty, no_sums),
        cache=cache,
    )


def advance(
    step_fn: StepFunction,
    state: SearchState,
    options: SearchOptions,
    *,
    steps: Int32[Array, ""] | int,
    until_done: Int32[Array, ""] | int,
) -> SearchState:
    """Take `steps` steps, or fewer: stop as soon as `until_done` rows are done.

    Each step of a beam extends the W live hypotheses and ranks all extensions by log P,
    or with phrases by `share_beam`. Among the first W, those that end with EOS join the
    finished hypotheses; the W best by score are kept. The first W that do not end stay
    live. EOS of lower rank is dropped: improbable early ends do not win by being short.

    A sentence is done when no live hypothesis can still become one of its `n_best`.
    """
    end = state.clock + steps
    return jax.lax.while_loop(
        lambda state: (state.clock < end) & (state.done.sum() < until_done),
        lambda state: _step(step_fn, state, options),
        state,
    )


def length_penalty(
    lengths: Int32[Array, "*B"], options: SearchOptions
) -> Float32[Array, "*B"]:
    """Compute the divisor of log P for n tokens, EOS included as in tensor2tensor.

    Section 6.1 takes "gnmt" from Wu et al. (2016), equation 14.
    """
    n = lengths.astype(jnp.float32)
    base = (5 + n) / 6 if options.length_penalty == "gnmt" else n.clip(1)
    return base**options.alpha


def _step(
    step_fn: StepFunction, state: SearchState, options: SearchOptions
) -> SearchState:
    _, width, length = state.ancestors.shape
    own = jnp.arange(width, dtype=jnp.int32)[None, :, None]
    is_now = (jnp.arange(length) == state.clock % length)[None, None]
    ancestors = jnp.where(is_now, own, state.ancestors)
    newest = Newest(state.previous, state.ages, state.clock, ancestors)
    logits, cache = step_fn(state.cache, newest)
    n = options.no_repeat_ngram
    rules = rules_of_step(state.requests, state.ages, state.tokens, n)
    phrases = state.requests.phrases
    is_each = options.is_sampling or (options.beam_size == 1 and phrases is None)
    select = _select_each if is_each else _select_beam
    live, finished, done = select(logits, state, rules, options)
    tokens, sums = _grow(state, live)
    return state._replace(
        clock=state.clock + 1,
        ages=state.ages + ~state.done,
        done=state.done | done,
        previous=live.tokens,
        tokens=tokens,
        sums=sums,
        log_probabilities=live.log_probabilities,
        ancestors=_reorder(ancestors, live.parents),
        progress=grow(phrases, _reorder(state.progress, live.parents), live.tokens),
        finished=finished,
        cache=cache,
    )


# Selections return live and finished hypotheses, and which rows are done.


def _select_each(
    logits: Logits, state: SearchState, rules: Rules, options: SearchOptions
) -> tuple[_Extensions, SearchResult, Bool[Array, " B"]]:
    """Extend each of W independent hypotheses: greedy search, or sampling."""
    before = state.log_probabilities
    if options.is_sampling:
        token, gain = sampled_token(logits, rules, _keys(state), options)
        # All W samples start with log P = 0; in `start` only the first one does.
        before = jnp.where(state.ages[:, None] == 0, 0.0, before)
    else:
        best, tokens, normaliser = top_candidates(logits, rules, 1)
        token, gain = tokens[:, :, 0], best[:, :, 0] - normaliser
    is_live = (state.finished.lengths == 0) & ~state.done[:, None]  # [B, W]
    grown = jnp.where(is_live, before + gain, before)
    live = _Extensions(grown, None, jnp.where(is_live, token, PAD))
    ends = live.tokens == EOS

    def keep(old: Leaf, new: Leaf) -> Leaf:
        return jnp.where(jnp.expand_dims(ends, tuple(range(2, new.ndim))), new, old)

    finished = jax.tree.map(keep, state.finished, _finish(state, live, ends, options))
    return live, finished, (finished.lengths > 0).all(axis=1)


def _keys(state: SearchState) -> Key[Array, "B W"]:
    """A key for each hypothesis and step, of (seed, age, w) alone."""

    def key(
        seed: UInt32[Array, ""], age: Int32[Array, ""], w: Int32[Array, ""]
    ) -> Key[Array, ""]:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), age), w)

    keys = jax.vmap(jax.vmap(key, (None, None, 0)), (0, 0, None))
    return keys(state.requests.seeds, state.ages, jnp.arange(state.previous.shape[1]))


def _select_beam(
    logits: Logits, state: SearchState, rules: Rules, options: SearchOptions
) -> tuple[_Extensions, SearchResult, Bool[Array, " B"]]:
    # At most W of the first 2W extensions end, one for each hypothesis, so at least W
    # stay live. Normalise k logits instead of all V.
    vocabulary, batch, width = logits.shape
    k = min(2 * width, vocabulary)
    best, tokens, normaliser = top_candidates(logits, rules, k)  # [B, W, k], [B, W]
    phrases = state.requests.phrases
    if phrases is not None:
        best, tokens, need = with_next_pieces(
            best, tokens, logits, rules.forced.reshape(batch, width), phrases=phrases,
            progress=state.progress, room=state.requests.max_lengths - state.ages - 2,
        )  # fmt: skip
    grown = state.log_probabilities[:, :, None] + (best - normaliser[:, :, None])
    grown = grown.reshape(batch, -1)
    grown = jnp.where(jnp.isnan(grown), jnp.nan, grown)  # top_k has -NaN below -inf
    if phrases is None:
        grown, index = jax.lax.top_k(grown, 2 * width)
    else:
        grown, index = share_beam(grown, need.reshape(grown.shape), 2 * width)
    tokens = jnp.take_along_axis(tokens.reshape(batch, -1), index, axis=1)
    extensions = _Extensions(grown, index // best.shape[2], tokens)
    best = jax.tree.map(lambda leaf: leaf[:, :width], extensions)
    # A done sentence keeps its result, whatever its row still computes.
    ends = (best.tokens == EOS) & ~state.done[:, None]
    # top_k prefers earlier of equal entries: -inf never replaces an empty entry.
    candidates = jax.tree.map(
        lambda old, new: jnp.concatenate([old, new], axis=1),
        state.finished,
        _finish(state, best, ends, options),
    )  # [B, 2W, ...]
    scores, index = jax.lax.top_k(candidates.scores, width)
    finished = _reorder(candidates, index)._replace(scores=scores)

    still_live = jnp.where(tokens == EOS, -jnp.inf, grown)
    if phrases is not None:  # the first W, in order of log P as without phrases
        rank = jnp.cumsum(still_live > -jnp.inf, axis=1)
        still_live = jnp.where(rank <= width, still_live, -jnp.inf)
    kept, index = jax.lax.top_k(still_live, width)
    live = _reorder(extensions, index)._replace(log_probabilities=kept)
    # log P only falls, so the largest penalty bounds the score of a live hypothesis.
    penalty = length_penalty(state.requests.max_lengths, options)
    bound = live.log_probabilities[:, 0] / penalty  # [B]
    is_done = bound <= finished.scores[:, options.n_best - 1]  # never true of NaN
    return live, finished, is_done | (state.ages + 1 >= state.requests.max_lengths)


def _finish(
    state: SearchState,
    extensions: _Extensions,
    ends: Bool[Array, "B C"],
    options: SearchOptions,
) -> SearchResult:
    """Score the extensions that end; the others get -inf."""
    lengths = jnp.broadcast_to(state.ages[:, None] + 1, ends.shape)
    log_probabilities = jnp.where(ends, extensions.log_probabilities, -jnp.inf)
    tokens, sums = _grow(state, extensions)
    return SearchResult(
        tokens=tokens,
        lengths=lengths,
        scores=log_probabilities / length_penalty(lengths, options),
        log_probabilities=log_probabilities,
        sums=sums,
    )


def _grow(
    state: SearchState, extensions: _Extensions
) -> tuple[Int32[Array, "B C N"], Float32[Array, "B C N"]]:
    """All tokens of the extended hypotheses, and log P up to each."""
    tokens, sums = _reorder((state.tokens, state.sums), extensions.parents)
    is_newest = jnp.arange(tokens.shape[2])[None, None] == state.ages[:, None, None]
    return (
        jnp.where(is_newest, extensions.tokens[:, :, None], tokens),
        jnp.where(is_newest, extensions.log_probabilities[:, :, None], sums),
    )


def _reorder(
    tree: PyTree[Shaped[Array, "B W ..."]], indices: Int[Array, "B C"] | None
) -> PyTree[Shaped[Array, "B C ..."]]:
    """Pick entries of axis 1 of the leaves; None: all in order."""
    if indices is None:
        return tree

    def pick(leaf: Leaf) -> Shaped[Array, "B C *N"]:
        index = jnp.expand_dims(indices, tuple(range(2, leaf.ndim)))
        return jnp.take_along_axis(leaf, index, axis=1, mode="promise_in_bounds")

    return jax.tree.map(pick, tree)
