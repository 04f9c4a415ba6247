"""Select the tokens that a search may choose next: the most probable, or a random one.

Rules are lengths, prefixes and repeated n-grams. PAD, UNK and BOS are never chosen,
except that a prefix may hold UNK. Where every word would repeat an n-gram, the sentence
ends, even before its least length. Letters are those of `jaxformer.decoding.search`;
R = B W counts hypotheses, X banned tokens.

Logits are [V, B, W], the layout in which decoding makes them fastest. With 37,000
tokens and 128 hypotheses, `top_k` and a log-softmax of all logits take a fifth of a
step on a CPU. So the largest logits are found in two levels, and only those are
normalised.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.phrases import Phrases
from jaxformer.models.sequence_model import block_size, product_blocks
from jaxformer.tokens import EOS, PAD


class Requests(NamedTuple):
    """The constraints of each sentence."""

    max_lengths: jax.Array  # int32 [B], EOS included; 0 marks an empty row
    min_lengths: jax.Array  # int32 [B], EOS included
    prefixes: jax.Array  # int32 [B, P], the forced beginnings, padded with PAD
    unscored: jax.Array  # int32 [B], tokens of a prefix that log P does not count
    seeds: jax.Array  # uint32 [B], of sampling
    phrases: Phrases | None = None  # None: no sentence has any


class Rules(NamedTuple):
    """The constraints of each hypothesis in one step."""

    forced: jax.Array  # int32 [R]: the only choice; PAD: any
    unscored: jax.Array  # bool [R]: the choice is given, so log P = 0
    no_end: jax.Array  # bool [R]: EOS is forbidden
    banned: jax.Array | None  # int32 [R, X]: forbidden tokens; PAD: none

    def ban(self, logits: jax.Array) -> jax.Array:
        """Set logits [V, R] of banned tokens to -inf."""
        if self.banned is None:
            return logits
        rows = jnp.arange(logits.shape[1])[:, None]
        return logits.at[self.banned, rows].set(-jnp.inf)

    def allow(self, logits: jax.Array, ids: jax.Array) -> jax.Array:
        """Set logits [K, R] of the reserved among `ids`, [K, R] or [K, 1], to -inf."""
        may_end = ~self.no_end[None]
        allowed = (ids > EOS) | ((ids == EOS) & may_end)
        return jnp.where(allowed, logits, -jnp.inf)

    def force(
        self,
        best: jax.Array,
        tokens: jax.Array,
        logits: jax.Array,
        normaliser: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Replace candidates [R, K] by the forced token, with its logit of [V, R]."""
        forced = self.forced
        if self.banned is not None:  # else a word is always allowed
            has_none = best.max(axis=1) == -jnp.inf
            forced = jnp.where((forced == PAD) & has_none, EOS, forced)
        logit = logits[forced, jnp.arange(forced.shape[0])]
        logit = jnp.where(self.unscored, normaliser, logit)
        is_first = jnp.arange(best.shape[1])[None] == 0
        only = jnp.where(is_first, logit[:, None], -jnp.inf)
        is_forced = (forced != PAD)[:, None]
        tokens = jnp.where(is_forced, forced[:, None], tokens)
        return jnp.where(is_forced, only, best), tokens


def no_rules(max_lengths: jax.Array) -> Requests:
    """Requests that only limit lengths, int32 [B]."""
    zeros = jnp.zeros_like(max_lengths)
    prefixes = jnp.full((zeros.shape[0], 0), PAD, jnp.int32)
    return Requests(max_lengths, zeros, prefixes, zeros, zeros.astype(jnp.uint32))


def rules_of_step(
    requests: Requests, ages: jax.Array, tokens: jax.Array, no_repeat_ngram: int
) -> Rules:
    """Rules for hypotheses int32 [B, W, N] of which `ages` int32 [B] tokens exist."""
    lengths, width = ages + 1, tokens.shape[1]
    end = jnp.where(requests.max_lengths <= lengths, EOS, PAD)
    # The column behind the longest prefix is PAD for every later age.
    prefixes = jnp.pad(requests.prefixes, ((0, 0), (0, 1)), constant_values=PAD)
    index = jnp.minimum(ages, prefixes.shape[1] - 1)[:, None]
    given = jnp.take_along_axis(prefixes, index, axis=1)[:, 0]
    forced = jnp.where(given != PAD, given, end)
    banned = _repeating(tokens, ages, no_repeat_ngram) if no_repeat_ngram else None
    rows = forced, ages < requests.unscored, requests.min_lengths > lengths
    return Rules(*(jnp.repeat(each, width) for each in rows), banned)


def _repeating(tokens: jax.Array, ages: jax.Array, n: int) -> jax.Array:
    """Tokens that would repeat an n-gram: int32 [R, N - n + 1], PAD for none."""
    steps = tokens.shape[2]
    windows = max(steps - n + 1, 0)
    repeats = jnp.ones((*tokens.shape[:2], windows), bool)
    for i in range(n - 1):  # does window j begin with the last n - 1 tokens?
        index = jnp.clip(ages - (n - 1) + i, 0, steps - 1)[:, None, None]
        last = jnp.take_along_axis(tokens, index, axis=2)  # [B, W, 1]
        repeats &= tokens[:, :, i : i + windows] == last
    ends = jnp.arange(windows) + n - 1  # the index of the last token of each window
    is_past = ends[None, :] < ages[:, None]  # [B, windows]
    banned = jnp.where(repeats & is_past[:, None], tokens[:, :, n - 1 :], PAD)
    return banned.reshape(tokens.shape[0] * tokens.shape[1], windows)


def top_candidates(
    logits: jax.Array, rules: Rules, k: int, *, is_sorted: bool = True
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the k largest allowed logits of each hypothesis.

    logits f32 [V, B, W]. Returns the logits f32 [B, W, k], forbidden ones last as -inf;
    their ids int32 [B, W, k]; and the log of the sum of exponentials of all V logits,
    f32 [B, W]. `is_sorted` False, with k = V, returns all in the order of their ids.

    Equals `lax.top_k` of the masked logits, ties included: the k largest values lie in
    the k blocks with the largest maxima, since any other block has k values before it.
    """
    vocabulary, batch, width = logits.shape
    rows = batch * width
    logits = logits.reshape(vocabulary, rows)
    size = block_size(vocabulary)
    if vocabulary <= 2 * k * size:
        normaliser = jax.nn.logsumexp(logits, axis=0)
        ids = jnp.arange(vocabulary, dtype=jnp.int32)
        best = rules.allow(rules.ban(logits), ids[:, None]).T  # [R, V]
        tokens = jnp.broadcast_to(ids, best.shape)
        if is_sorted:
            best, tokens = jax.lax.top_k(best, k)  # [R, k]
    else:
        tpu = _by_product if product_blocks(vocabulary) > 1 else _in_one_pass
        maxima, normaliser = jax.lax.platform_dependent(
            logits,
            tpu=functools.partial(tpu, size=size),
            default=functools.partial(_in_two_passes, size=size),
        )
        free = rules.ban(logits)
        if rules.banned is not None:
            maxima = _block_maxima(free, size)
        # All reserved ids are in the first block.
        offsets = jnp.arange(size, dtype=jnp.int32)
        first = rules.allow(free[:size], offsets[:, None])
        maxima = maxima.at[0].set(first.max(axis=0))
        # Ascending blocks keep equal values in the order of their ids.
        chosen = jnp.sort(jax.lax.top_k(maxima.T, k)[1], axis=1)  # [R, k]
        ids = chosen[:, :, None] * size + offsets[None, None]  # [R, k, block]
        ids = ids.reshape(rows, k * size)
        inside = free[jnp.minimum(ids, vocabulary - 1), jnp.arange(rows)[:, None]]
        inside = rules.allow(inside.T, ids.T).T  # [R, k block]
        inside = jnp.where(ids < vocabulary, inside, -jnp.inf)
        best, index = jax.lax.top_k(inside, k)  # [R, k]
        tokens = jnp.take_along_axis(ids, index, axis=1)
    best, tokens = rules.force(best, tokens, logits, normaliser)
    shape = (batch, width, k)
    return best.reshape(shape), tokens.reshape(shape), normaliser.reshape(shape[:2])


def _in_two_passes(logits: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The block maxima [blocks, R] and the log of the sum of exponentials [R]."""
    # Without the barrier XLA searches all logits, not the maxima, for the largest.
    maxima = jax.lax.optimization_barrier(_block_maxima(logits, size))
    largest = maxima.max(axis=0)  # [R]
    return maxima, largest + jnp.log(jnp.exp(logits - largest[None]).sum(axis=0))


def _in_one_pass(logits: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Compute `_in_two_passes` as a TPU does in one pass after the largest is known."""
    padding = ((0, -len(logits) % size), (0, 0))
    blocks = jnp.pad(logits, padding, constant_values=-jnp.inf)
    blocks = blocks.reshape(-1, size, logits.shape[1])
    # Without the barrier XLA for TPUs reads all logits once more for the maxima.
    blocks = jax.lax.optimization_barrier(blocks)
    largest = logits.max(axis=0)  # [R]
    sums = jnp.exp(blocks - largest[None, None]).sum(axis=(0, 1))
    return blocks.max(axis=1), largest + jnp.log(sums)


def _by_product(logits: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Compute `_in_two_passes` of logits that a TPU computes in blocks, to 1e-5."""
    # Without the barrier XLA searches all logits, not the maxima, for the largest.
    maxima = jax.lax.optimization_barrier(_block_maxima(logits, size))
    largest = maxima.max(axis=0)  # [R]
    ones = jnp.ones((2, len(logits)))  # XLA would make a product with one row a sum
    sums = jnp.matmul(ones, jnp.exp(logits - largest[None]), precision="high")
    return maxima, largest + jnp.log(sums[0])


def _block_maxima(logits: jax.Array, size: int) -> jax.Array:
    """The largest of each block of logits [V, R]: [blocks, R], the last one partial."""
    vocabulary, rows = logits.shape
    whole = vocabulary // size * size
    maxima = logits[:whole].reshape(-1, size, rows).max(axis=1)
    if whole == vocabulary:
        return maxima
    return jnp.concatenate([maxima, logits[whole:].max(axis=0, keepdims=True)])


def sampled_token(
    logits: jax.Array, rules: Rules, keys: jax.Array, options: SearchOptions
) -> tuple[jax.Array, jax.Array]:
    """Draw an allowed token for each hypothesis: int32 [B, W], and its log P, f32.

    keys [B, W] make draws of hypotheses independent. `top_k` and `top_p` cut the tail
    of the distribution at `temperature`; log P is that of the model, before all three.
    """
    vocabulary, top_p = logits.shape[0], options.top_p
    k = min(options.top_k or vocabulary, vocabulary)
    is_sorted = options.top_k > 0 or top_p < 1
    best, tokens, normaliser = top_candidates(logits, rules, k, is_sorted=is_sorted)
    scaled = best / options.temperature
    if top_p < 1:
        probability = jax.nn.softmax(scaled, axis=2)
        before = jnp.cumsum(probability, axis=2) - probability
        scaled = jnp.where(before < top_p, scaled, -jnp.inf)
    noise = jax.vmap(jax.vmap(lambda key: jax.random.gumbel(key, (k,))))(keys)
    index = jnp.argmax(scaled + noise, axis=2, keepdims=True)  # [B, W, 1]
    token, logit = (
        jnp.take_along_axis(each, index, axis=2)[:, :, 0] for each in (tokens, best)
    )
    return token, logit - normaliser
