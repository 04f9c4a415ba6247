"""Which tokens a search may choose: lengths, prefixes and repeated n-grams.

PAD, UNK and BOS are never chosen, except that a prefix may hold UNK. Letters are those
of `jaxformer.decoding.search`; R = B W counts hypotheses, X banned tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import EOS, PAD


class Requests(NamedTuple):
    """The constraints of each sentence."""

    max_lengths: jax.Array  # int32 [B], EOS included; 0 marks an empty row
    min_lengths: jax.Array  # int32 [B], EOS included
    prefixes: jax.Array  # int32 [B, P], the forced beginnings, padded with PAD
    seeds: jax.Array  # uint32 [B], of sampling


class Rules(NamedTuple):
    """The constraints of each hypothesis in one step."""

    forced: jax.Array  # int32 [R]: the only choice; PAD: any
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
        self, best: jax.Array, tokens: jax.Array, logits: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Replace candidates [R, K] by the forced token, with its logit of [V, R]."""
        logit = logits[self.forced, jnp.arange(self.forced.shape[0])]
        is_first = jnp.arange(best.shape[1])[None] == 0
        only = jnp.where(is_first, logit[:, None], -jnp.inf)
        is_forced = (self.forced != PAD)[:, None]
        return (
            jnp.where(is_forced, only, best),
            jnp.where(is_forced, self.forced[:, None], tokens),
        )


def no_rules(max_lengths: jax.Array) -> Requests:
    """Requests that only limit lengths, int32 [B]."""
    zeros = jnp.zeros_like(max_lengths)
    prefixes = jnp.full((len(zeros), 0), PAD, jnp.int32)
    return Requests(max_lengths, zeros, prefixes, zeros.astype(jnp.uint32))


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
    forced, banned = jnp.where(given != PAD, given, end), None
    if no_repeat_ngram:
        banned = _repeating(tokens, ages, no_repeat_ngram)
        banned = banned.reshape(-1, banned.shape[-1])
    no_end = requests.min_lengths > lengths
    return Rules(jnp.repeat(forced, width), jnp.repeat(no_end, width), banned)


def _repeating(tokens: jax.Array, ages: jax.Array, n: int) -> jax.Array:
    """Tokens that would repeat an n-gram: int32 [B, W, N - n + 1], PAD for none."""
    steps = tokens.shape[2]
    windows = max(steps - n + 1, 0)
    repeats = jnp.ones((*tokens.shape[:2], windows), bool)
    for i in range(n - 1):  # does window j begin with the last n - 1 tokens?
        index = jnp.clip(ages - (n - 1) + i, 0, steps - 1)[:, None, None]
        last = jnp.take_along_axis(tokens, index, axis=2)  # [B, W, 1]
        repeats &= tokens[:, :, i : i + windows] == last
    ends = jnp.arange(windows) + n - 1  # the index of the last token of each window
    is_past = ends[None, :] < ages[:, None]  # [B, windows]
    return jnp.where(repeats & is_past[:, None], tokens[:, :, n - 1 :], PAD)
