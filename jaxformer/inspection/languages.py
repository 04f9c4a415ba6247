"""Find sentences that are not in the language of their side, by py3langid.

Its model gives each of 139 languages a probability, calibrated for short sentences.
"""

from collections import Counter
from collections.abc import Iterator

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from jaxformer.data.sources import Pair
from jaxformer.errors import InputError

SIDES = ("source", "target")
_ODDS = 15  # of another language to the side's own, for a sentence to be reported
_NO_LANGUAGE = "zxx"  # the model's label for numbers, markup and the like
_LEARN_FROM = 20_000  # classified sentences that show which words are certain
_CERTAIN = 5  # sentences of a language that a certain word occurs in, at least,
_PER_OTHER = 50  # and how many of them for each sentence of another language


class Languages:
    """The two languages of a corpus.

    The model takes 30 microseconds a sentence. Sentences are not classified if they
    mostly consist of words that have occurred in sentences of one language alone.
    """

    def __init__(self, codes: tuple[str, str]) -> None:
        """Take two ISO 639 codes. Raises InputError for one that the model lacks."""
        self._codes = codes
        self._model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        for code in codes:
            if code not in self._model.labels:
                raise InputError(f"languages: py3langid has no language {code!r}")
        # By side: words of its language, words of others, words that are certain.
        self._words = [(Counter(), Counter(), set()) for _ in codes]
        self._learnt_from = 0

    def judge(self, pair: Pair) -> Iterator[tuple[str, str | None, float]]:
        """Yield for each wrong side the kind of finding, a third language and the odds.

        A pair whose sides are in each other's language is "swapped", and yielded once.
        """
        found = [self._find_foreign(text, side) for side, text in enumerate(pair)]
        if tuple(language for language, _ in reversed(found)) == self._codes:
            yield "swapped", None, found[0][1] * found[1][1]
            return
        for side, (language, odds) in enumerate(found):
            if language == self._codes[side - 1]:
                yield f"{SIDES[side]}_in_{SIDES[side - 1]}_language", None, odds
            elif language:
                yield f"{SIDES[side]}_in_neither", language, odds

    def _find_foreign(self, text: str, side: int) -> tuple[str | None, float]:
        """Return the language of a sentence if not its side's, and the odds of it."""
        words = text.lower().split()
        certain = sum(map(self._words[side][2].__contains__, words))
        if certain >= max(3, len(words) / 2):
            return None, 0.0
        language, probability = self._model.classify(text)
        if self._learnt_from < _LEARN_FROM:
            self._learn(set(words), language)
        if language in (self._codes[side], _NO_LANGUAGE):
            return None, 0.0
        own = dict(self._model.rank(text))[self._codes[side]]
        odds = probability / max(own, 1e-30)
        return (language, odds) if odds > _ODDS else (None, 0.0)

    def _learn(self, words: set[str], language: str) -> None:
        self._learnt_from += 1
        sides = zip(self._codes, self._words, strict=True)
        for code, (inside, outside, certain) in sides:
            if language == code:
                inside.update(words)
                often = {w for w in words if inside[w] >= _CERTAIN}
                certain |= {w for w in often if inside[w] >= _PER_OTHER * outside[w]}
            else:
                outside.update(words)
                certain -= {w for w in words if inside[w] < _PER_OTHER * outside[w]}
