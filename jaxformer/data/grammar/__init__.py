"""The built-in English-German corpus: a grammar that writes both languages at once.

The demo learns from it, so that a first run needs no download. An English sentence has
exactly one translation, so exact match is a fair measure, and every sentence names the
phenomena it shows (cases, verb-final order, separable verbs, ...), so accuracy can be
told apart by phenomenon.

Four splits, disjoint for every seed and count because what belongs to a split is a
property of the sentence: a sentence with a held-out combination of words (an adjective
and its noun, or a verb and its object) is "unseen"; a hash of the English text sends
every other one to "train", "dev" or "test". The words of "unseen" all occur in "train",
in other combinations.

`adjectives`, `nouns`, `verbs` and `determiners` hold the words and their endings;
`phrases`, `predicates`, `clauses`, `sentences` and `questions` build on them in that
order.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from jaxformer.data.grammar import questions, sentences
from jaxformer.data.grammar.phrases import Draw
from jaxformer.data.grammar.sentences import Sentence
from jaxformer.errors import InputError

SPLITS = ("train", "dev", "test", "unseen")

# The oftener a pattern is named, the likelier it is.
PATTERNS = (
    *(sentences.statement,) * 6,
    *(sentences.fronted,) * 5,
    *(sentences.subordinate,) * 5,
    *(sentences.reported,) * 2,
    *(sentences.planned,) * 2,
    *(sentences.relative_subject,) * 2,
    sentences.relative_object,
    sentences.counted,
    sentences.existing,
    sentences.compared,
    sentences.contrasted,
    *(questions.question,) * 3,
    questions.asked_who,
    questions.asked_when,
    questions.asked_where,
    questions.asked_what,
)


class Pair(NamedTuple):
    """A sentence, its translation, and the phenomena in it, sorted."""

    source: str
    target: str
    phenomena: tuple[str, ...]


def generate(split: str, count: int, seed: int) -> Iterator[Pair]:
    """`count` different pairs of a split; a larger count continues a smaller one.

    Raises InputError for an unknown split.
    """
    if split not in SPLITS:
        raise InputError(
            f"The built-in corpus has no split {split!r}; use {', '.join(SPLITS)}."
        )
    return _generate(split, count, seed)


def _generate(split: str, count: int, seed: int) -> Iterator[Pair]:
    draw = Draw(f"{split} {seed}")
    written: set[str] = set()
    while len(written) < count:
        sentence = draw.one_of(PATTERNS)(draw)
        source = capitalised(sentence.english)
        if source not in written and split_of(sentence, source) == split:
            written.add(source)
            target = capitalised(sentence.german)
            yield Pair(source, target, tuple(sorted(sentence.tags)))


def split_of(sentence: Sentence, source: str) -> str:
    """The split a sentence belongs to, whatever the seed."""
    if any(is_held_out(pair) for pair in sentence.pairs):
        return "unseen"
    return {0: "dev", 1: "test"}.get(zlib.crc32(source.encode()) % 10, "train")


@cache
def is_held_out(pair: tuple[str, str]) -> bool:
    """Whether a combination of two words is kept for "unseen": one in ten is."""
    return zlib.crc32(" ".join(pair).encode()) % 10 == 0


def capitalised(text: str) -> str:
    """The text with a capital first letter and the rest as it is."""
    return text[0].upper() + text[1:]


def accuracy_by_phenomenon(
    pairs: Iterable[Pair], translations: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """How many translations are exactly right and how many there are, by phenomenon.

    Raises ValueError if there are not as many translations as pairs.
    """
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for pair, translation in zip(pairs, translations, strict=True):
        total.update(pair.phenomena)
        if translation == pair.target:
            right.update(pair.phenomena)
    return {name: (right[name], total[name]) for name in sorted(total)}
