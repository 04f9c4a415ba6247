"""The built-in English-German corpus: a grammar that writes both languages at once.

An English sentence has exactly one translation, so exact match is a fair measure. Every
sentence names its phenomena (cases, separable verbs, ...), so that accuracy can be
counted by phenomenon.

The sentence alone decides its split, so the four splits are disjoint for every seed and
count. A sentence with a held-out combination (an adjective and its noun, or a verb and
its object) is "unseen"; a hash of the English text sends the others to "train", "dev"
or "test". The words of "unseen" all occur in "train", in other combinations.
"""

import random
import threading
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import NamedTuple

from jaxformer.grammar.noun_phrases import Draw, Phrase
from jaxformer.grammar.sentences import PATTERNS
from jaxformer.system.errors import InputError

SPLITS = ("train", "dev", "test", "unseen")
_MOST_KEPT = 200_000  # pairs, of about 400 bytes
_drawing = threading.Lock()


class Pair(NamedTuple):
    """A sentence, its translation, and the phenomena in it, sorted."""

    source: str
    target: str
    phenomena: tuple[str, ...]


def generate(split: str, count: int, seed: int) -> Iterator[Pair]:
    """Yield `count` different pairs of a split; a larger count continues a smaller one.

    Few pairs are kept for the next call, since preparation reads a text twice. Raises
    InputError, when iterated, for an unknown split.
    """
    if split not in SPLITS:
        raise InputError(
            f"the built-in corpus has no split {split!r}; use {', '.join(SPLITS)}"
        )
    if count > _MOST_KEPT:
        yield from islice(_drawn(split, seed), count)
        return
    kept, others = _kept(split, seed)
    for number in range(count):
        with _drawing:
            if number == len(kept):
                kept.append(next(others))
        yield kept[number]


@cache
def _kept(split: str, seed: int) -> tuple[list[Pair], Iterator[Pair]]:
    """The pairs of a split that were drawn, and those to draw."""
    return [], _drawn(split, seed)


def _drawn(split: str, seed: int) -> Iterator[Pair]:
    draw = Draw(random.Random(f"{split} {seed}").random)
    written: set[str] = set()
    while True:
        sentence = draw.one_of(PATTERNS)(draw)
        source, target = _written(sentence.english), _written(sentence.german)
        if source not in written and _split_of(sentence, source) == split:
            written.add(source)
            yield Pair(source, target, tuple(sorted(sentence.tags)))


def _split_of(sentence: Phrase, source: str) -> str:
    if any(map(is_held_out, sentence.pairs)):
        return "unseen"
    return {0: "dev", 1: "test"}.get(zlib.crc32(source.encode()) % 10, "train")


@cache
def is_held_out(pair: tuple[str, str]) -> bool:
    """Return whether a combination of two words is held out; one in ten is."""
    return zlib.crc32(" ".join(pair).encode()) % 10 == 0


def _written(text: str) -> str:
    """Capitalise the first letter and remove the space before each punctuation mark."""
    for mark in ",.?":
        text = text.replace(f" {mark}", mark)
    return text[0].upper() + text[1:]
