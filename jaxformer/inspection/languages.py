"""Which of two languages a sentence is in, learnt from the parallel text itself.

Naive Bayes over the character n-grams of words: a few wrong pairs in a corpus do not
keep the two sides from being told apart, and no list of languages is needed. A side
may look like the other side's language, or like neither. Scores are sums over words,
so a word is scored once however often it occurs, and a longer sentence has more to say
for itself. The only importer of scikit-learn; used by `jaxformer.inspection.corpus`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from jaxformer.data.sources import Pair
from jaxformer.errors import InputError

# Verdicts on one side of a pair.
FINE, OTHER, NEITHER = range(3)
LEAST_PAIRS = 500  # fewer say too little about two languages

_NGRAMS = (1, 3)
_FEATURES = 2**18
_SMOOTHING = 0.5
# Natural logarithms of odds, n-grams of one length alone. A single word, which may be a
# name, never decides: 6 is 400 to 1.
_MOST_A_WORD = 3.0
_ENOUGH = 6.0
_ENOUGH_EACH = 3.0  # of either side where both say that they are swapped
_SEEN = 4  # times, and on both sides: a word's counts then know better than its letters
# Of the fewest words that make up this share of a side, which are mostly its short
# ones, every sentence of that language has some: too few, with a chance of e^-6, and
# n-grams 2 deviations rarer than usual together mean another language.
_COMMON_SHARE = 0.6
_MOST_COMMON = 1000
_MUST_HAVE = 6.0
_MAY_LACK = 3.0
_RARE = 2.0
_STRANGE = 15.0  # deviations, which only another script reaches
_LEAST_TOLD_APART = 0.7  # of the sentences that are decided, and half of them are
_MEASURED = 20_000  # sentences that show what is usual
_REMEMBERED = 400_000  # words whose scores are kept

# Scripts that put no spaces between words: a character counts as one.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
SPACELESS = re.compile(f"[{_SPACELESS}]")
# No \w: that would part words at the vowel signs of Hindi.
_WORD = re.compile(
    rf"[{_SPACELESS}]|[^\s\d\x00-@\[-`{{-\xbf\u060c\u061b\u061f\u0964\u0965"
    rf"\u2000-\u206f\u3000-\u303f\uff00-\uff20{_SPACELESS}]+"
)


class _Scores(NamedTuple):
    """What the words of sentences add up to: float64 [n], or [2, n] by language."""

    words: np.ndarray
    odds: np.ndarray  # log-odds of the target's language to the source's
    likelihood: np.ndarray  # mean log-likelihood of an n-gram, NaN without words
    common: np.ndarray  # how many words are common in that language


class Languages:
    """The two languages of a corpus, as its own pairs show them."""

    def __init__(self, pairs: Sequence[Pair]):
        """Learn from pairs, of which most should be right.

        Raises InputError without scikit-learn, for fewer than `LEAST_PAIRS` pairs, and
        where the sides look alike: two dialects, or text that was never translated.
        """
        if len(pairs) < LEAST_PAIRS:
            raise InputError(
                f"{len(pairs):,} pairs are too few to learn two languages from; "
                f"{LEAST_PAIRS:,} are enough"
            )
        try:
            from sklearn.feature_extraction.text import HashingVectorizer
            from sklearn.naive_bayes import MultinomialNB
        except ImportError as error:
            raise InputError(
                "telling languages apart needs scikit-learn, which is not installed; "
                "run: pip install 'jaxformer[report]'"
            ) from error
        self._vectorizer = HashingVectorizer(
            analyzer="char_wb",
            ngram_range=_NGRAMS,
            n_features=_FEATURES,
            norm=None,
            alternate_sign=False,
            lowercase=False,
            dtype=np.float32,
        )
        sides = [[_words(pair[side]) for pair in pairs] for side in (0, 1)]
        counts = [Counter(chain.from_iterable(side)) for side in sides]
        if not all(counts):
            raise InputError("a side of the text has no words to learn a language from")
        self._common = [_most_common(count) for count in counts]
        self._shared = _shared_words(*counts)
        bayes = MultinomialNB(alpha=_SMOOTHING, fit_prior=False)
        bayes.fit(
            self._vectorizer.transform(chain.from_iterable(counts)),
            np.repeat([0, 1], [len(count) for count in counts]),
            sample_weight=np.array([n for c in counts for n in c.values()], float),
        )
        self._log_probabilities = bayes.feature_log_prob_.T.astype(np.float32)
        self._forget()
        self._measure_usual([self._score(side[:_MEASURED]) for side in sides])

    def judge(self, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
        """FINE, OTHER (the other side's language) or NEITHER, int8 [2, n] by side.

        Both OTHER: the pair is swapped. A sentence too short to tell is FINE. Second,
        how sure that is, float [2, n]: comparable among sides of the same verdict.
        """
        sides = [[_words(pair[side]) for pair in pairs] for side in (0, 1)]
        scores = [self._score(side) for side in sides]
        foreign = np.stack([scores[0].odds, -scores[1].odds])
        is_swapped = (foreign > _ENOUGH_EACH).all(0) & (foreign.sum(0) > 2 * _ENOUGH)
        verdicts = np.zeros(foreign.shape, np.int8)
        sureness = np.zeros(foreign.shape)
        for side in (0, 1):
            lack, rarity = self._compare(scores[side], side)
            lack_there, rarity_there = self._compare(scores[side], 1 - side)
            is_foreign = (foreign[side] > _ENOUGH) | is_swapped
            is_odd = (lack > _MUST_HAVE) & (rarity > _RARE) | (rarity > _STRANGE)
            is_odd |= is_foreign
            is_odd_there = (lack_there > _MAY_LACK) & (rarity_there > _RARE)
            is_odd_there |= rarity_there > _STRANGE
            verdicts[side, is_odd & is_odd_there] = NEITHER
            verdicts[side, is_foreign & ~is_odd_there] = OTHER
            sureness[side] = np.where(is_odd_there, lack * rarity, foreign[side])
        return verdicts, sureness

    def _compare(self, scores: _Scores, language: int) -> tuple[np.ndarray, np.ndarray]:
        """How far sentences are from what is usual in a language, float [n] both.

        How improbable it is that they have so few of its common words, in nats; and how
        many deviations their n-grams are below the usual likelihood.
        """
        from scipy.stats import binom

        chance = binom.logcdf(
            scores.common[language], scores.words, self._common_share[language]
        )
        below = self._usual[language] - scores.likelihood[language]
        deviations = below * np.sqrt(scores.words) / self._spread[language]
        return -chance, np.nan_to_num(deviations)  # no words: nothing is unusual

    def _measure_usual(self, scores: Sequence[_Scores]) -> None:
        """Measure what is usual on either side. Raises InputError where both are."""
        right, decided = 0, 0
        self._common_share, self._usual, self._spread = [], [], []
        for side, own in enumerate(scores):
            odds = own.odds * (1 if side else -1)
            right += np.count_nonzero(odds > _ENOUGH_EACH)
            decided += np.count_nonzero(np.abs(odds) > _ENOUGH_EACH)
            has_words = own.words > 0
            words = own.words[has_words]
            likelihood = own.likelihood[side, has_words]
            usual = np.median(likelihood)
            spread = 1.4826 * np.median(np.abs(likelihood - usual) * np.sqrt(words))
            self._common_share.append(own.common[side].sum() / words.sum())
            self._usual.append(usual)
            self._spread.append(max(spread, 1e-6))
        sentences = len(scores[0].words) + len(scores[1].words)
        if 2 * decided < sentences or right < _LEAST_TOLD_APART * decided:
            raise InputError(
                "the two sides look too much alike to be told apart by their letters"
            )

    # Scores of words ------------------------------------------------------------------

    def _forget(self) -> None:
        self._rows: dict[str, int] = {}
        self._table = np.zeros((0, 6))

    def _score(self, sentences: Sequence[Sequence[str]]) -> _Scores:
        """Add up the scores of the words of each sentence."""
        if len(self._rows) > _REMEMBERED:
            self._forget()
        words = list(chain.from_iterable(sentences))
        new = [word for word in dict.fromkeys(words) if word not in self._rows]
        if new:
            self._rows |= {word: len(self._rows) + i for i, word in enumerate(new)}
            self._table = np.concatenate([self._table, self._score_words(new)])
        rows = np.fromiter(map(self._rows.__getitem__, words), np.intp, len(words))
        ends = np.cumsum([0, *map(len, sentences)])
        sums = np.zeros((len(words) + 1, 6))
        np.cumsum(self._table[rows], axis=0, out=sums[1:])
        added = (sums[ends[1:]] - sums[ends[:-1]]).T
        with np.errstate(invalid="ignore"):
            likelihood = added[1:3] / added[5]
        return _Scores(np.diff(ends), added[0], likelihood, added[3:5].round())

    def _score_words(self, words: Sequence[str]) -> np.ndarray:
        """Of each word the columns that `_score` adds up: float [n, 6]."""
        features = self._vectorizer.transform(words)
        by_language = features @ self._log_probabilities
        odds = (by_language[:, 1] - by_language[:, 0]) / (_NGRAMS[1] - _NGRAMS[0] + 1)
        for row, word in enumerate(words):
            if word in self._shared:  # names, and words of both languages
                most = self._shared[word]
                odds[row] = min(max(odds[row], min(most, 0.0)), max(most, 0.0))
        return np.column_stack(
            [
                np.clip(odds, -_MOST_A_WORD, _MOST_A_WORD),
                by_language,
                *([word in common for word in words] for common in self._common),
                np.asarray(features.sum(axis=1)).ravel(),
            ]
        )


def _words(sentence: str) -> list[str]:
    """The words of a sentence in lower case, without digits and punctuation."""
    return _WORD.findall(sentence.lower())


def _most_common(counts: Counter[str]) -> frozenset[str]:
    """The fewest words that make up `_COMMON_SHARE` of the text, at most a thousand."""
    words, numbers = zip(*counts.most_common(_MOST_COMMON), strict=True)
    before = np.cumsum(numbers) - numbers
    return frozenset(words[: np.sum(before < _COMMON_SHARE * counts.total())])


def _shared_words(source: Counter[str], target: Counter[str]) -> dict[str, float]:
    """Log-odds by their counts of words that occur on both sides."""
    share = np.log(source.total() / target.total())
    return {
        word: float(np.log(target[word] / count) + share)
        for word, count in source.items()
        if word in target and count + target[word] >= _SEEN
    }
