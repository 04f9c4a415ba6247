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

from sentencepiece import SentencePieceProcessor

from jaxformer.text.lines import normalise
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import EOS, UNK

_UNKNOWN_PENALTY = 10.0  # of SentencePiece, below the least score

Lattice = list[tuple[list[int], list[float]]]  # by the end of a piece, see _find_splits


class WordSampler:
    """Samples how the SentencePiece model of one language splits words."""

    def __init__(
        self, model: bytes, ids: dict[str, int], symbols: Sequence[str]
    ) -> None:
        """Use a model; `ids` are those of pieces, `symbols` pieces never split."""
        self._processor = SentencePieceProcessor(model_proto=model)
        self._ids = ids
        kinds = ("is_control", "is_unknown", "is_byte")
        others = [getattr(self._processor, kind) for kind in kinds]
        every = range(len(self._processor))
        known = [i for i in every if not any(is_other(i) for is_other in others)]
        self._has_bytes = any(map(self._processor.is_byte, every))
        pieces = map(self._processor.id_to_piece, known)
        scores = map(self._processor.get_score, known)
        self._scores = dict(zip(pieces, scores, strict=True))
        self._is_bpe = all(map(float.is_integer, self._scores.values()))
        if not self._is_bpe:  # only the model's own symbols have the probability 1
            symbols = {*symbols, *(p for p, score in self._scores.items() if not score)}
        longest_first = sorted(map(re.escape, symbols), key=len, reverse=True)
        self._symbols = re.compile(f"({'|'.join(longest_first)})") if symbols else None
        self._look_up = lru_cache(2**14)(self._find)
        self._lattice = lru_cache(2**13)(self._find_splits)  # up to 3 KB each

    def sample(self, word: str, strength: float, random: Random) -> list[int]:
        """Return the ids of a word that is split at random.

        `strength` as in `data.subword_sampling`. A word that the model does not take
        as it is, or splits by other rules, is split as usual. EOS and tags are written
        as in `split_words`.
        """
        if not word or word.endswith(" "):
            return [self._ids[word[:-1]] if word else EOS]
        usual, parts = self._look_up(word)
        return self._draw(parts, strength, random) if parts else usual

    def _find(self, word: str) -> tuple[list[int], list[str]]:
        """Return the usual ids of a word; between symbols its parts, none if fixed."""
        plain = self._processor.encode(word, out_type=str)
        usual, marked = self._to_ids(plain), "▁" + word
        parts = [marked] if self._symbols is None else self._symbols.split(marked)
        # Bytes are decoded, so that their names do not count as text.
        is_ours = "".join(plain).startswith("▁")
        is_ours = is_ours and self._processor.decode(plain) == word
        if self._is_bpe and is_ours:
            is_ours = self._draw(parts, 0.0, Random(0)) == usual
        return usual, parts if is_ours else []

    def _draw(self, parts: list[str], strength: float, random: Random) -> list[int]:
        pieces = []
        for number, part in enumerate(parts):
            if number % 2:  # a symbol
                pieces.append(part)
            elif self._is_bpe:
                pieces += self._merge(part, strength, random)
            else:
                pieces += self._sample(part, self._lattice(part, strength), random)
        return self._to_ids(pieces)

    def _to_ids(self, pieces: Sequence[str]) -> list[int]:
        """Return ids; an unknown character is its bytes, if the model has them.

        SentencePiece makes other neighbouring unknown characters one.
        """
        ids = []
        for piece in pieces:
            names = [piece]
            if self._has_bytes and piece not in self._ids:
                names = [f"<0x{byte:02X}>" for byte in piece.encode()]
            ids += [self._ids.get(name, UNK) for name in names]
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

    def _find_splits(self, text: str, strength: float) -> Lattice:
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


def word_samplers(tokenizer: Tokenizer, symbols: Sequence[str]) -> list[WordSampler]:
    """Return the samplers of sources and of targets, in which `symbols` stay whole."""
    sides = tokenizer.source_pieces(), tokenizer.pieces()
    ids = [{piece: i for i, piece in enumerate(side)} for side in sides]
    models = tokenizer.source_model, tokenizer.target_model
    return [WordSampler(*each, symbols) for each in zip(models, ids, strict=True)]


def split_words(tokenizer: Tokenizer, side: int, sentence: str) -> list[str]:
    """Return the words of a source, side 0, or a target, and "" for EOS.

    A source's tag is its first word, with a space behind it.
    """
    text = normalise(sentence)
    tag = "" if side else tokenizer.language_code(text)
    words = text.removeprefix(tag).split()
    return [*([tag + " "] if tag else []), *words, ""]
