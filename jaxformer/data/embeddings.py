"""Word vectors from a word2vec text file, as first values of the embedding.

Section 3.4 learns the embedding from random numbers; vectors trained on much more text
of one language may be a better start where parallel text is scarce. Used by
`jaxformer.commands.train` for new runs (`training.initial_embeddings`).

The format: a line for each word, the word and its numbers separated by spaces; a first
line "words dimension" may come before them.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxformer.data.sources import read_lines
from jaxformer.errors import InputError

WORD_START = "\u2581"  # how SentencePiece writes the space before a word


def read_word_vectors(
    path: Path, pieces: Sequence[str], *, d_model: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find a vector for each piece: float32 [V, D] and whether there is one, bool [V].

    A piece takes the vector of the word that is spelt like it, else, if it starts a
    word, of that word: "▁dog" that of "dog". Rows without a vector are 0.

    The vectors are scaled together to the standard deviation that the embedding is
    drawn with, d_model^-0.5: word2vec's own lengths depend on how it was trained, and
    rows much longer than the drawn ones would drown the positions that are added to
    them and saturate the first softmax, whose matrix they are too.

    The file is streamed; lines of other words are skipped unread. Raises InputError,
    naming file and line, if it is missing, a vector has not `d_model` numbers, or one
    of them is no number.
    """
    spelt = _ids_by_spelling(pieces)
    vectors = np.zeros((len(pieces), d_model), np.float32)
    is_found = np.zeros(len(pieces), bool)
    for number, line in enumerate(read_lines(path), start=1):
        if number == 1:
            _check_dimension(path, line, d_model)
            if _is_header(line):
                continue
        word, _, numbers = line.partition(" ")
        for index in spelt.get(word, ()):
            if not is_found[index] or pieces[index] == word:
                vectors[index] = _parse(numbers, d_model, f"{path}, line {number}")
                is_found[index] = True
    if is_found.any():
        spread = vectors[is_found].std()
        if spread == 0.0:
            raise InputError(f"{path}: all numbers are equal; it holds no word vectors")
        vectors *= d_model**-0.5 / spread
    return vectors, is_found


def _ids_by_spelling(pieces: Sequence[str]) -> dict[str, list[int]]:
    ids = defaultdict(list)
    for index, piece in enumerate(pieces):
        for spelling in {piece, piece.removeprefix(WORD_START)}:
            ids[spelling].append(index)
    return ids


def _is_header(line: str) -> bool:
    """Whether it is "words dimension"; a vector has at least two numbers and a word."""
    return len(line.split()) == 2


def _check_dimension(path: Path, line: str, d_model: int) -> None:
    """Refuse a whole file by its first line, before millions of others are read."""
    fields = line.split()
    found = fields[-1] if _is_header(line) else str(len(fields) - 1)
    if found != str(d_model):
        raise InputError(
            f"{path}, line 1: its vectors have {found} numbers and model.d_model is "
            f"{d_model}; use vectors of that size"
        )


def _parse(numbers: str, d_model: int, place: str) -> np.ndarray:
    fields = numbers.split()
    if len(fields) != d_model:
        raise InputError(
            f"{place}: the vector has {len(fields)} numbers instead of {d_model}; the "
            "line is damaged"
        )
    try:
        vector = np.array(fields, np.float32)
    except ValueError as error:
        raise InputError(f"{place}: {error}; the line is damaged") from None
    if not np.isfinite(vector).all():
        raise InputError(f"{place}: the vector holds a number that is not finite")
    return vector
