"""Which machine translations are fit to be training text."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxformer.batch import Tokenizer
from jaxformer.data.cleaning import length_faults
from jaxformer.data.text import normalise
from jaxformer.data_config import DataConfig
from jaxformer.inspection.languages import Languages

REASONS = ("empty", "too_long", "ratio", "language", "copy", "score")


class PairFilter:
    """Rules for lines and their translations.

    A pair is dropped for the first of:

    - "empty", "too_long", "ratio": its lengths, as in `data.cleaning.clean`.
    - "language": `languages` finds a side in another language; None: no such rule.
    - "copy": the translation is the line.
    - "score": the mean log-probability of the translation's tokens is below
      `least_log_probability`; None: no such rule.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: DataConfig,
        *,
        languages: Languages | None,
        least_log_probability: float | None,
    ) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._languages, self._least = languages, least_log_probability

    def of_lines(self, lines: Sequence[str]) -> list[str]:
        """Return why each line needs no translation, or "" if it needs one."""
        ids = self._encode(lines)
        faults = length_faults([ids, ids], self._config)
        return _first({**faults, "language": self._is_foreign(lines, 0)}, len(lines))

    def of_pairs(
        self,
        lines: Sequence[str],
        translations: Sequence[str],
        log_probabilities: Sequence[float],
    ) -> list[str]:
        """Return why each translation of a line that needs one is dropped, or "".

        `log_probabilities` are those of the mean token, natural logarithms.
        """
        sides = [self._encode(lines), self._tokenizer.encode_target(translations)]
        faults = length_faults(sides, self._config)
        faults["language"] = self._is_foreign(translations, 1)
        same = zip(map(normalise, lines), map(normalise, translations), strict=True)
        faults["copy"] = np.array([left == right for left, right in same])
        if self._least is not None:
            faults["score"] = np.array(log_probabilities) < self._least
        return _first(faults, len(lines))

    def _encode(self, lines: Sequence[str]) -> list[list[int]]:
        tag = self._config.tag and f"{self._config.tag} "
        return self._tokenizer.encode([tag + line for line in lines])

    def _is_foreign(self, texts: Sequence[str], side: int) -> np.ndarray:
        found = np.zeros(len(texts), bool)
        if self._languages and texts:
            found[[*self._languages.foreign(texts, side)]] = True
        return found


def _first(faults: Mapping[str, np.ndarray], count: int) -> list[str]:
    """Return the first of the reasons that holds for each of `count` texts, or ""."""
    found = [""] * count
    for reason in reversed(faults):
        for index in np.flatnonzero(faults[reason]).tolist():
            found[index] = reason
    return found
