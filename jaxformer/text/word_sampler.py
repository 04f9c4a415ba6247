"""Split words into pieces at random, the same way in every process.

SentencePiece can sample, but the seed of its generator is mixed with a number that
differs from process to process. It also drops a merge for good, while in algorithm 1 of
BPE-dropout (Provilkov et al. 2020) each merge is drawn again at every step. So the
algorithms are here in their shortest form: that one, and forward filtering, backward
sampling in a unigram model (Kudo 2018, section 3.3).
"""

import math
import re
from bisect import bisect
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from random import Random
from typing import NamedTuple

from sentencepiece import SentencePieceProcessor

from jaxformer.text.lines import normalise
from jaxformer.text.sources import Pair
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import EOS, UNK

_UNKNOWN_PENALTY = 10.0  # of SentencePiece, below the least score
_WORDS_IN_MEMORY = 2**13  # of each side, up to 3 KB a word

Lattice = list[tuple[list[int], list[float]]]  # by the end of a piece, see _lattice


class _Word(NamedTuple):
    """A word as it is sampled."""

    usual: list[int]  # its ids as SentencePiece splits it
    parts: list[str] | None = None  # every second is a symbol; None: never sampled
    lattices: list[Lattice] | None = None  # of the parts; None: of a BPE vocabulary


class WordSampler:
    """Samples how the SentencePiece model of one language splits words."""

    def __init__(
        self, model: bytes, ids: dict[str, int], symbols: Sequence[str]
    ) -> None:
        """Use a model; `ids` are those of pieces, `symbols` pieces never split."""
        self._processor = SentencePieceProcessor(model_proto=model)
        self.ids = ids
        kinds = ("is_control", "is_unknown", "is_byte")
        others = [getattr(self._processor, kind) for kind in kinds]
        every = range(len(self._processor))
        known = [i for i in every if not any(is_other(i) for is_other in others)]
        pieces = map(self._processor.id_to_piece, known)
        scores = map(self._processor.get_score, known)
        self._scores = dict(zip(pieces, scores, strict=True))
        self._is_bpe = all(map(float.is_integer, self._scores.values()))
        if not self._is_bpe:  # only the model's own symbols have the probability 1
            symbols = {*symbols, *(p for p, score in self._scores.items() if not score)}
        longest_first = sorted(map(re.escape, symbols), key=len, reverse=True)
        self._symbols = re.compile(f"({'|'.join(longest_first)})") if symbols else None
        self._word = lru_cache(_WORDS_IN_MEMORY)(self._read)

    def versions(
        self, word: str, count: int, strength: float, seed: str
    ) -> list[list[int]]:
        """Return the ids of a word as SentencePiece splits it, and `count` samples.

        `strength` as in `data.subword_sampling`. A word that the model does not take
        as it is, or splits by other rules, has equal samples.
        """
        found, random = self._read(word, strength), Random(seed)
        samples = (self._draw(found, strength, random) for _ in range(count))
        return [found.usual, *samples]

    def sample(self, word: str, strength: float, random: Random) -> list[int]:
        """Return the ids of one sample, as `versions` does."""
        return self._draw(self._word(word, strength), strength, random)

    def _read(self, word: str, strength: float) -> _Word:
        plain = self._processor.encode(word, out_type=str)
        marked, usual = "▁" + word, self._to_ids(plain)
        if "".join(plain) != marked:
            return _Word(usual)
        parts = [marked] if self._symbols is None else self._symbols.split(marked)
        if not self._is_bpe:
            lattices = [self._lattice(part, strength) for part in parts]
            return _Word(usual, parts, lattices)
        found = _Word(usual, parts)
        is_ours = self._draw(found, 0.0, Random()) == usual
        return found if is_ours else _Word(usual)

    def _draw(self, word: _Word, strength: float, random: Random) -> list[int]:
        if word.parts is None:
            return word.usual
        pieces = []
        for number, part in enumerate(word.parts):
            if number % 2:  # a symbol
                pieces.append(part)
            elif self._is_bpe:
                pieces += self._merge(part, strength, random)
            else:
                pieces += self._sample(part, word.lattices[number], random)
        return self._to_ids(pieces)

    def _to_ids(self, pieces: Sequence[str]) -> list[int]:
        """Return ids; SentencePiece makes neighbouring unknown characters one."""
        ids = [self.ids.get(piece, UNK) for piece in pieces]
        runs = ((token, len(list(run))) for token, run in groupby(ids))
        return [i for i, n in runs for _ in range(1 if i == UNK else n)]

    def _merge(self, text: str, drop: float, random: Random) -> list[str]:
        """Merge neighbours, the best pair first, until no merge is left.

        Before each merge, each pair is dropped with chance `drop` (algorithm 1).
        """
        pieces, scores = list(text), self._scores
        while True:
            pairs = (first + second for first, second in pairwise(pieces))
            merges = [
                (scores[pair], -at)
                for at, pair in enumerate(pairs)
                if pair in scores and not (drop and random.random() < drop)
            ]
            if not merges:
                return pieces
            at = -max(merges)[1]
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]

    def _sample(self, text: str, lattice: Lattice, random: Random) -> list[str]:
        """Draw the pieces of a text, the last one first."""
        pieces, end = [], len(text)
        while end:
            starts, sums = lattice[end]
            start = starts[bisect(sums, random.random() * sums[-1])]
            pieces.append(text[start:end])
            end = start
        return pieces[::-1]

    def _lattice(self, text: str, strength: float) -> Lattice:
        """Return where pieces that end at each place begin, and sums of their weights.

        A weight is the share of the splits of the text before the end, each with its
        probability to the power of `strength`.
        """
        unknown = min(self._scores.values()) - _UNKNOWN_PENALTY
        totals, lattice = [0.0], [([], [])]  # logarithms
        for end in range(1, len(text) + 1):
            starts, logs = [], []
            for start in range(end):
                piece = text[start:end]
                score = self._scores.get(piece, unknown if end == start + 1 else None)
                if score is not None:
                    starts.append(start)
                    logs.append(totals[start] + strength * score)
            most = max(logs)
            sums = [*accumulate(math.exp(each - most) for each in logs)]
            totals.append(most + math.log(sums[-1]))
            lattice.append((starts, sums))
        return lattice


def pieces_beyond_words(tokenizer: Tokenizer) -> list[str]:
    """Return the pieces that go beyond a space; with one, no word can be sampled."""
    pieces = [*tokenizer.source_pieces(), *tokenizer.pieces()]
    return [piece for piece in pieces if "▁" in piece[1:]]


def word_samplers(tokenizer: Tokenizer, symbols: Sequence[str]) -> list[WordSampler]:
    """Return the samplers of sources and of targets, in which `symbols` stay whole."""
    sides = tokenizer.source_pieces(), tokenizer.pieces()
    ids = [{piece: i for i, piece in enumerate(side)} for side in sides]
    models = tokenizer.source_model, tokenizer.target_model
    return [WordSampler(*each, symbols) for each in zip(models, ids, strict=True)]


class PairSampler:
    """Samples how a tokeniser splits sentence pairs, word by word."""

    def __init__(
        self, tokenizer: Tokenizer, symbols: Sequence[str], strength: float
    ) -> None:
        """As `word_samplers` and `WordSampler.versions`."""
        self._tokenizer, self._strength = tokenizer, strength
        self._samplers = word_samplers(tokenizer, symbols)

    def sample(self, pair: Pair, seed: str) -> list[list[int]]:
        """Return the ids of source and target, EOS last, by the pair and the seed."""
        random, found = Random("\t".join([seed, *pair])), []
        for side, sampler in enumerate(self._samplers):
            text = normalise(pair[side])
            tag = "" if side else self._tokenizer.language_code(text)
            ids = [sampler.ids[tag]] if tag else []
            for word in text.removeprefix(tag).split():
                ids += sampler.sample(word, self._strength, random)
            found.append([*ids, EOS])
        return found
