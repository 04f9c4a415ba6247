"""The next tokens that rules allow: the most probable ones, or a random one.

Logits are [V, B, W], the layout in which decoding makes them fastest. With 37,000
tokens and 128 hypotheses, `top_k` and a log-softmax of all logits take a fifth of a
step on a CPU. So the largest logits are found in two levels, and only those are
normalised.
"""

import jax
import jax.numpy as jnp

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Rules

# Tokens in a block of the two-level selection, nearest to 32 first. All these sizes are
# about as fast on a CPU; one that divides the vocabulary saves a copy of the logits.
_BLOCKS = sorted(range(16, 65), key=lambda size: abs(size - 32))


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
    size = next((n for n in _BLOCKS if vocabulary % n == 0), _BLOCKS[0])
    if vocabulary <= 2 * k * size:
        normaliser = jax.nn.logsumexp(logits, axis=0)
        ids = jnp.arange(vocabulary, dtype=jnp.int32)
        best = rules.allow(rules.ban(logits), ids[:, None]).T  # [R, V]
        tokens = jnp.broadcast_to(ids, best.shape)
        if is_sorted:
            best, tokens = jax.lax.top_k(best, k)  # [R, k]
    else:
        maxima = _block_maxima(logits, size)  # [blocks, R]
        largest = maxima.max(axis=0)  # [R]
        normaliser = largest + jnp.log(jnp.exp(logits - largest[None]).sum(axis=0))
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
    best, tokens = rules.force(best, tokens, logits)
    shape = (batch, width, k)
    return best.reshape(shape), tokens.reshape(shape), normaliser.reshape(shape[:2])


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
