"""Which pieces may come next, and the best or a random one of them.

Logits come vocabulary first, [V, B, W], as decoding makes them fastest. Over 37,000
pieces and 128 hypotheses a plain `top_k` and a log-softmax take as long on a CPU as a
fifth of the whole step; so the largest are found in two levels, and only what is kept
is normalised. Used by `jaxformer.decoding.search`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import EOS, PAD

# Pieces in a block of the two-level selection: on a CPU all of these are about as fast,
# and one that divides the vocabulary spares a copy of the logits.
_BLOCKS = sorted(range(16, 65), key=lambda size: abs(size - 32))


class Rules(NamedTuple):
    """What may be chosen at a step, besides that PAD, UNK and BOS never are."""

    forced: jax.Array  # int32 [B]: the only choice, or PAD for a free one
    no_end: jax.Array  # bool [B]: EOS is forbidden
    banned: jax.Array | None  # int32 [B, W, X]: tokens forbidden to each, PAD for none


def top_candidates(
    logits: jax.Array, rules: Rules, k: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The k largest allowed logits of each hypothesis, their ids, and the normaliser.

    logits f32 [V, B, W]; returns f32 and int32 [B, W, k], forbidden ids last, as
    -inf, and the log of the sum of exponentials of all V logits, f32 [B, W].

    Equals `lax.top_k` of the masked logits, ties included: the k largest values lie in
    the k blocks with the largest maxima, since any other block has k values before it,
    and maxima are cheap.
    """
    vocabulary, batch, width = logits.shape
    rows = batch * width
    logits = logits.reshape(vocabulary, rows)
    size = _block_size(vocabulary)
    if vocabulary <= 2 * k * size:
        normaliser = jax.nn.logsumexp(logits, axis=0)
        ids = jnp.arange(vocabulary, dtype=jnp.int32)
        free = _obey(_without_banned(logits, rules), ids[:, None], rules, width)
        best, tokens = jax.lax.top_k(free.T, k)  # [R, k]
    else:
        maxima = _block_maxima(logits, size)  # [blocks, R]
        largest = maxima.max(axis=0)  # [R]
        normaliser = largest + jnp.log(jnp.exp(logits - largest[None]).sum(axis=0))
        free = logits
        if rules.banned is not None:
            free = _without_banned(logits, rules)
            maxima = _block_maxima(free, size)
        # Only ids of the first block are forbidden to all.
        places = jnp.arange(size, dtype=jnp.int32)
        first = _obey(free[:size], places[:, None], rules, width)
        maxima = maxima.at[0].set(first.max(axis=0))
        # Ascending blocks keep equal values in the order of their ids.
        chosen = jnp.sort(jax.lax.top_k(maxima.T, k)[1], axis=1)  # [R, k]
        ids = chosen[:, :, None] * size + places[None, None]  # [R, k, block]
        ids = ids.reshape(rows, k * size)
        inside = free[jnp.minimum(ids, vocabulary - 1), jnp.arange(rows)[:, None]]
        inside = _obey(inside.T, ids.T, rules, width).T  # [R, k block]
        inside = jnp.where(ids < vocabulary, inside, -jnp.inf)
        best, index = jax.lax.top_k(inside, k)  # [R, k]
        tokens = jnp.take_along_axis(ids, index, axis=1)
    best, tokens = _force(best, tokens, logits, rules, width)
    shape = (batch, width, k)
    return best.reshape(shape), tokens.reshape(shape), normaliser.reshape(shape[:2])


def _block_size(vocabulary: int) -> int:
    """A size that divides the vocabulary if there is one, the nearest to 32."""
    return next((n for n in _BLOCKS if vocabulary % n == 0), _BLOCKS[0])


def _block_maxima(logits: jax.Array, size: int) -> jax.Array:
    """The largest of each block of logits [V, R]: [blocks, R], the last one partial."""
    vocabulary, rows = logits.shape
    whole = vocabulary // size * size
    maxima = logits[:whole].reshape(-1, size, rows).max(axis=1)
    if whole == vocabulary:
        return maxima
    return jnp.concatenate([maxima, logits[whole:].max(axis=0, keepdims=True)])


def sampled_token(
    logits: jax.Array,
    rules: Rules,
    keys: jax.Array,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
) -> tuple[jax.Array, jax.Array]:
    """Draw an allowed token for each hypothesis: int32 [B, W], and its log P, f32.

    keys [B, W]: one of its own for each, so that a draw does not depend on its
    neighbours. `top_k` and `top_p` cut the tail of the distribution that `temperature`
    has made; log P is that of the model, before all of them.
    """
    vocabulary, batch, width = logits.shape
    k = min(top_k or vocabulary, vocabulary)
    if top_k:
        best, tokens, normaliser = top_candidates(logits, rules, k)  # [B, W, k]
    else:  # descending only if a tail is to be cut
        flat = logits.reshape(vocabulary, -1)
        normaliser = jax.nn.logsumexp(flat, axis=0).reshape(batch, width)
        ids = jnp.arange(vocabulary, dtype=jnp.int32)
        best = _obey(_without_banned(flat, rules), ids[:, None], rules, width).T
        tokens = jnp.broadcast_to(ids, best.shape)
        if top_p < 1:
            best, tokens = jax.lax.top_k(best, k)
        best, tokens = _force(best, tokens, flat, rules, width)
        best = best.reshape(batch, width, k)
        tokens = tokens.reshape(batch, width, k)
    warm = best / temperature
    if top_p < 1:
        probability = jax.nn.softmax(warm, axis=2)
        before = jnp.cumsum(probability, axis=2) - probability
        warm = jnp.where(before < top_p, warm, -jnp.inf)
    noise = jax.vmap(jax.vmap(lambda key: jax.random.gumbel(key, (k,))))(keys)
    index = jnp.argmax(warm + noise, axis=2, keepdims=True)  # [B, W, 1]
    token, logit = (
        jnp.take_along_axis(each, index, axis=2)[:, :, 0] for each in (tokens, best)
    )
    return token, logit - normaliser


def _by_row(values: jax.Array, width: int) -> jax.Array:
    """Values of sentences [B] for their hypotheses, [R]."""
    return jnp.repeat(values, width)


def _obey(logits: jax.Array, ids: jax.Array, rules: Rules, width: int) -> jax.Array:
    """-inf in logits [X, R] where `ids`, [X, R] or [X, 1], may never be chosen."""
    may_end = ~_by_row(rules.no_end, width)[None]
    allowed = (ids > EOS) | ((ids == EOS) & may_end)
    return jnp.where(allowed, logits, -jnp.inf)


def _without_banned(logits: jax.Array, rules: Rules) -> jax.Array:
    """-inf in logits [V, R] for what the rules ban of each hypothesis."""
    if rules.banned is None:
        return logits
    rows = logits.shape[1]
    banned = rules.banned.reshape(rows, -1)
    return logits.at[banned, jnp.arange(rows)[:, None]].set(-jnp.inf)


def _force(
    best: jax.Array, tokens: jax.Array, logits: jax.Array, rules: Rules, width: int
) -> tuple[jax.Array, jax.Array]:
    """Candidates [R, k], but where one token is forced: that one and nothing else."""
    forced = _by_row(rules.forced, width)  # [R]
    logit = logits[forced, jnp.arange(forced.shape[0])]
    is_first = jnp.arange(best.shape[1])[None] == 0
    only = jnp.where(is_first, logit[:, None], -jnp.inf)
    is_forced = (forced != PAD)[:, None]
    return (
        jnp.where(is_forced, only, best),
        jnp.where(is_forced, forced[:, None], tokens),
    )
