"""What can be looked at: sentences, the candidates of their search, their attention.

Used by `jaxformer.reports.attention` and its charts.
"""

import base64
import difflib
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.decoding.forced import Attention
from jaxformer.decoding.translate import Translator
from jaxformer.errors import InputError

KINDS = {  # who looks, and at what
    "encoder": ("sentence", "sentence"),
    "decoder": ("translation", "translation so far"),
    "cross": ("translation", "sentence"),
}
MOST_SENTENCES = 50  # of a page; each has the attention of all its candidates
LEVELS = 255  # a page has weights as bytes: this many stand for 1
START, END = "<start>", "<end>"


class Alternative(NamedTuple):
    """A translation, what the model thinks of it, and where it looks."""

    text: str
    score: float | None  # log P / length penalty; None if it was given, not found
    log_probability: float  # natural logarithm, of the text and its end
    tokens: int  # pieces, end of sentence included
    attention: Attention


class Viewed(NamedTuple):
    """A sentence and its translations, the best first."""

    source: str
    alternatives: list[Alternative]


def look(
    translator: Translator, sources: Sequence[str], targets: Sequence[str] | None = None
) -> list[Viewed]:
    """Translate sentences, or take their given translations, and look at all of them.

    A translation's attention is that of its text, cut into pieces anew. Blank sentences
    are left out. Raises InputError if none is left, if there are too many for a page,
    and for one that is longer than the translator takes.
    """
    pairs = [
        (line, source, None if targets is None else targets[line - 1])
        for line, source in enumerate(sources, start=1)
        if source.strip()
    ]
    if not pairs:
        raise InputError("there is no sentence to look at; give at least one")
    if len(pairs) > MOST_SENTENCES:
        raise InputError(
            f"{len(pairs)} sentences are too many to look at: give at most "
            f"{MOST_SENTENCES}, such as the output of head -n {MOST_SENTENCES}"
        )
    lines, chosen, given = zip(*pairs, strict=True)
    _require_short(translator, translator.tokenizer.encode(chosen), lines, "sentence")
    if targets is None:
        found = translator.translate(chosen)
        return [
            Viewed(
                source,
                [
                    Alternative(*each, translator.attention(source, each.text))
                    for each in hypotheses
                ],
            )
            for source, hypotheses in zip(chosen, found, strict=True)
        ]
    ids = translator.tokenizer.encode_target(given)
    _require_short(translator, ids, lines, "translation")
    return [
        Viewed(
            source,
            [
                Alternative(
                    target,
                    None,
                    forced.log_probability,
                    len(forced.pieces),
                    translator.attention(source, target),
                )
            ],
        )
        for source, target, forced in zip(
            chosen, given, translator.score(chosen, given), strict=True
        )
    ]


def _require_short(
    translator: Translator,
    ids: Sequence[Sequence[int]],
    lines: Sequence[int],
    side: str,
) -> None:
    """Raise InputError for what is longer than the translator takes."""
    longest = translator.longest
    for line, sequence in zip(lines, ids, strict=True):
        if longest is not None and len(sequence) > longest:
            raise InputError(
                f"the {side} of line {line} has {len(sequence)} pieces, end included, "
                f"more than {longest}; shorten it, or set max_source_length"
            )


class Looks(NamedTuple):
    """One of the three attentions of a layer, in words that can be read."""

    queries: list[str]  # Q pieces that look
    keys: list[str]  # K pieces that are looked at
    weights: np.ndarray  # f32 [H, Q, K]


def legible(pieces: Sequence[str]) -> list[str]:
    """Pieces without SentencePiece's mark; one that goes on with a word has a dot.

    The last piece, the end of the sentence, becomes <end>.
    """
    shown = []
    for piece in pieces[:-1]:
        text = piece.replace("\u2581", " ").strip() or "\u2423"
        goes_on = shown and not piece.startswith("\u2581")
        # Scripts from Thai on write no spaces: there nothing is to be told apart.
        dotted = goes_on and text[0].isalnum() and text[0] < "\u0e00"
        shown.append(f"\u00b7{text}" if dotted else text)
    return [*shown, END]


def looks_of(attention: Attention, kind: str, layer: int) -> Looks:
    """One of the three attentions in one layer, which counts from 1.

    A row of the decoder's is named by the piece that it predicts, and its columns by
    what it has seen before: the start, and the pieces up to then.
    """
    source, target = legible(attention.source), legible(attention.target)
    queries, keys = {
        "encoder": (source, source),
        "decoder": (target, [START, *target[:-1]]),
        "cross": (target, source),
    }[kind]
    return Looks(queries, keys, np.asarray(getattr(attention, kind)[layer - 1]))


def rows_of(
    looks: Looks, heads: Sequence[int], least: float = 0.0
) -> list[dict[str, Any]]:
    """Weights above 0, and not below `least`, as a chart's data; heads count from 1."""
    rows = []
    for head in heads:
        weights = looks.weights[head - 1]
        for query, key in np.argwhere(weights >= max(least, 0.0005)).tolist():
            weight = round(float(weights[query, key]), 3)
            rows.append({"head": head, "query": query, "key": key, "weight": weight})
    return rows


def pack(weights: np.ndarray) -> str:
    """Weights between 0 and 1 as bytes, each 1/255 or a multiple, small, as text."""
    levels = np.rint(np.asarray(weights, np.float64) * LEVELS).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()


def changes(best: str, other: str) -> list[tuple[str, str]]:
    """Cut a translation into words that the best one has, too, and those it has not.

    Each part is "same", "new" or, for words of the best one alone, "gone".
    """
    a, b = best.split(), other.split()
    parts = []
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "delete":
            parts.append(("gone", " ".join(a[a0:a1])))
        else:
            same = "same" if kind == "equal" else "new"
            parts.append((same, " ".join(b[b0:b1])))
    return parts
