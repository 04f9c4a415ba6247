"""Sentences in, sentences out: the search of section 6.1 around a trained model.

Sentences are sorted by length and decoded in a few static shapes, each compiled once;
the translations come back in the order of the input.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.batch import PAD
from jaxformer.decoding.search import SearchResult, beam_search, greedy_search
from jaxformer.model.transformer import DecoderCache, Transformer, init_cache

QUEUED_BATCHES = 2  # on the device while the host detokenises
SHORTEST_BUCKET = 16  # pieces; buckets grow from here by half, in multiples of 8


class Tokenizer(Protocol):
    """What translation needs of a tokeniser."""

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Turn each sentence into ids, EOS last."""

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids up to EOS back into text."""


def bucket_length(length: int) -> int:
    """Round a source length up to one of few: 16, 24, 40, 64, 96, 144, ... pieces."""
    bucket = SHORTEST_BUCKET
    while bucket < length:
        bucket = -(-bucket * 3 // 2 // 8) * 8
    return bucket


def source_batches(
    sequences: Sequence[Sequence[int]], *, batch_tokens: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Group sequences into few static shapes, the longest first.

    Yields the indices of the sequences, int [n], and their ids padded to int32
    [rows, length], where rows >= n is a power of two and rows x length is at most
    batch_tokens (or one row). The rows beyond n are empty.
    """
    lengths = np.array([bucket_length(len(sequence)) for sequence in sequences])
    for length in sorted(set(lengths.tolist()), reverse=True):
        indices = np.flatnonzero(lengths == length)
        most = max(1, batch_tokens // length)
        most = 1 << (most.bit_length() - 1)
        for start in range(0, len(indices), most):
            chosen = indices[start : start + most]
            rows = min(most, 1 << (len(chosen) - 1).bit_length())
            source = np.full((rows, length), PAD, np.int32)
            for row, index in enumerate(chosen):
                source[row, : len(sequences[index])] = sequences[index]
            yield chosen, source


class Translator:
    """A model, its parameters and its tokeniser, ready to translate.

    beam_size 1 is greedy search; alpha is the exponent of the length penalty
    ((5 + n) / 6)^alpha; a translation has at most extra_length pieces more than its
    source; batch_tokens bounds rows x source length of one batch, padding included;
    `rows` says how the rows of a batch lie on devices of this process, None on one.
    Raises ValueError for sizes that allow no translation.
    """

    def __init__(
        self,
        model: Transformer,
        params: dict,
        tokenizer: Tokenizer,
        *,
        beam_size: int,
        alpha: float,
        extra_length: int,
        batch_tokens: int,
        rows: jax.sharding.NamedSharding | None,
    ) -> None:
        if beam_size < 1 or batch_tokens < 1 or extra_length < 0:
            raise ValueError(
                f"beam_size {beam_size} and batch_tokens {batch_tokens} must be at "
                f"least 1, extra_length {extra_length} at least 0"
            )
        self.params = params
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        self._rows = rows
        self._search = jax.jit(
            functools.partial(
                search_translations,
                model,
                beam_size=beam_size,
                alpha=alpha,
                extra_length=extra_length,
            )
        )

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """Translate each sentence; a blank sentence gives a blank translation."""
        translations = [""] * len(sentences)
        for index, translation in self.translate_part(sentences):
            translations[index] = translation
        return translations

    def translate_part(
        self,
        sentences: Sequence[str],
        part: tuple[int, int] = (0, 1),
        heed: Callable[[], None] = lambda: None,
    ) -> list[tuple[int, str]]:
        """Translate part (p, of) of the sentences: their indices and translations.

        The parts are batches of all sentences, dealt out in turn, so that the batches
        do not depend on how many share them. `heed` is called before each batch, as
        often in every part; an exception of its own ends the work.
        """
        spoken = [i for i, sentence in enumerate(sentences) if sentence.strip()]
        sequences = self.tokenizer.encode([sentences[i] for i in spoken])
        multiple = 1 if self._rows is None else self._rows.num_devices
        queued: deque = deque()  # device work, ahead of the host's detokenising
        done = []

        def finish_one() -> None:
            indices, found = queued.popleft()
            for index, best in zip(indices, np.asarray(found.tokens), strict=False):
                text = self.tokenizer.decode(best[0].tolist())
                done.append((spoken[index], text))

        batches = source_batches(sequences, batch_tokens=self.batch_tokens)
        for number, (indices, source) in enumerate(batches):
            if number % part[1] == 0:
                heed()
            if number % part[1] == part[0]:
                empty = ((0, -len(source) % multiple), (0, 0))
                source = jax.device_put(np.pad(source, empty), self._rows)
                queued.append((indices, self._search(self.params, source)))
            if len(queued) > QUEUED_BATCHES:
                finish_one()
        while queued:
            finish_one()
        return done


def search_translations(
    model: Transformer,
    params: dict,
    source: jax.Array,
    *,
    beam_size: int,
    alpha: float,
    extra_length: int,
) -> SearchResult:
    """Search the best translations of source ids int32 [B, S], each row one sentence.

    Returns hypotheses best first; an empty row costs no steps.
    """
    rows, length = source.shape
    variables = {"params": params}
    segments = (source != PAD).astype(jnp.int32)
    memory = model.apply(variables, source, segments, method="source_memory")

    def step_fn(
        tokens: jax.Array, step: jax.Array, cache: DecoderCache
    ) -> tuple[jax.Array, DecoderCache]:
        return model.apply(variables, tokens, step, memory, cache, method="decode_step")

    lengths = (source != PAD).sum(axis=1)  # [B], EOS counted as in the output
    limits = jnp.where(lengths > 0, lengths + extra_length, 0)
    steps = length + extra_length
    cache = init_cache(model.config, batch=rows, width=beam_size, length=steps)
    if beam_size == 1:
        return greedy_search(step_fn, cache, max_lengths=limits, max_steps=steps)
    return beam_search(
        step_fn,
        cache,
        max_lengths=limits,
        max_steps=steps,
        beam_size=beam_size,
        alpha=alpha,
    )
