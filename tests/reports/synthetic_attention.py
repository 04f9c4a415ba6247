"""Synthetic attention of sentences and their translations."""

import itertools

import numpy as np

from jaxformer.decoding.forced import Attention
from jaxformer.decoding.parts import Hypothesis
from jaxformer.reports.attention_data import Alternative, AttendedSentence

LAYERS, HEADS = 3, 4  # of the decoder; the encoder has one layer more


def weights(layers: int, queries: int, keys: int, *, is_causal: bool = False):
    """Heads that attend around a query's own index, the later ones more widely."""
    layer, head, row, column = np.indices((layers, HEADS, queries, keys))
    centre = row * (keys - 1) / max(queries - 1, 1) + 0.4 * layer
    found = np.exp(-np.abs(column - centre) / (0.2 + 0.8 * head))
    found *= (column <= row) | (not is_causal)
    return (found / found.sum(-1, keepdims=True)).astype(np.float32)


def pieces(text: str) -> list[str]:
    """Words as pieces, those of more than five letters as two, and the end."""
    words = [f"\u2581{word}" for word in text.split()]
    cut = [(word[:5], word[5:]) if len(word) > 6 else (word,) for word in words]
    return [*itertools.chain.from_iterable(cut), "</s>"]


def attention(source: str, target: str) -> Attention:
    a, b = pieces(source), pieces(target)
    s, t = len(a), len(b)
    maps = weights(LAYERS + 1, s, s), weights(LAYERS, t, t, is_causal=True)
    return Attention(a, b, *maps, weights(LAYERS, t, s))


def attended(source: str, *targets: str) -> AttendedSentence:
    """A sentence and its translations, each less probable than the one before."""
    alternatives = [
        Alternative(
            Hypothesis(target, -0.5 * rank, -1.5 * rank, len(pieces(target))),
            attention(source, target),
        )
        for rank, target in enumerate(targets, start=1)
    ]
    return AttendedSentence(source, alternatives)
