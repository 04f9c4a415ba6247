"""Scores and attention maps of given sentence pairs, by teacher forcing.

A side of a pair is a text, which is tokenised, or the pieces of a
`jaxformer.decoding.parts.Hypothesis`: of one part or several, each with its end.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.batch import Batch
from jaxformer.config.data import TAG
from jaxformer.decoding.parts import Hypothesis, one_each, require_numbers
from jaxformer.decoding.shapes import SHORTEST_LENGTH, bucket_length
from jaxformer.models.sequence_model import Model, Parameters, require_positions
from jaxformer.system.errors import InputError
from jaxformer.tokens import EOS, PAD, AnyTokenizer, pad_rows

Side = str | Sequence[str]  # a text, or the pieces of its parts
Part = tuple[list[int], list[int]]  # ids of a source and of its translation
# Links the indices of a hypothesis's `source_pieces` and `pieces`.
LinksOf = Callable[[Hypothesis], Sequence[tuple[int, int]]]


class PairScore(NamedTuple):
    """The probability of a given translation under a model."""

    pieces: list[str]  # the end of each part included
    log_probabilities: list[float]  # of each, given those before; natural logarithm

    @property
    def log_probability(self) -> float:
        return float(np.sum(self.log_probabilities))


class Attention(NamedTuple):
    """The `AttentionMaps` of one pair, with H heads in N layers, and its pieces."""

    source: list[str]  # S pieces, end of sentence included
    target: list[str]  # T pieces, end of sentence included
    encoder: np.ndarray  # f32 [N, H, S, S]
    decoder: np.ndarray  # f32 [N, H, T, T]
    cross: np.ndarray  # f32 [N, H, T, S]

    def alignment(self) -> list[tuple[int, int]]:
        """Link each target piece to the source piece with the largest weight.

        Returns pairs of indices (source, target). The weights are the mean over all
        layers and heads, which is near the best layer of every model that was measured
        (docs/translate.md). The ends of both sentences and their tags have no link.
        """
        weights = self.cross.mean(axis=(0, 1))  # [T, S]
        s, t = (
            int(bool(re.fullmatch(TAG, side[0]))) for side in (self.source, self.target)
        )
        weights = weights[t:-1, s:-1]
        best = weights.argmax(axis=1) if weights.shape[1] else []
        return [(s + int(own), t + index) for index, own in enumerate(best)]


def joined_links(parts: Sequence[Attention]) -> list[tuple[int, int]]:
    """Join the alignments of parts; indices count the pieces of all, ends included."""
    links, before = [], (0, 0)
    for each in parts:
        links += [(before[0] + s, before[1] + t) for s, t in each.alignment()]
        before = (before[0] + len(each.source), before[1] + len(each.target))
    return links


def pharaoh(links: Sequence[tuple[int, int]]) -> str:
    """Write links as word aligners do: "0-0 1-2"."""
    return " ".join(f"{s}-{t}" for s, t in links)


class TeacherForcing:
    """Scores and attention maps of given pairs; `batch_tokens` bounds a batch.

    `rows` shards the rows of batches that are scored; None: one device.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: AnyTokenizer,
        *,
        batch_tokens: int,
        rows: jax.sharding.NamedSharding | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._blank = [EOS], [*tokenizer.target_start, EOS]
        self._names = tokenizer.source_pieces(), tokenizer.pieces()
        self._ids = [
            {name: index for index, name in enumerate(names)} for names in self._names
        ]
        self._batch_tokens, self._longest = batch_tokens, model.longest
        self._rows = rows

        def log_probabilities(params: Parameters, batch: Batch) -> jax.Array:  # [B, T]
            each = jax.nn.log_softmax(model.logits(params, batch))
            return jnp.take_along_axis(each, batch.target[:, :, None], axis=-1)[..., 0]

        self._log_probabilities = jax.jit(log_probabilities)
        self._maps = jax.jit(model.attention)
        self._sizes: Sequence[int] = ()  # of both sides alike, if they are limited

    def limit(self, most: int) -> list[int]:
        """Use few lengths afterwards; return them in the order in which to `compile`.

        A side has at most `most` tokens, or the positions that the model can hold.
        """
        most = min(most, self._longest or most)
        self._sizes = [most]
        return [most, *(each for each in (SHORTEST_LENGTH,) if each < most)]

    def compile(self, params: Parameters, size: int) -> None:
        """Run the programs for a pair with sides of `size` tokens; use them then."""
        rows = np.full((1, size), PAD, np.int32)
        batch = Batch(*[rows] * 4)
        jax.block_until_ready(self._maps(params, batch))
        jax.block_until_ready(self._log_probabilities(params, batch))
        self._sizes = sorted({*self._sizes, size})

    def has_attention(self, params: Parameters) -> bool:
        """Whether the model has maps of attention."""
        rows = np.full((1, 2), PAD, np.int32)
        return jax.eval_shape(self._maps, params, Batch(*[rows] * 4)) is not None

    def pairs(
        self, sources: Sequence[Side], targets: Sequence[Side]
    ) -> list[list[Part]]:
        """Return the ids of each pair by parts: none if both of its texts are blank.

        Raises InputError for pieces that are not in the vocabulary or do not fit.
        """
        targets = one_each("targets", targets, len(sources), default="")
        sides = (
            _ids_of(sources, self._tokenizer.encode, self._ids[0]),
            _ids_of(targets, self._tokenizer.encode_target, self._ids[1]),
        )
        found = []
        for number, (source, target) in enumerate(zip(*sides, strict=True), start=1):
            if len(source) != len(target):
                raise InputError(
                    f"the source of pair {number} has {len(source)} parts and its "
                    f"translation {len(target)}; give both sides of one hypothesis"
                )
            parts = zip(source, target, strict=True)
            found.append([part for part in parts if part != self._blank])
            length = max([len(side) for part in found[-1] for side in part], default=0)
            require_positions(self._longest, f"pair {number}", length)
        return found

    def fits(self, sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
        """Whether the model has positions for each pair of texts: bool [pairs]."""
        sides = self._tokenizer.encode(sources), self._tokenizer.encode_target(targets)
        longest = self._longest or math.inf
        lengths = ([*map(len, pair)] for pair in zip(*sides, strict=True))
        return np.array([max(pair) <= longest for pair in lengths], bool)

    def score(
        self, params: Parameters, sources: Sequence[Side], targets: Sequence[Side]
    ) -> list[PairScore]:
        """Score each pair; parts of similar length share a batch.

        The target's tag is given, so its log P is 0. A pair of blank texts has no
        pieces and log P = 0.
        """
        pairs = self.pairs(sources, targets)
        parts = list(itertools.chain.from_iterable(pairs))
        scored: list[list[float]] = [[]] * len(parts)
        for indices, batch in self._batches(parts):
            if self._rows and len(batch.source) % self._rows.num_devices == 0:
                batch = jax.device_put(batch, self._rows)
            rows = np.array(self._log_probabilities(params, batch))
            rows[:, : len(self._tokenizer.target_start)] = 0.0  # given, as the source
            for index, row in zip(indices, rows, strict=False):
                scored[index] = row[: len(parts[index][1])].tolist()
        values = itertools.chain.from_iterable(scored)
        found = []
        for pair in pairs:
            pieces = [self._names[1][token] for _, target in pair for token in target]
            own = list(itertools.islice(values, len(pieces)))
            found.append(PairScore(pieces, own))
        return found

    def attention(
        self, params: Parameters, source: Side, target: Side
    ) -> list[Attention]:
        """Compute the attention maps of each part of one pair.

        Raises InputError if the model has no attention.
        """
        (parts,) = self.pairs([source], [target])
        found = []
        for part in parts or [self._blank]:
            ((_, batch),) = self._batches([part])
            maps = self._maps(params, batch)
            if maps is None:
                raise InputError("this model has no attention to show")
            sides = zip(self._names, part, strict=True)
            pieces = [[names[token] for token in side] for names, side in sides]
            s, t = map(len, pieces)
            encoder, decoder, cross = (np.asarray(each)[:, 0] for each in maps)
            sizes = encoder[..., :s, :s], decoder[..., :t, :t], cross[..., :t, :s]
            require_numbers(sizes[2])
            found.append(Attention(*pieces, *sizes))
        return found

    def _batches(self, pairs: Sequence[Part]) -> Iterator[tuple[list[int], Batch]]:
        """Batches of few shapes, one pair a row, and the indices of their pairs.

        The number of rows is the largest power of two with at most `batch_tokens`
        tokens a side, or one.
        """
        longest = self._longest or math.inf  # positions that the model can hold
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, pair in enumerate(pairs):
            lengths = [*map(len, pair)]
            if self._sizes:
                shape = (min(n for n in self._sizes if n >= max(lengths)),) * 2
            else:
                shape = tuple(max(n, min(bucket_length(n), longest)) for n in lengths)
            groups.setdefault(shape, []).append(index)
        for shape, indices in sorted(groups.items(), reverse=True):
            most = 1 << (max(1, self._batch_tokens // max(shape)).bit_length() - 1)
            for begin in range(0, len(indices), most):
                chosen = indices[begin : begin + most]
                spare = (1 << (len(chosen) - 1).bit_length()) - len(chosen)
                rows = [*(pairs[index] for index in chosen), *[((), ())] * spare]
                sides = list(map(pad_rows, zip(*rows, strict=True), shape))
                segments = [(side != PAD).astype(np.int32) for side in sides]
                yield chosen, Batch(*sides, *segments)


def _ids_of(
    sides: Sequence[Side], encode: Callable, ids_of: Mapping[str, int]
) -> list[list[list[int]]]:
    """The ids of each side by parts; a text is one part. `ids_of` are those of pieces.

    Raises InputError for pieces of another vocabulary.
    """
    encoded = iter(encode([side for side in sides if isinstance(side, str)]))
    found = []
    for side in sides:
        if isinstance(side, str):
            found.append([next(encoded)])
            continue
        if side and ({*side} - ids_of.keys() or ids_of[side[-1]] != EOS):
            raise InputError(
                f"{' '.join(side)[:60]} ... are not this tokeniser's pieces with </s> "
                "at the end; give `source_pieces` and `pieces` of a hypothesis of this "
                "model"
            )
        ids = [ids_of[piece] for piece in side]
        ends = [at for at, token in enumerate(ids, start=1) if token == EOS]
        found.append([ids[a:b] for a, b in itertools.pairwise([0, *ends])])
    return found
