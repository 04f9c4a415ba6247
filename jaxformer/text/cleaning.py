"""Tokenise sentence pairs; drop and count those that would harm training.

Web text holds blank sides, whole paragraphs and pairs that do not translate each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from random import Random
from typing import NamedTuple

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.text.flaws import flaws
from jaxformer.text.lines import normalise
from jaxformer.text.noise import noised
from jaxformer.text.ragged import Ragged
from jaxformer.text.sources import Pair
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.text.word_sampler import WordSampler, split_words, word_samplers
from jaxformer.tokens import UNK

REASONS = ("empty", "too_long", "ratio", "duplicate")
_RATIO_SLACK = 5  # tokens: the translation of a short sentence may be far longer


@dataclass
class SideReport:
    """Counts of the kept sentences of one language; tokens include EOS."""

    tokens: int = 0
    unknown: int = 0  # tokens that are UNK
    longest: int = 0  # tokens

    def __add__(self, other: "SideReport") -> "SideReport":
        tokens, unknown = self.tokens + other.tokens, self.unknown + other.unknown
        return SideReport(tokens, unknown, max(self.longest, other.longest))


@dataclass
class CorpusReport:
    """Counts of the kept and dropped pairs of a split."""

    pairs: int = 0  # kept and dropped
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    source: SideReport = field(default_factory=SideReport)
    target: SideReport = field(default_factory=SideReport)

    @staticmethod
    def of(values: dict) -> "CorpusReport":
        """Return the report of which `values` is `asdict`."""
        sides = {side: SideReport(**values[side]) for side in ("source", "target")}
        return CorpusReport(**values | sides)

    def __add__(self, other: "CorpusReport") -> "CorpusReport":
        dropped = dict(self.dropped)
        for why, count in other.dropped.items():  # which depend on `data.drop`
            dropped[why] = dropped.get(why, 0) + count
        pairs, kept = self.pairs + other.pairs, self.kept + other.kept
        source, target = self.source + other.source, self.target + other.target
        return CorpusReport(pairs, kept, dropped, source, target)

    @property
    def reasons(self) -> str:
        """The reasons with their counts, such as "3 empty, 1 ratio"."""
        dropped = [f"{count:,} {why}" for why, count in self.dropped.items() if count]
        return ", ".join(dropped) or "none"

    def __str__(self) -> str:
        sides = [
            f"{name} {side.tokens / max(self.kept, 1):.1f} tokens a sentence, longest "
            f"{side.longest:,}, {side.unknown:,} unknown"
            for name, side in (("source", self.source), ("target", self.target))
        ]
        return (
            f"{self.kept:,} of {self.pairs:,} pairs kept, dropped: "
            f"{self.reasons}; {'; '.join(sides)}"
        )


@lru_cache(1)
def _tokenizer(content: bytes, threads: int) -> Tokenizer:
    tokenizer = Tokenizer(content)
    for side in tokenizer.sides:
        side.threads = threads
    return tokenizer


@lru_cache(1)
def _samplers(content: bytes, symbols: tuple[str, ...]) -> list[WordSampler]:
    return word_samplers(Tokenizer(content), symbols)


class Chunk(NamedTuple):
    """Some pairs of a text, in its order."""

    pairs: list[Pair]
    repeated: np.ndarray | None  # bool, which occurred before; None: not asked for
    target_tag: str = ""  # that begins each target


class CleanChunk(NamedTuple):
    """The pairs of a chunk that are kept."""

    ids: tuple[Ragged, ...]  # EOS last; source and target of each of `data.versions`
    report: CorpusReport


def clean_chunk(
    content: bytes, threads: int, config: DataConfig | None, chunk: Chunk
) -> CleanChunk:
    """Tokenise a chunk by the tokeniser with this `content`, and drop pairs.

    Without a config every pair is kept. Else a pair is dropped for the first of:

    - "empty": a side is blank, but for a tag.
    - "too_long": a side has more than `max_length` tokens, EOS included.
    - "ratio": the longer side has more than `max_ratio` times the tokens of the
      shorter, plus 5; EOS not counted.
    - "duplicate": an earlier pair has the same source and target.
    - a kind of `data.drop`: `jaxformer.text.flaws`.

    The report counts the tokens of the first of `data.versions`.
    """
    tokenizer = _tokenizer(content, threads).for_target(chunk.target_tag)
    report, pairs = CorpusReport(pairs=len(chunk.pairs)), chunk.pairs
    sides = [
        tokenizer.encode([source for source, _ in pairs]),
        tokenizer.encode_target([target for _, target in pairs]),
    ]
    ids = [Ragged.of(side) for side in sides]
    kept = np.arange(len(pairs))
    if config:
        checks = length_faults(np.stack([side.lengths for side in ids]), config)
        if chunk.repeated is not None:
            checks["duplicate"] = chunk.repeated
        checks |= flaws(pairs, config, config.drop or ())
        for reason, fails in checks.items():
            report.dropped[reason] = int(fails[kept].sum())
            kept = kept[~fails[kept]]
    if len(kept) < len(pairs):
        ids = [side.select(kept) for side in ids]
        pairs = [pairs[index] for index in kept]
    if config and config.is_drawn:
        ids = _versions(tokenizer, config, pairs, ids)
    report.kept = len(kept)
    for counts, side in zip((report.source, report.target), ids[:2], strict=True):
        counts.tokens = len(side.tokens)
        counts.unknown = int((side.tokens == UNK).sum())
        counts.longest = int(side.lengths.max(initial=0))
    return CleanChunk(tuple(ids), report)


def _versions(
    tokenizer: Tokenizer, config: DataConfig, pairs: list[Pair], plain: Sequence[Ragged]
) -> list[Ragged]:
    """Return source and target of each version of the pairs that are kept.

    A version is a function of `data.seed`, its number and the pair. A pair has its
    `plain` ids in a version that would be "empty", "too_long" or break "ratio", or have
    more UNK: noise teaches a model to copy only what its vocabulary has.
    """
    versions, usual = [], _unknown(plain)
    for number in range(config.version_count):
        keys = ("\t".join([str(config.seed), str(number), *pair]) for pair in pairs)
        randoms, texts = [*map(Random, keys)], pairs
        if any(config.noise.values()):
            both = zip(pairs, randoms, strict=True)
            texts = [_noised(tokenizer, config, *each) for each in both]
        sides = _encoded(tokenizer, config, texts, randoms)
        lengths = np.array([[*map(len, side)] for side in sides], int)
        faults = length_faults(lengths, config)
        has_fault = faults["empty"] | faults["too_long"] | faults["ratio"]
        has_fault |= (_unknown(sides) > usual).any(axis=0)
        for index in np.flatnonzero(has_fault):
            for side, ids in zip(sides, plain, strict=True):
                side[index] = ids[index]
        versions += map(Ragged.of, sides)
    return versions


def _unknown(sides: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Count UNK in each sentence of each side: int [2, n]."""
    return np.array([[[*ids].count(UNK) for ids in side] for side in sides], int)


def _noised(
    tokenizer: Tokenizer, config: DataConfig, pair: Pair, random: Random
) -> Pair:
    source, target = map(normalise, pair)
    tag = tokenizer.language_code(source)
    plain = source.removeprefix(tag), target
    source, target = noised(plain, config.noise, config.user_defined_symbols, random)
    return tag + source, target


def _encoded(
    tokenizer: Tokenizer, config: DataConfig, pairs: list[Pair], randoms: list[Random]
) -> list[list[list[int]]]:
    """Return the ids of sources and of targets, split at random if they should be."""
    strength = config.subword_sampling
    if strength is None:
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        return [tokenizer.encode(sources), tokenizer.encode_target(targets)]
    symbols = (*config.tags, *config.user_defined_symbols)
    sides = []
    for side, sampler in enumerate(_samplers(tokenizer.content, symbols)):
        sides.append([])
        for pair, random in zip(pairs, randoms, strict=True):
            words = split_words(tokenizer, side, pair[side])
            drawn = (sampler.sample(word, strength, random) for word in words)
            sides[-1].append([*chain.from_iterable(drawn)])
    return sides


def breaks_ratio(
    lengths: np.ndarray,
    is_tagged: bool | np.ndarray,
    max_ratio: float,
    target_is_tagged: bool = False,
) -> np.ndarray:
    """Whether one side of a pair is too long for the other, bool [n].

    `lengths` is int [2, n], EOS included. Tags do not count.
    """
    source, target = lengths[0] - is_tagged, lengths[1] - target_is_tagged
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    return longer - 1 > max_ratio * (shorter - 1) + _RATIO_SLACK


def length_faults(lengths: np.ndarray, config: DataConfig) -> dict[str, np.ndarray]:
    """Return by reason of `clean_chunk` which pairs have a wrong length: bool [n] each.

    `lengths` is int [2, n], the tokens of sources and of targets, tags and EOS
    included.
    """
    tagged = bool(config.tag), bool(config.target_tag)
    return {
        "empty": (lengths[0] - tagged[0] == 1) | (lengths[1] - tagged[1] == 1),
        "too_long": lengths.max(axis=0) > config.max_length,
        "ratio": breaks_ratio(lengths, tagged[0], config.max_ratio, tagged[1]),
    }
