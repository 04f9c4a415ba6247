"""Find blocks of lines in which the two sides are shifted against each other."""

from collections.abc import Sequence

import numpy as np

_BLOCK = 20  # lines
_SURE = 30  # nats: real corpora have no block that fits better when it is shifted
_MOST = 4.5  # nats that one pair of lengths counts at most
_WORD = 2  # nats for a word or a number that is on both sides, which two count


def find_shifted(sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """Return by how many lines the targets of a block come late: [n], 0, 1 or -1.

    A pair fits by the ratio of its lengths, log-normal in the text, and by the words
    and numbers that both sides have. The text is shifted by one line, either way.
    """
    count = len(sources)
    lengths = [np.log1p([*map(len, side)]) for side in (sources, targets)]
    words = [[{*text.lower().split()} for text in side] for side in (sources, targets)]
    found = np.zeros(count, int)
    if count <= _BLOCK:
        return found
    own = {k: np.arange(max(0, -k), min(count, count - k)) for k in (0, -1, 1)}
    ratios = {k: lengths[1][own[k] + k] - lengths[0][own[k]] for k in own}
    ratios = {k: each - np.median(each) for k, each in ratios.items()}
    # The whole text may be shifted.
    spread = max(0.1, min(1.5 * np.median(abs(each)) for each in ratios.values()))

    def fit(shift: int) -> np.ndarray:
        scores, lines = np.full(count, -_MOST), own[shift]
        scores[lines] = -np.minimum((ratios[shift] / spread) ** 2 / 2, _MOST)
        pairs = ((words[0][line], words[1][line + shift]) for line in lines.tolist())
        scores[lines] += [_WORD * min(2, len(one & other)) for one, other in pairs]
        return scores

    straight = fit(0)
    for shift in (-1, 1):
        gain = np.convolve(fit(shift) - straight, np.ones(_BLOCK), "valid")
        for start in np.flatnonzero(gain > _SURE):
            found[start : start + _BLOCK] = shift
    return found
