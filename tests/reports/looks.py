"""Attention that is made up, and candidates that have it."""

import numpy as np

from jaxformer.decoding.forced import Attention
from jaxformer.reports.attention import Alternative, Viewed

LAYERS, HEADS = 3, 4


def weights(queries: int, keys: int, *, causal: bool = False) -> np.ndarray:
    """Heads that look around their own place, the later ones more widely."""
    layer, head, row, column = np.indices((LAYERS, HEADS, queries, keys))
    centre = row * (keys - 1) / max(queries - 1, 1) + 0.4 * layer
    grown = np.exp(-np.abs(column - centre) / (0.2 + 0.8 * head))
    if causal:
        grown *= column <= row
    return (grown / grown.sum(-1, keepdims=True)).astype(np.float32)


def pieces(text: str) -> list[str]:
    """Words as pieces, those of more than five letters as two, and the end."""
    found = []
    for word in text.split():
        cut = [word] if len(word) < 6 else [word[:4], word[4:]]
        found += [f"\u2581{cut[0]}", *cut[1:]]
    return [*found, "</s>"]


def attention(source: str, target: str) -> Attention:
    """What three layers of four heads see."""
    a, b = pieces(source), pieces(target)
    s, t = len(a), len(b)
    return Attention(a, b, weights(s, s), weights(t, t, causal=True), weights(t, s))


def viewed(source: str, *targets: str) -> Viewed:
    """A sentence and its candidates, each less probable than the one before."""
    return Viewed(
        source,
        [
            Alternative(
                target, -0.5 * place, -1.5 * place, len(pieces(target)),
                attention(source, target),
            )
            for place, target in enumerate(targets, start=1)
        ],
    )  # fmt: skip
