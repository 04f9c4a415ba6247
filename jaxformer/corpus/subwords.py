"""Split the words of training pairs into pieces at random, anew in each epoch.

With `data.versions` the words are split by `jaxformer.text.cleaning` instead.

BPE-dropout (Provilkov et al. 2020) of a BPE vocabulary, sampling (Kudo 2018) of a
unigram model.

A batch must depend on (seed, epoch, pair) alone and be made fast. So `prepare` splits
each distinct word of a side many times: these are the versions of the word. Later a
hash of (seed, epoch, pair, place of the word) chooses one of them. No piece goes beyond
a space, so the words of a sentence are independent, as they are when SentencePiece
samples the sentence.

    corpus/train/00000.source.words.npy, ...  each sentence as numbers of words
    corpus/versions/00000.source.npy, ...     the versions of all words, in pieces
    corpus/versions/source.first.npy, ...     which of them is a word's first
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.corpus.store import WORDS, ShardWriter, id_dtype, open_corpus, save_array
from jaxformer.system.files import Verifier, remove, write_atomically
from jaxformer.system.mirror import LOCAL, Mirror
from jaxformer.text.cleaning import breaks_ratio
from jaxformer.text.hashing import mix
from jaxformer.text.ragged import Ragged, concatenated_ranges, offsets
from jaxformer.text.sources import Pair
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.text.word_sampler import split_words, word_samplers
from jaxformer.tokens import SIDES

# A word has about as many versions as the text has the word, within these bounds.
_VERSIONS = 32, 4096
_PAIRS_AT_A_TIME, _WORDS_AT_A_TIME, _CHUNKS_OF_A_SHARD = 2**15, 2**10, 2**10
_HASH = 2**32 - 1  # beside (seed, epoch); mixtures count their draws from 1


class WordLists:
    """The distinct words of each side, numbered as they occur.

    Number 0 is EOS and the tags follow: words that are never split. Until the corpus is
    complete, the words that are new in a shard are beside it.
    """

    def __init__(
        self, tokenizer: Tokenizer, config: DataConfig, corpus: Path, shards: int
    ) -> None:
        """Read the words of the shards that the text in a folder `corpus` has."""
        self._tokenizer, self._config, self._corpus = tokenizer, config, corpus
        symbols = [*config.tags, *config.user_defined_symbols]
        self._samplers = word_samplers(tokenizer, symbols)
        unsplit = ["", *(tag + " " for tag in config.tags)]
        numbers = {word: number for number, word in enumerate(unsplit)}
        self._numbers = numbers, {"": 0}  # by word, of each side; targets have no tags
        for shard in range(shards):
            new = json.loads(self._file(shard).read_bytes())
            for known, words in zip(self._numbers, new, strict=True):
                known.update(zip(words, count(len(known)), strict=False))
        self._saved = [*map(len, self._numbers)]

    def _file(self, shard: int) -> Path:
        return self._corpus / "train" / f"{shard:05}.words.json"

    def save(self, shard: int) -> None:
        """Save the words that are new since the last call, as those of a shard."""
        sides = zip(self._numbers, self._saved, strict=True)
        new = [[*islice(numbers, first, None)] for numbers, first in sides]
        write_atomically(self._file(shard), json.dumps(new, ensure_ascii=False))
        self._saved = [*map(len, self._numbers)]

    def number(self, pairs: Sequence[Pair]) -> list[Ragged]:
        """Return the numbers of the words of sources and of targets, EOS last."""
        found = []
        sides = zip(*pairs, strict=True) if pairs else ((), ())
        for side, (sentences, numbers) in enumerate(
            zip(sides, self._numbers, strict=True)
        ):
            found.append([])
            for sentence in sentences:
                words = split_words(self._tokenizer, side, sentence)
                found[-1].append([numbers.setdefault(w, len(numbers)) for w in words])
        return [*map(Ragged.of, found)]

    def write_versions(self) -> None:
        """Split the words and write their versions; the first is that of `encode`."""
        corpus = self._corpus
        sides = zip(open_corpus(corpus / "train", WORDS), self._numbers, strict=True)
        counts = []
        for words, numbers in sides:
            size = len(numbers)
            shards = (np.bincount(shard, minlength=size) for shard in words.shards)
            found = sum(shards, np.zeros(size, int))  # of no shard if none is left
            counts.append(np.clip(found, *_VERSIONS))
        remove(corpus / "versions", ignore_errors=True)  # of an earlier command
        size = id_dtype(self._tokenizer.largest_vocab_size)
        writer = ShardWriter(corpus / "versions", SIDES, [size] * 2)
        versions = self._versions(counts)
        while some := list(islice(versions, _CHUNKS_OF_A_SHARD)):
            writer.write(some, None)
        for name, each in zip(SIDES, counts, strict=True):
            save_array(corpus / "versions" / f"{name}.first.npy", offsets(each + 1))

    def _versions(self, counts: Sequence[np.ndarray]) -> Iterator[list[Ragged]]:
        """Yield the versions of the words of a side, and none of the other side."""
        for side, numbers in enumerate(self._numbers):
            words = zip(numbers, counts[side].tolist(), strict=True)
            while some := list(islice(words, _WORDS_AT_A_TIME)):
                versions = [v for each in some for v in self._versions_of(side, *each)]
                both = ([], versions) if side else (versions, [])
                yield [*map(Ragged.of, both)]

    def _versions_of(self, side: int, word: str, count: int) -> list[list[int]]:
        seed, strength = self._config.seed, self._config.subword_sampling
        own = Random(f"{seed} {side} {word}")
        return self._samplers[side].versions(word, count, strength, own)


class Side(NamedTuple):
    """The sentences of one language as words, and the versions of the words."""

    words: Ragged  # the numbers of the words of each sentence
    first: np.ndarray  # int64 [words + 1] the first version of each word, the plain one
    versions: Ragged  # in pieces


@dataclass(frozen=True, eq=False)
class Subwords:
    """A training text whose words have several versions."""

    sides: tuple[Side, Side]
    config: DataConfig

    @staticmethod
    def open(
        corpus: Path,
        settings: Mapping[str, Any],
        verifier: Verifier | None = None,
        mirror: Mirror = LOCAL,
    ) -> "Subwords | None":
        """Memory-map what `prepare` wrote by `settings`; None if they do not sample."""
        if settings.get("subword_sampling") is None or settings.get("versions"):
            return None
        words = open_corpus(corpus / "train", WORDS, verifier=verifier, mirror=mirror)
        versions = open_corpus(corpus / "versions")
        files = (corpus / "versions" / f"{name}.first.npy" for name in SIDES)
        first = (np.load(file, mmap_mode="r") for file in files)
        sides = map(Side, words, first, versions)
        return Subwords(tuple(sides), DataConfig.of(settings))

    def lengths_to_plan(self, longest: int) -> list[np.ndarray]:
        """Return lengths that are typical of an epoch, and at least the plain ones.

        int32 [n] of each side; at most `longest` unless the plain ones exceed it.
        """
        pairs = np.arange(len(self.sides[0].words), dtype=np.int32)
        draws = (SubwordDraw(self, 0, 0, share, (longest,) * 2) for share in (0.0, 1.0))
        drawn, plain = (draw.lengths(pairs, pairs) for draw in draws)
        return [np.maximum(*each) for each in zip(drawn, plain, strict=True)]


@dataclass(frozen=True, eq=False)
class SubwordDraw:
    """The versions that the words of an epoch have.

    `slots` [n] tell apart the occurrences of a pair in an epoch. A pair keeps its plain
    version, that of `Tokenizer.encode`, if the drawn one exceeds `room`,
    `data.max_length` or `data.max_ratio`.
    """

    subwords: Subwords
    seed: int
    epoch: int
    share: float  # of the pairs that keep their plain version
    room: tuple[int, int]  # source and target tokens

    def lengths(self, pairs: np.ndarray, slots: np.ndarray) -> list[np.ndarray]:
        """Return source and target tokens of many pairs: int32 [n] each."""
        found = [np.empty(len(pairs), np.int32) for _ in SIDES]
        for begin in range(0, len(pairs), _PAIRS_AT_A_TIME):
            part = slice(begin, begin + _PAIRS_AT_A_TIME)
            for side, (_, lengths) in enumerate(self.choose(pairs[part], slots[part])):
                found[side][part] = lengths
        return found

    def gather(
        self, pairs: np.ndarray, slots: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ids of pairs in one array and the lengths [n], for each side."""
        chosen = zip(self.subwords.sides, self.choose(pairs, slots), strict=True)
        return [
            (side.versions.gather(versions)[0], lengths)
            for side, (versions, lengths) in chosen
        ]

    def choose(
        self, pairs: np.ndarray, slots: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return a version of each word and the lengths [n] of the pairs, by side."""
        config = self.subwords.config
        key = np.random.SeedSequence((self.seed, self.epoch, _HASH))
        keys = mix(slots.astype(np.uint64) + key.generate_state(1, np.uint64))
        chosen, lengths = [], []
        for number, side in enumerate(self.subwords.sides, start=1):
            words, counts = side.words.gather(pairs)
            place = concatenated_ranges(np.zeros(len(pairs), np.uint64), counts)
            place += np.repeat(keys + np.uint64(number << 32), counts)
            plain = side.first[words]
            choices = (side.first[words + 1] - plain - 1).astype(np.uint64)
            drawn = (mix(place) >> np.uint64(32)) * choices >> np.uint64(32)
            chosen.append((plain, plain + 1 + drawn.astype(np.int64), counts))
            lengths.append(self._sums(side, chosen[-1][1], counts))
        tagged = self.subwords.sides[0].words.firsts(pairs) <= len(config.tags)
        is_plain = (mix(keys) >> np.uint64(11)) * 2.0**-53 < self.share
        is_plain |= np.max(lengths, axis=0) > config.max_length
        is_plain |= breaks_ratio(np.array(lengths), tagged, config.max_ratio)
        for each, most in zip(lengths, self.room, strict=True):
            is_plain |= each > most
        found = []
        for side, (plain, drawn, counts), each in zip(
            self.subwords.sides, chosen, lengths, strict=True
        ):
            if is_plain.any():
                drawn = np.where(np.repeat(is_plain, counts), plain, drawn)
                each = self._sums(side, drawn, counts)
            found.append((drawn, each))
        return found

    @staticmethod
    def _sums(side: Side, versions: np.ndarray, counts: np.ndarray) -> np.ndarray:
        edges = side.versions.offsets
        return np.add.reduceat(
            edges[versions + 1] - edges[versions], offsets(counts)[:-1]
        )
