"""Synthetic attention of sentences and their translations."""

import numpy as np

from jaxformer.decoding.forced import Attention
from jaxformer.reports.attention_data import Alternative, AttendedSentence

LAYERS, HEADS = 3, 4  # of the decoder; the encoder has one layer more


def weights(
    layers: int, queries: int, keys: int, *, causal: bool = False
) -> np.ndarray:
    """Heads that attend around a query's own index, the later ones more widely."""
    layer, head, row, column = np.indices((layers, HEADS, queries, keys))
    centre = row * (keys - 1) / max(queries - 1, 1) + 0.4 * layer
    found = np.exp(-np.abs(column - centre) / (0.2 + 0.8 * head))
    if causal:
        found *= column <= row
    return (found / found.sum(-1, keepdims=True)).astype(np.float32)


def pieces(text: str) -> list[str]:
    """Words as pieces, those of more than five letters as two, and the end."""
    found = []
    for word in text.split():
        cut = [word] if len(word) < 6 else [word[:4], word[4:]]
        found += [f"\u2581{cut[0]}", *cut[1:]]
    return [*found, "</s>"]


def attention(source: str, target: str) -> Attention:
    a, b = pieces(source), pieces(target)
    s, t = len(a), len(b)
    return Attention(
        a, b, weights(LAYERS + 1, s, s), weights(LAYERS, t, t, causal=True),
        weights(LAYERS, t, s),
    )  # fmt: skip


def attended(source: str, *targets: str) -> AttendedSentence:
    """A sentence and its translations, each less probable than the one before."""
    return AttendedSentence(
        source,
        [
            Alternative(
                target, -0.5 * place, -1.5 * place, len(pieces(target)),
                attention(source, target),
            )
            for place, target in enumerate(targets, start=1)
        ],
    )  # fmt: skip
