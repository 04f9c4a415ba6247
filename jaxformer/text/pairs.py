"""Which machine translations are fit to be training text."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.text.cleaning import length_faults
from jaxformer.text.languages import Languages
from jaxformer.text.lines import normalise
from jaxformer.tokens import AnyTokenizer

REASONS = ("empty", "too_long", "ratio", "language", "copy", "score")


class PairFilter:
    """Rules for lines and their translations.

    A pair is dropped for the first of:

    - "empty", "too_long", "ratio": its lengths, as in `text.cleaning.clean_chunk`.
    - "language": `languages` finds a side in another language; None: no such rule.
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
        lengths = self._lengths(lines)
        faults = length_faults(np.stack([lengths, lengths]), self._config)
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
        found = [*map(len, self._tokenizer.encode_target(translations))]
        lengths = np.stack([self._lengths(lines), np.array(found, int)])
        faults = length_faults(lengths, self._config)
        faults["language"] = self._is_foreign(translations, 1)
        tag_of = self._tokenizer.language_code
        texts = [line.removeprefix(tag_of(line)) for line in map(str.strip, lines)]
        same = zip(map(normalise, texts), map(normalise, translations), strict=True)
        faults["copy"] = np.array([left == right for left, right in same])
        if self._least is not None:
            faults["score"] = np.array(log_probabilities) < self._least
        return _first(faults, len(lines))

    def _lengths(self, lines: Sequence[str]) -> np.ndarray:
        tag = self._config.tag and f"{self._config.tag} "
        ids = self._tokenizer.encode([tag + line for line in lines])
        return np.array([*map(len, ids)], int)

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
