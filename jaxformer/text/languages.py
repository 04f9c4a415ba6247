"""Find sentences that are not in the language of their side, by the model of py3langid.

The model is a naive Bayes classifier of 139 languages. Its features are byte sequences
that a finite-state machine recognises. py3langid classifies one sentence at a time;
here many go through the machine together, which is faster, with the same probabilities.
"""

import functools
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from py3langid.langid import MODEL_DIR, MODEL_FILE
from py3langid.modelio import load_model
from scipy.sparse import csr_matrix

from jaxformer.config.languages import base_language
from jaxformer.system.errors import InputError
from jaxformer.tokens import SIDES

logger = logging.getLogger(__name__)

_load = functools.cache(load_model)
_ODDS = 15  # of another language to the side's own, for a sentence to be reported
UNDETERMINED = "und"  # ISO 639-2
_NO_LANGUAGE = "zxx"  # the model's label for numbers, markup and the like
_MOST = 500  # characters of a sentence that are classified


def recognise(texts: Sequence[str], side: str) -> str:
    """Return and log the language of most texts. Raises InputError if none has most."""
    model = Languages(("en", "en"))  # any two
    found = model.languages[model.classify(texts).argmax(axis=1)]
    (code, count), *_ = Counter(found.tolist()).most_common()
    said = f"{count / len(texts):.0%} of the first lines of the {side} are {code}"
    if count <= len(texts) / 2:
        raise InputError(f"only {said}; give --{side}_language")
    logger.info(said)
    return code


class Languages:
    """The two languages of a corpus."""

    def __init__(self, codes: tuple[str, str]) -> None:
        """Take two language codes. Raises InputError for one that the model lacks."""
        weights, priors, labels, moves, rows, features = _load(MODEL_DIR / MODEL_FILE)
        self._codes, self.labels = [*map(base_language, codes)], np.array(labels)
        self.languages = np.array([*map(base_language, labels)])
        for code in self._codes:
            if code not in self.languages:
                raise InputError(f"languages: py3langid has no language {code!r}")
        self._weights = np.asarray(weights, np.float32)  # [features, len(labels)]
        self._priors = np.asarray(priors)  # [len(labels)]
        self._rows = np.asarray(rows, np.int64) * 256  # by state: of its first move
        self._moves = np.asarray(moves)  # the next state by row and byte
        self._features = np.asarray(features)  # by state; negative: none

    def judge(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> Iterator[tuple[int, str, str | None, float]]:
        """Yield index, kind of finding, a third language and odds for each wrong side.

        A pair whose sides are in each other's language is "swapped", and yielded once.
        """
        source, target = self._codes
        found = self.foreign(sources, 0), self.foreign(targets, 1)
        for index in sorted(found[0].keys() | found[1].keys()):
            sides = [each.get(index, (None, 0.0)) for each in found]
            if (sides[0][0], sides[1][0]) == (target, source):
                yield index, "swapped", None, sides[0][1] * sides[1][1]
                continue
            for side, (language, odds) in enumerate(sides):
                if language == self._codes[side - 1]:
                    kind = f"{SIDES[side]}_in_{SIDES[side - 1]}_language"
                    yield index, kind, None, odds
                elif language:
                    yield index, f"{SIDES[side]}_in_neither", language, odds

    def foreign(self, texts: Sequence[str], side: int) -> dict[int, tuple[str, float]]:
        """Return, by index, the language of sentences of another one, and its odds.

        `side` 0 is the source, 1 the target.
        """
        scores = self.classify(texts)
        best = scores.argmax(axis=1)
        is_own = self.languages == self._codes[side]
        own = scores[:, is_own].max(axis=1)  # of one or two scripts
        odds = scores.max(axis=1) - own
        return {
            i: (str(self.languages[best[i]]), math.exp(odds[i]))
            for i in np.flatnonzero(odds > math.log(_ODDS)).tolist()
            if self.labels[best[i]] != _NO_LANGUAGE
        }

    def classify(self, texts: Sequence[str]) -> np.ndarray:
        """Return log-probabilities, less a constant of each row: [n, len(labels)]."""
        texts = [text[:_MOST] for text in texts]
        encoded = [(t.lower() if t.isupper() else t).encode() for t in texts]
        lengths = np.array([len(each) for each in encoded])
        order = np.argsort(-lengths, kind="stable")  # the longest first
        begin = (np.cumsum(lengths) - lengths)[order]
        negative = -lengths[order]  # ascending, as searchsorted needs
        content = np.frombuffer(b"".join(encoded), np.uint8)
        state = np.zeros(len(texts), np.int64)
        count = len(self._weights)
        found = [np.empty(0, np.int64)]  # sentence * count + feature
        for i in range(lengths.max(initial=0)):
            longer = np.searchsorted(negative, -i)  # sentences with a byte i
            state = state[:longer]
            byte = content[begin[:longer] + i]
            state = self._moves[self._rows[state] + byte]
            feature = self._features[state]
            has = np.flatnonzero(feature >= 0)
            found.append(has * count + feature[has])
        keys, times = np.unique(np.concatenate(found), return_counts=True)
        starts = np.searchsorted(keys, np.arange(len(texts) + 1) * count)
        values = np.log1p(times, dtype=np.float32)
        shape = len(texts), count
        scores = csr_matrix((values, keys % count, starts), shape) @ self._weights
        scores += self._priors
        scores[np.diff(starts) == 0] = 0  # without a feature all are equally probable
        scores /= np.sqrt(np.maximum(-negative, 1, dtype=np.float32))[:, None]
        return scores[np.argsort(order)]


def most_probable(codes: Sequence[str], text: str) -> list[tuple[str, float]]:
    """Order languages by the probability that a text is in each, and not in others.

    Returns codes and percents, which sum to 100. A single language has 100 %. One that
    py3langid lacks has 0 %, unless it lacks all.
    """
    if len(codes) == 1:
        return [(codes[0], 100.0)]
    known = Languages(("en", "en"))
    (scores,) = known.classify([text])
    is_of = [known.languages == base_language(code) for code in codes]
    own = np.array([scores[each].max(initial=-1e9) for each in is_of])
    percents = np.exp(own - own.max())
    percents *= 100 / percents.sum()
    found = zip(codes, percents.tolist(), strict=True)
    return sorted(found, key=lambda each: -each[1])
