"""Phrases that a translation must contain: exact states, and a beam that they share.

A phrase is a run of pieces. What a hypothesis has of its phrases is a function of its
tokens: the phrases in it, and each beginning of a phrase that it ends with, as in the
Shift-And search of Baeza-Yates and Gonnet (1992). So nothing is missed when a match
fails or phrases overlap. From this follows the least number of tokens that it needs.

- A hypothesis may not end while it needs any. It never needs more than its room.
- The next piece of each missing phrase is always a candidate.
- Candidates that need the same number of tokens are one bank. A beam takes the best of
  each bank, then the second best of each, and so on, as banks share the beam of
  Hokamp and Liu (2017) and of Post and Vilar (2018).

M counts the phrases of a sentence and K the pieces of one; C is any number of
hypotheses; the other letters are those of `jaxformer.decoding.search`.
"""

from collections.abc import Callable, Sequence
from itertools import filterfalse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.system.errors import InputError
from jaxformer.tokens import EOS, PAD, UNK

MOST_PHRASES, MOST_PIECES = 8, 32  # M and K of all programs
_FAR = np.iinfo(np.int32).max  # more tokens than any hypothesis needs

Pieces = Sequence[int]  # the ids of one phrase


class Phrases(NamedTuple):
    """The phrases of each sentence, none of them part of another."""

    pieces: jax.Array  # int32 [B, M, K], padded with PAD
    # int32 [B, 2^M, M]: the least number of tokens that add the phrases of a set, as
    # bits, to a hypothesis that ends with phrase m.
    after: jax.Array


class Progress(NamedTuple):
    """What hypotheses have of their phrases."""

    has: jax.Array  # bool [B, C, M]: the phrase is complete, or there is none
    matches: jax.Array  # bool [B, C, M, K]: the last k + 1 tokens begin the phrase


# On the host -----------------------------------------------------------------------


def encode_phrases(
    phrases: Sequence[str],
    encode: Callable[[list[str]], list[list[int]]],
    *,
    line: int,
    parts: int,
    prefix: Pieces,
    most: float,
) -> Sequence[Pieces]:
    """Tokenise the phrases of a text as the ids of a target; blank ones are left out.

    `parts` is how many the text has, `prefix` begins its translation, and `most` bounds
    the tokens of that. Returns `distinct` phrases, none for a blank text. Raises
    InputError, which names line number `line`, for phrases that no translation has.
    """
    if isinstance(phrases, str):
        raise InputError(f"line {line} has a string as phrases; give a list of strings")
    ids = {text: encode([text])[0][:-1] for text in phrases} if parts else {}
    ids = {text: pieces for text, pieces in ids.items() if pieces}
    if len(ids) > MOST_PHRASES:
        raise InputError(
            f"line {line} has {len(ids)} phrases, more than {MOST_PHRASES}; leave some "
            "out"
        )
    if ids and parts > 1:
        raise InputError(
            f"line {line} has phrases, but is translated in {parts} parts; give each "
            "sentence as a text of its own"
        )
    for text, pieces in ids.items():
        if fault := _fault(pieces):
            raise InputError(
                f"line {line}: the phrase {text[:40]!r} has {fault}; leave it out"
            )
    found = distinct(list(ids.values()))
    needed = len(prefix) + tokens_needed(found, prefix) + 1
    if found and needed > most:
        raise InputError(
            f"line {line}: a translation with these phrases has at least {needed} "
            f"pieces, more than {most}; leave some out"
        )
    return found


def add_terms(
    phrases: Sequence[Pieces],
    terms: Sequence[Sequence[str]],
    encode: Callable[[list[str]], list[list[int]]],
    *,
    prefix: Pieces,
    most: float,
) -> tuple[Sequence[Pieces], int, list[str]]:
    """Add to `distinct` phrases the first form of each term that the vocabulary has.

    The others are as for `encode_phrases`. Returns the phrases, the least number of
    tokens of a translation, and the terms that no translation contains, with reasons.
    """
    left_out = []
    needed = len(prefix) + tokens_needed(phrases, prefix) + 1
    for forms in terms:
        every = [ids[:-1] for ids in encode([*forms])]
        pieces = next(filterfalse(_fault, every), every[0])
        more = distinct([*phrases, pieces])
        least = len(prefix) + tokens_needed(more, prefix) + 1
        faults = (
            _fault(pieces),
            f"more than {MOST_PHRASES} phrases" if len(more) > MOST_PHRASES else "",
            f"at least {least} pieces, more than {most}" if least > most else "",
        )
        if fault := next(filter(None, faults), ""):
            left_out.append(f"{forms[0]!r} ({fault})")
        else:
            phrases, needed = more, least
    return phrases, needed, left_out


def _fault(pieces: Pieces) -> str:
    """What a phrase has that no translation contains, or ""."""
    if UNK in pieces or not pieces:
        return "a character that the vocabulary lacks"
    is_long = len(pieces) > MOST_PIECES
    return f"{len(pieces)} pieces, more than {MOST_PIECES}" if is_long else ""


def distinct(phrases: Sequence[Pieces]) -> tuple[Pieces, ...]:
    """Leave out each phrase that is part of another, which contains it anyway."""
    once = list(dict.fromkeys(map(tuple, phrases)))
    return tuple(p for p in once if not any(_is_in(p, o) for o in once if o != p))


def tokens_needed(phrases: Sequence[Pieces], prefix: Pieces = ()) -> int:
    """The least number of tokens that add `distinct` phrases to a prefix."""
    missing = [each for each in phrases if not _is_in(each, prefix)]
    after = _after(missing)
    rest = 2 ** len(missing) - 1
    each = (
        len(phrase) - _overlap(prefix, phrase) + after[rest & ~(1 << m)][m]
        for m, phrase in enumerate(missing)
    )
    return int(min(each, default=0))


def phrase_arrays(sentences: Sequence[Sequence[Pieces]]) -> Phrases:
    """Stack the `distinct` phrases of each sentence, as NumPy arrays."""
    batch = len(sentences)
    pieces = np.full((batch, MOST_PHRASES, MOST_PIECES), PAD, np.int32)
    after = np.zeros((batch, 2**MOST_PHRASES, MOST_PHRASES), np.int32)
    for row, phrases in enumerate(sentences):
        for m, phrase in enumerate(phrases):
            pieces[row, m, : len(phrase)] = phrase
        if phrases:
            after[row, : 2 ** len(phrases), : len(phrases)] = _after(phrases)
    return Phrases(pieces, after)


def _after(phrases: Sequence[Pieces]) -> np.ndarray:
    """`Phrases.after` of one sentence: int32 [2^M, M] for its M phrases.

    Phrases that are no parts of others end in the order in which they begin, so two
    neighbours overlap as far as they can.
    """
    count = len(phrases)
    steps = np.array(
        [[len(b) - _overlap(a, b) for b in phrases] for a in phrases], np.int32
    ).reshape(count, count)
    after = np.zeros((2**count, count), np.int32)
    for chosen in range(1, 2**count):
        nexts = [m for m in range(count) if chosen >> m & 1]
        each = [steps[:, m] + after[chosen & ~(1 << m)][m] for m in nexts]
        after[chosen] = np.min(each, axis=0)
    return after


def _is_in(phrase: Pieces, tokens: Pieces) -> bool:
    phrase, tokens, size = tuple(phrase), tuple(tokens), len(phrase)
    return any(tokens[i : i + size] == phrase for i in range(len(tokens) - size + 1))


def _overlap(tokens: Pieces, phrase: Pieces) -> int:
    """The length of the longest beginning of a phrase, not all, that ends tokens."""
    tokens, phrase = tuple(tokens), tuple(phrase)
    sizes = range(min(len(tokens), len(phrase) - 1), 0, -1)
    return next((n for n in sizes if tokens[-n:] == phrase[:n]), 0)


# In a program ----------------------------------------------------------------------


def no_progress(phrases: Phrases | None, width: int) -> Progress | None:
    """The progress of hypotheses without tokens, C = `width`; None without phrases."""
    if phrases is None:
        return None
    batch, count, size = phrases.pieces.shape
    has = jnp.broadcast_to(_lengths(phrases)[:, None] == 0, (batch, width, count))
    return Progress(has, jnp.zeros((batch, width, count, size), bool))


def grow(
    phrases: Phrases | None, progress: Progress | None, tokens: jax.Array
) -> Progress | None:
    """The progress after one more token of each hypothesis, int32 [B, C]."""
    if phrases is None:
        return None
    pieces = phrases.pieces[:, None]
    before = jnp.pad(
        progress.matches[..., :-1], [(0, 0)] * 3 + [(1, 0)], constant_values=True
    )
    is_next = (pieces == tokens[:, :, None, None]) & (pieces != PAD)
    progress = progress._replace(matches=before & is_next)
    is_complete = _matched(progress) == _lengths(phrases)[:, None]
    return progress._replace(has=progress.has | is_complete)


def needed(phrases: Phrases, progress: Progress) -> jax.Array:
    """The least number of tokens that complete all phrases: int32 [B, C]."""
    batch, _, count = phrases.after.shape
    is_missing = ~progress.has
    numbers = jnp.arange(count)[None, None]
    missing = (is_missing << numbers).sum(axis=2, keepdims=True)  # bits, [B, C, 1]
    index = (missing & ~(1 << numbers)) * count + numbers  # [B, C, M]
    after = phrases.after.reshape(batch, -1)
    after = jnp.take_along_axis(after, index.reshape(batch, -1), axis=1)
    each = _lengths(phrases)[:, None] - _matched(progress) + after.reshape(index.shape)
    least = jnp.where(is_missing, each, _FAR).min(axis=2)
    return jnp.where(is_missing.any(axis=2), least, 0)


def with_next_pieces(
    best: jax.Array,
    tokens: jax.Array,
    logits: jax.Array,
    forced: jax.Array,
    *,
    phrases: Phrases,
    progress: Progress,
    room: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Add the next pieces of missing phrases to candidates; forbid what is too late.

    best f32 [B, W, k], tokens int32 [B, W, k]: the allowed candidates of each
    hypothesis. logits f32 [V, B, W]. forced int32 [B, W]: the only choice, or PAD.
    room int32 [B]: the tokens that may follow the next one, EOS left out.
    Returns the first two with M more candidates, and what each then needs, int32
    [B, W, k + M].
    """
    batch, width, _ = best.shape
    added = jnp.where(forced[:, :, None] == PAD, _next_pieces(phrases, progress), PAD)
    rows = jnp.arange(batch)[:, None, None], jnp.arange(width)[None, :, None]
    logit = jnp.where(added == PAD, -jnp.inf, logits[added, *rows])
    is_added = (tokens[:, :, :, None] == added[:, :, None]).any(axis=3)
    best = jnp.concatenate([jnp.where(is_added, -jnp.inf, best), logit], axis=2)
    tokens = jnp.concatenate([tokens, added], axis=2)
    each = jax.tree.map(
        lambda leaf: jnp.repeat(leaf, tokens.shape[2], axis=1), progress
    )
    need = needed(phrases, grow(phrases, each, tokens.reshape(batch, -1)))
    need = need.reshape(tokens.shape)
    most = jnp.where(tokens == EOS, 0, room[:, None, None])
    return jnp.where(need > most, -jnp.inf, best), tokens, need


def share_beam(
    log_probabilities: jax.Array, need: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Choose `count` candidates, in turn from each bank, as `lax.top_k` chooses.

    log_probabilities f32 [B, C], -inf: no candidate; need int32 [B, C]. In each turn
    the candidate of the bank that needs the fewest tokens is first, then the others by
    log P. Returns the chosen log-probabilities, f32 [B, count], and their indices.
    """
    numbers = jnp.broadcast_to(jnp.arange(need.shape[1], dtype=jnp.int32), need.shape)
    bank = jnp.where(log_probabilities > -jnp.inf, need, _FAR)
    operands = bank, -log_probabilities, numbers
    bank, cost, index = jax.lax.sort(operands, num_keys=2)
    is_first = jnp.pad(bank[:, 1:] != bank[:, :-1], ((0, 0), (1, 0)))
    first = jax.lax.cummax(jnp.where(is_first, numbers, 0), axis=1)
    turn = jnp.where(bank == _FAR, _FAR, numbers - first)
    cost = jnp.where(bank == bank[:, :1], -jnp.inf, cost)
    index = jax.lax.sort((turn, cost, index), num_keys=2)[2][:, :count]
    return jnp.take_along_axis(log_probabilities, index, axis=1), index


def _next_pieces(phrases: Phrases, progress: Progress) -> jax.Array:
    """The piece that goes on with each missing phrase: int32 [B, C, M], each once."""
    at = jnp.minimum(_matched(progress), phrases.pieces.shape[2] - 1)
    pieces = jnp.take_along_axis(phrases.pieces[:, None], at[..., None], axis=3)[..., 0]
    pieces = jnp.where(progress.has, PAD, pieces)
    is_same = pieces[:, :, :, None] == pieces[:, :, None]
    is_repeat = jnp.tril(is_same, k=-1).any(axis=3)
    return jnp.where(is_repeat, PAD, pieces)


def _matched(progress: Progress) -> jax.Array:
    """The longest beginning of each phrase that ends a hypothesis: int32 [B, C, M]."""
    sizes = jnp.arange(1, progress.matches.shape[3] + 1)[None, None, None]
    return (progress.matches * sizes).max(axis=3)


def _lengths(phrases: Phrases) -> jax.Array:
    """The pieces of each phrase: int32 [B, M], 0 for none."""
    return (phrases.pieces != PAD).sum(axis=2)
