"""The probability of each word of a translation, from the word's pieces."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

# Thai, Lao, Burmese, Khmer, Japanese and Chinese have no spaces between words.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_PUNCTUATION = (
    "!-/:-@\\[-`{-~\u00a1-\u00bf\u060c\u061b\u061f\u0964\u0965"
    "\u2010-\u205e\u3001-\u303f\uff01-\uff0f\uff1a-\uff20"
)
# Where a word may begin: at a letter without spaces, at a run of letters, such as
# "don't" and "3.5", and at a run of punctuation.
_BEGINS = re.compile(
    f"[{_UNSPACED}]"
    f"|(?:[^\\s{_UNSPACED}{_PUNCTUATION}]|(?<=\\w)['\u2019.,](?=\\w))+"
    f"|[{_PUNCTUATION}]+"
)


class Word(NamedTuple):
    """A word of a translation, or its punctuation."""

    word: str
    log_probability: float  # natural logarithm, of its pieces given earlier ones


def words_of(
    text: str, pieces: Sequence[str], log_probabilities: Sequence[float]
) -> list[Word]:
    """Cut a text into words, each with the sum of its pieces' log-probabilities.

    A piece belongs to the word in which it begins, and a word begins with a piece. EOS
    and tags belong to no word. A text that the pieces do not spell, such as one with an
    unknown character, has no words.
    """
    starts, at = [], 0  # of each piece in the text
    for piece, value in zip(pieces, log_probabilities, strict=False):
        spelled = piece.replace("\u2581", " ").strip()
        while at < len(text) and text[at].isspace():
            at += 1
        if text.startswith(spelled, at):
            starts.append((at, value))
            at += len(spelled)
    if at < len(text) or not starts:
        return []
    begins = {match.start() for match in _BEGINS.finditer(text)}
    cuts = sorted({0, len(text), *begins.intersection(start for start, _ in starts)})
    return [
        Word(
            text[begin:end].strip(),
            sum(value for start, value in starts if begin <= start < end),
        )
        for begin, end in pairwise(cuts)
    ]
