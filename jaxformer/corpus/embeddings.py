"""Read word vectors from a word2vec text file, as first values of the embedding.

Section 3.4 learns the embedding from random numbers; vectors of one language may be a
better start where parallel text is scarce (`training.initial_embeddings`).
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxformer.system.errors import InputError
from jaxformer.text.lines import read_lines

WORD_START = "\u2581"  # SentencePiece's mark of the space before a word


def read_word_vectors(
    path: Path, pieces: Sequence[str], *, d_model: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find a vector for each piece: float32 [V, D] and whether there is one, bool [V].

    A line is a word and its numbers; a first line "words dimension" is optional. A
    piece takes the vector of the word that is spelt like it, or else "▁dog" that of
    "dog". Rows without a vector are 0.

    All vectors are scaled by one factor, to the standard deviation that the embedding
    is drawn with, d_model^-0.5. Much longer rows would outweigh the positions
    added to them and saturate the first softmax, which shares their matrix.

    Raises InputError, naming file and line, for anything but `d_model` finite numbers.
    """
    ids = defaultdict(list)  # of a spelling
    for index, piece in enumerate(pieces):
        for spelling in {piece, piece.removeprefix(WORD_START)}:
            ids[spelling].append(index)
    vectors = np.zeros((len(pieces), d_model), np.float32)
    is_found = np.zeros(len(pieces), bool)
    for number, line in enumerate(read_lines(path), start=1):
        word, _, numbers = line.partition(" ")
        is_header = number == 1 and len(line.split()) == 2  # vectors are longer
        if number <= 2 and not is_header:  # whether or not a piece needs it
            _parse(numbers, d_model, f"{path}, line {number}")
        for index in () if is_header else ids.get(word, ()):
            if not is_found[index] or pieces[index] == word:
                vectors[index] = _parse(numbers, d_model, f"{path}, line {number}")
                is_found[index] = True
    if is_found.any():
        spread = vectors[is_found].std()
        if spread == 0.0:
            raise InputError(f"{path}: all numbers are equal; it holds no word vectors")
        vectors *= d_model**-0.5 / spread
    return vectors, is_found


def _parse(numbers: str, d_model: int, line: str) -> np.ndarray:
    try:
        vector = np.array(numbers.split(), np.float32)
    except ValueError as error:
        raise InputError(f"{line}: {error}; the line is damaged") from None
    if len(vector) != d_model:
        raise InputError(
            f"{line}: the vector has {len(vector)} numbers and model.d_model is "
            f"{d_model}; use vectors of that size"
        )
    if not np.isfinite(vector).all():
        raise InputError(f"{line}: the vector holds a number that is not finite")
    return vector
