"""Synthetic attention of sentences and their translations."""

import numpy as np

from jaxformer.decoding.forced import Attention
from jaxformer.decoding.translate import Hypothesis
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
    cut = [[word] if len(word) < 6 else [word[:4], word[4:]] for word in text.split()]
    return [piece for first, *rest in cut for piece in (f"\u2581{first}", *rest)] + [
        "</s>"
    ]


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
