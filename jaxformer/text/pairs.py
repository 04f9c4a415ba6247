"""Which machine translations are fit to be training text."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.text.cleaning import length_faults
from jaxformer.text.languages import Languages
from jaxformer.text.lines import normalise
from jaxformer.tokens import AnyTokenizer

REASONS = ("empty", "too_long", "ratio", "language", "unknown", "copy", "score")


class PairFilter:
    """Rules for lines and their translations.

    A pair is dropped for the first of:

    - "empty", "too_long", "ratio": its lengths, as in `text.cleaning.clean_chunk`.
    - "language": `languages` finds a side in another language; None: no such rule.
    - "unknown": the line has no character of the vocabulary.
    - "copy": the translation is the line.
    - "score": the mean log-probability of the translation's tokens is below
      `least_log_probability`; None: no such rule.
    """

    def __init__(
        self,
        tokenizer: AnyTokenizer,
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
        return _first(self._faults(ids, ids, self._is_foreign(lines, 0)), len(lines))

    def of_pairs(
        self,
        lines: Sequence[str],
        translations: Sequence[str],
        log_probabilities: Sequence[float],
    ) -> list[str]:
        """Return why each translation of a line that needs one is dropped, or "".

        `log_probabilities` are those of the mean token, natural logarithms.
        """
        ids = self._tokenizer.encode_target(translations)
        foreign = self._is_foreign(translations, 1)
        faults = self._faults(self._encode(lines), ids, foreign)
        tag_of = self._tokenizer.language_code
        texts = [line.removeprefix(tag_of(line)) for line in map(str.strip, lines)]
        same = zip(map(normalise, texts), map(normalise, translations), strict=True)
        faults["copy"] = np.array([left == right for left, right in same])
        if self._least is not None:
            faults["score"] = np.array(log_probabilities) < self._least
        return _first(faults, len(lines))

    def _faults(
        self, source: list[list[int]], target: list[list[int]], foreign: np.ndarray
    ) -> dict[str, np.ndarray]:
        lengths = np.array([[*map(len, ids)] for ids in (source, target)], int)
        unknown = np.array([*map(self._tokenizer.is_unknown, source)], bool)
        faults = length_faults(lengths, self._config)
        return {**faults, "language": foreign, "unknown": unknown}

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
