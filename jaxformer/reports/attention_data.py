"""Attention as the viewer shows it: sentences, their translations, and weights."""

import base64
import difflib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.decoding.forced import Attention
from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.translator import Translator
from jaxformer.reports.page import Json
from jaxformer.system.errors import InputError, counted

# The three attentions of section 3.2.3: name, and whose pieces attend to whose (the
# names of `sides_of`).
KINDS = {
    kind: {"name": name, "queries": queries, "keys": keys}
    for kind, name, queries, keys in (
        ("encoder", "Encoder self-attention", "sentence", "sentence"),
        ("decoder", "Decoder self-attention", "translation", "translation so far"),
        ("cross", "Encoder-decoder attention", "translation", "sentence"),
    )
}
MAX_SENTENCES = 50  # of a page, which holds the attention of all their translations
LEVELS = 255  # a page stores weights as bytes; 255 is a weight of 1
START, END = "<start>", "<end>"


class Alternative(NamedTuple):
    """A translation of a sentence, whose score is None if it was given."""

    found: Hypothesis
    attention: Attention


class AttendedSentence(NamedTuple):
    """A sentence and its translations, the best first."""

    source: str
    alternatives: list[Alternative]

    def packed(self) -> Json:
        """Return texts, pieces, scores and packed weights as JSON values."""
        best = self.alternatives[0]
        return {
            "text": self.source,
            "encoder": pack(best.attention.encoder),
            "alternatives": [
                {
                    **found.summary(),
                    "parts": word_diff(best.found.text, found.text),
                    "sides": sides_of(attention),
                    "decoder": pack(attention.decoder),
                    "cross": pack(attention.cross),
                }
                for found, attention in self.alternatives
            ],
        }


class AttentionMatrix(NamedTuple):
    """One kind of attention in one layer, with pieces that people can read."""

    queries: list[str]  # Q pieces
    keys: list[str]  # K pieces
    weights: np.ndarray  # f32 [H, Q, K]


def attend(
    translator: Translator, sources: Sequence[str], targets: Sequence[str] | None = None
) -> list[AttendedSentence]:
    """Compute the attention of sentences and their translations.

    Without `targets` the sentences are translated first, and split if the translator
    splits them. Blank sentences are left out. Raises InputError if none is left, for
    more than MAX_SENTENCES, and for one over `translator.longest`.
    """
    if targets is None:
        sources = [
            part for source in sources for part in translator.text.sentences(source)
        ]
        translator = translator.of_sentences()
    ids = {"sentence": translator.tokenizer.encode(sources)}
    if targets is not None:
        ids["translation"] = translator.tokenizer.encode_target(targets)
    code_of = translator.tokenizer.language_code
    blank = [1 + bool(code_of(source)) for source in sources]  # tag and end
    lines = [at for at, each in enumerate(ids["sentence"]) if len(each) > blank[at]]
    if not 1 <= len(lines) <= MAX_SENTENCES:
        raise InputError(
            f"the text has {counted(len(lines), 'sentence')}; give 1 to "
            f"{MAX_SENTENCES} that are not blank"
        )
    for side, sequences in ids.items():
        for line in lines:
            length = len(sequences[line])
            if length > (translator.longest or length):
                raise InputError(
                    f"the {side} of line {line + 1} has {length:,} pieces, end "
                    f"included, more than {translator.longest:,}; shorten it, or set "
                    "max_source_length"
                )
    sources = [sources[at] for at in lines]
    if targets is None:
        found = translator.translate(sources)
    else:
        targets = [targets[at] for at in lines]
        scored = translator.score(sources, targets)
        found = [
            [Hypothesis(text, None, s.log_probability, len(s.pieces), pieces=s.pieces)]
            for text, s in zip(targets, scored, strict=True)
        ]
    return [
        AttendedSentence(
            source,
            [Alternative(h, translator.attention(source, h.pieces)) for h in each],
        )
        for source, each in zip(sources, found, strict=True)
    ]


def readable(pieces: Sequence[str]) -> list[str]:
    """Return pieces without SentencePiece's mark; the last one becomes <end>.

    A piece that continues a word begins with a dot.
    """
    shown = []
    for piece in pieces[:-1]:
        text = piece.replace("\u2581", " ").strip() or "\u2423"
        continues = shown and not piece.startswith("\u2581")
        # Scripts from Thai on write no spaces, so that no piece continues a word.
        dotted = continues and text[0].isalnum() and text[0] < "\u0e00"
        shown.append(f"\u00b7{text}" if dotted else text)
    return [*shown, END]


def sides_of(attention: Attention) -> dict[str, list[str]]:
    """Return the pieces that attend and are attended to, by the names in KINDS.

    The decoder's rows are named by the pieces that they predict, its columns by its
    inputs: START and the previous pieces.
    """
    source, target = readable(attention.source), readable(attention.target)
    inputs = [START, *target[:-1]]
    return {"sentence": source, "translation": target, "translation so far": inputs}


def matrix_of(attention: Attention, kind: str, layer: int) -> AttentionMatrix:
    """Return one kind of attention in one layer, which counts from 1."""
    queries, keys = (sides_of(attention)[KINDS[kind][k]] for k in ("queries", "keys"))
    return AttentionMatrix(
        queries, keys, np.asarray(getattr(attention, kind)[layer - 1])
    )


def pack(weights: np.ndarray) -> str:
    """Compress weights as text: multiples of 1/LEVELS, as bytes, zlib and base64."""
    levels = np.rint(np.asarray(weights, np.float64) * LEVELS).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()


def word_diff(best: str, other: str) -> list[tuple[str, str]]:
    """Compare a translation with the best one, word by word.

    Returns parts: ("same", words), ("new", words of the other alone) or ("gone", words
    of the best alone that nothing replaces).
    """
    a, b = best.split(), other.split()
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    names = {"equal": "same", "delete": "gone", "insert": "new", "replace": "new"}
    return [
        (names[change], " ".join(a[a0:a1] if change == "delete" else b[b0:b1]))
        for change, a0, a1, b0, b1 in matcher.get_opcodes()
    ]
