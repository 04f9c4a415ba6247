"""Step functions over random tables, and reference searches in plain Python.

Every prefix of every sentence has a distribution of its own, so a confusion of rows,
hypotheses or steps changes the result. The reference searches take any model, as a
function from the tokens so far to the logits of the next.
"""

import functools
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from hypothesis import strategies as st

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.phrases import distinct, tokens_needed
from jaxformer.tokens import BOS, EOS, PAD, UNK

VOCABULARY = 7  # PAD, UNK, BOS, EOS and three words
WORDS = tuple(range(EOS + 1, VOCABULARY))
STATES = 1009  # prefixes of up to four tokens rarely share one
Score = Callable[[Sequence[int]], np.ndarray]  # tokens -> logits [V] of the next
Hypotheses = list[tuple[float, tuple[int, ...]]]  # score and tokens


def random_tables(seed: int, batch: int, scale: float = 2.0) -> np.ndarray:
    """Logits [B, STATES, V]: each sentence has its own distribution for each prefix."""
    normal = np.random.default_rng(seed).normal(size=(batch, STATES, VOCABULARY))
    return (scale * normal).astype(np.float32)


def next_state(state, token):
    """The index of the distribution that follows `token`."""
    return (state * 31 + token) % STATES


def table_step(tables, cache, newest, offset=0):
    """A step over tables [B, STATES, V]; `offset` is added to states [B, W].

    `cache` int32 [B, W, L] holds the token that each hypothesis received at each slot.
    """
    tokens, ages, clock, ancestors = newest
    length = ancestors.shape[2]
    cache = cache.at[:, :, clock % length].set(tokens)
    own = jnp.take_along_axis(cache, ancestors, axis=1)  # [B, W, L]
    state = jnp.zeros(tokens.shape, jnp.int32)
    for steps_ago in reversed(range(length)):
        token = own[:, :, (clock - steps_ago) % length]
        is_past = (steps_ago <= ages)[:, None]
        state = jnp.where(is_past, next_state(state, token), state)
    rows = jnp.arange(len(tables))[:, None]
    logits = jnp.asarray(tables)[rows, (state + offset) % STATES]
    return logits.transpose(2, 0, 1), cache


def empty_cache(batch: int, width: int, length: int) -> jax.Array:
    """A ring of wrong tokens, to expose reads of slots that were never written."""
    return jnp.full((batch, width, length), 5, jnp.int32)


def score_of(table: np.ndarray) -> Score:
    """The logits [V] that a table [STATES, V] has after some tokens."""

    def score(tokens):
        return table[functools.reduce(next_state, tokens, next_state(0, BOS))]

    return score


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return scipy.special.log_softmax(logits.astype(np.float64))


def teacher_forced(score: Score, tokens: Sequence[int], given: int = 0) -> float:
    """Log P of `tokens`, computed one token at a time over the whole vocabulary.

    The first `given` tokens are a condition.
    """
    scored = [*enumerate(tokens)][given:]
    return sum(log_softmax(score(tokens[:n]))[token] for n, token in scored)


def penalty(n: int, options: SearchOptions) -> float:
    """The divisor of log P for n tokens."""
    return ((5 + n) / 6 if options.length_penalty == "gnmt" else n) ** options.alpha


def is_run(phrase: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether a phrase is a contiguous run of tokens."""
    return any(
        tuple(tokens[i : i + len(phrase)]) == tuple(phrase)
        for i in range(len(tokens) - len(phrase) + 1)
    )


@dataclass(frozen=True)
class Wanted:
    """The constraints of one sentence."""

    limit: int
    least: int = 0
    prefix: tuple[int, ...] = ()
    seed: int = 0
    phrases: tuple[tuple[int, ...], ...] = ()
    unscored: int = 0  # tokens of the prefix

    def missing(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The phrases that are no run of these tokens."""
        return [phrase for phrase in self.phrases if not is_run(phrase, tokens)]

    def needed(self, tokens: Sequence[int]) -> int:
        """The least number of tokens that complete the phrases."""
        return tokens_needed(distinct(self.phrases), tokens) if self.phrases else 0

    def next_pieces(self, tokens: Sequence[int]) -> set[int]:
        """What goes on with the longest beginning of each missing phrase."""
        return {
            next(
                phrase[n]
                for n in reversed(range(len(phrase)))
                if tuple(tokens[len(tokens) - n :]) == phrase[:n]
            )
            for phrase in self.missing(tokens)
        }

    def choices(self, tokens: Sequence[int], no_repeat_ngram: int = 0) -> tuple:
        """The tokens that may follow these."""
        length, n = len(tokens) + 1, no_repeat_ngram
        if length <= len(self.prefix):
            return (self.prefix[length - 1],)
        if length == self.limit:
            return (EOS,)
        grams = {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}
        past = tuple(tokens[len(tokens) - n + 1 :])
        forced = self.next_pieces(tokens)
        words = (w for w in WORDS if not n or (*past, w) not in grams or w in forced)
        end = [] if length < self.least or forced else [EOS]
        return (*end, *words) or (EOS,)  # where every word would repeat an n-gram


@st.composite
def wanted_sentences(draw, *, least_limit: int, limit: int, prefix: int) -> Wanted:
    """Draw constraints; a prefix may hold UNK, and leaves room for EOS."""
    most = draw(st.integers(least_limit, limit))
    longest = max(min(prefix, most - 1), 0)
    tokens = st.lists(st.sampled_from([UNK, *WORDS]), max_size=longest)
    least = draw(st.sampled_from([0, 0, 2, 5, 20]))
    prefix, seed = tuple(draw(tokens)), draw(st.integers(0, 3))
    unscored = draw(st.integers(0, len(prefix)))
    return Wanted(most, least, prefix, seed, unscored=unscored)


def all_hypotheses(score: Score, wanted: Wanted, options: SearchOptions) -> Hypotheses:
    """Every allowed sentence with its score, best first."""
    found, n = [], options.no_repeat_ngram
    words = {*WORDS, *wanted.prefix}
    for length in range(wanted.limit):
        for sentence in itertools.product(*[words] * length, [EOS]):
            may_follow = (wanted.choices(sentence[:i], n) for i in range(length + 1))
            if wanted.missing(sentence):
                continue
            if all(map(operator.contains, may_follow, sentence)):
                log_p = teacher_forced(score, sentence, wanted.unscored)
                found.append((log_p / penalty(length + 1, options), sentence))
    return sorted(found, reverse=True)


def ranked(grown: Hypotheses, wanted: Wanted) -> Hypotheses:
    """Order extensions by log P, those with phrases in turns of their banks."""
    grown = sorted(grown, reverse=True)
    banks = defaultdict(list)
    for each in grown:
        banks[wanted.needed(each[1])].append(each)
    turns = itertools.zip_longest(*(banks[need] for need in sorted(banks)))
    turns = ([each for each in turn if each is not None] for turn in turns)
    # The first bank leads in each turn in which it has a hypothesis.
    first = {tokens for _, tokens in banks[min(banks, default=0)]}
    return [
        each
        for turn in turns
        for each in sorted(turn, key=lambda h: (h[1] in first, h[0]), reverse=True)
    ]


def plain_beam(score: Score, wanted: Wanted, options: SearchOptions) -> Hypotheses:
    """Beam search with lists; it always runs to the limit."""
    width, finished = options.beam_size, []
    live = [(0.0, ())] if wanted.limit else []
    for n in range(1, wanted.limit + 1):
        grown = []
        for log_p, tokens in live:
            log_ps = log_softmax(score(tokens))
            for token in wanted.choices(tokens, options.no_repeat_ngram):
                room = wanted.limit - n - 1  # before EOS
                if token != EOS and wanted.needed((*tokens, token)) > room:
                    continue
                gain = log_ps[token] if n > wanted.unscored else 0.0
                grown.append((log_p + gain, (*tokens, token)))
        grown = ranked(grown, wanted)
        ends = [h for h in grown[:width] if h[1][-1] == EOS]
        finished += [(log_p / penalty(n, options), tokens) for log_p, tokens in ends]
        live = [h for h in grown if h[1][-1] != EOS][:width]
    return sorted(finished, reverse=True)[:width]


@cache
def noise_of(seed: int, age: int, hypothesis: int) -> np.ndarray:
    """Gumbel noise that sampling adds to the logits of one hypothesis and step: [V]."""
    key = jax.random.key(np.uint32(seed))
    for number in (age, hypothesis):
        key = jax.random.fold_in(key, number)
    return np.asarray(jax.random.gumbel(key, (VOCABULARY,)))


def plain_samples(score: Score, wanted: Wanted, options: SearchOptions) -> Hypotheses:
    """W samples, in the order of their indices."""
    found = []
    for hypothesis in range(options.beam_size if wanted.limit else 0):
        tokens = ()
        while not tokens or tokens[-1] != EOS:
            allowed = list(wanted.choices(tokens, options.no_repeat_ngram))
            noisy = score(tokens) / options.temperature
            noisy = noisy + noise_of(wanted.seed, len(tokens), hypothesis)
            tokens = (*tokens, allowed[int(np.argmax(noisy[allowed]))])
        log_p = teacher_forced(score, tokens, wanted.unscored)
        found.append((log_p / penalty(len(tokens), options), tokens))
    return found


def plain_search(score: Score, wanted: Wanted, options: SearchOptions) -> Hypotheses:
    """The reference of any search; a beam of one is greedy."""
    plain = plain_samples if options.is_sampling else plain_beam
    return plain(score, wanted, options)


def hypotheses_of(result, row: int | None = None) -> Hypotheses:
    """The hypotheses of one sentence; asserts correct padding.

    `row` None: the result has no axis of rows.
    """
    if row is not None:
        result = jax.tree.map(lambda leaf: np.asarray(leaf)[row], result)
    found = []
    for tokens, n, score, log_p, sums in zip(*map(np.asarray, result), strict=True):
        assert (tokens[n:] == PAD).all()
        assert (n == 0) == (score == -math.inf) == (log_p == -math.inf)
        if n:
            assert sums[n - 1] == log_p
            found.append((float(score), tuple(int(t) for t in tokens[:n])))
    return found


def assert_same(found, expected) -> None:
    """Assert equal tokens, and equal scores up to float32 rounding."""
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    np.testing.assert_allclose(
        [s for s, _ in found], [s for s, _ in expected], 1e-4, 1e-5
    )
