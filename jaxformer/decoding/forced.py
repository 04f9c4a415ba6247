"""Scores and attention maps of given sentence pairs, by teacher forcing."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.batch import PAD, Batch, Tokenizer
from jaxformer.decoding.engine import pad_rows
from jaxformer.decoding.shapes import SHORTEST_BUCKET, bucket_length
from jaxformer.errors import InputError
from jaxformer.models.sequence_model import Model


class PairScore(NamedTuple):
    """The probability of a given translation under a model."""

    pieces: list[str]  # end of sentence included
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

        Returns pairs of indices (source, target). The weights are the mean over heads
        of the last layer but one, whose cross-attention aligns best (Garg et al. 2019).
        The ends of both sentences have no link.
        """
        layer = self.cross[max(len(self.cross) - 2, 0)].mean(axis=0)  # [T, S]
        best = layer[:-1, :-1].argmax(axis=1) if layer.shape[1] > 1 else []
        return [(int(s), t) for t, s in enumerate(best)]

    def pharaoh(self) -> str:
        """Write the alignment as word aligners do: "0-0 1-2"."""
        return " ".join(f"{s}-{t}" for s, t in self.alignment())


class TeacherForcing:
    """Scores and attention maps of given pairs; `batch_tokens` bounds a batch."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, *, batch_tokens: int
    ) -> None:
        self._tokenizer = tokenizer
        self._batch_tokens, self._longest = batch_tokens, model.longest

        def log_probabilities(params: Any, batch: Batch) -> jax.Array:  # [B, T]
            each = jax.nn.log_softmax(model.logits(params, batch))
            return jnp.take_along_axis(each, batch.target[:, :, None], axis=-1)[..., 0]

        self._log_probabilities = jax.jit(log_probabilities)
        self._maps = jax.jit(model.attention)
        self._sizes: Sequence[int] = ()  # of both sides alike, if they are limited

    def limit(self, most: int) -> list[int]:
        """Use few lengths afterwards, and return them, for `compile`.

        A side has at most `most` tokens, or the positions that the model can hold.
        """
        most = min(most, self._longest or most)
        smaller = (SHORTEST_BUCKET << power for power in range(most.bit_length()))
        self._sizes = [*(size for size in smaller if size < most), most]
        return self._sizes

    def compile(self, params: Any, size: int) -> None:
        """Run the program of `attention` for both sides of `size` tokens."""
        rows = np.full((1, size), PAD, np.int32)
        self._maps(params, Batch(*[rows] * 4))

    def score(
        self, params: Any, sources: Sequence[str], targets: Sequence[str]
    ) -> list[PairScore]:
        """Score each pair; pairs of similar length share a batch."""
        names, scored = self._tokenizer.pieces(), {}
        for indices, batch in self._batches(sources, targets):
            rows = np.asarray(self._log_probabilities(params, batch))
            for index, ids, row in zip(indices, batch.target, rows, strict=False):
                pieces = [names[i] for i in ids if i != PAD]
                scored[index] = PairScore(pieces, row[: len(pieces)].tolist())
        return [scored[index] for index in range(len(sources))]

    def attention(self, params: Any, source: str, target: str) -> Attention:
        """Compute the attention maps of one pair.

        Raises InputError if the model has no attention.
        """
        ((_, batch),) = self._batches([source], [target])
        maps = self._maps(params, batch)
        if maps is None:
            raise InputError("this model has no attention to show")
        names = self._tokenizer.pieces()
        pieces = [[names[i] for i in side[0] if i != PAD] for side in batch[:2]]
        s, t = map(len, pieces)
        return Attention(
            *pieces,
            np.asarray(maps.encoder)[:, 0, :, :s, :s],
            np.asarray(maps.decoder)[:, 0, :, :t, :t],
            np.asarray(maps.cross)[:, 0, :, :t, :s],
        )

    def _batches(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches of few shapes, one pair a row, and the indices of their pairs.

        The number of rows is a power of two: of at most `batch_tokens` tokens a side,
        or one.
        """
        sides = self._tokenizer.encode(sources), self._tokenizer.encode_target(targets)
        pairs = list(zip(*sides, strict=True))
        longest = self._longest or math.inf  # positions that the model can hold
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, pair in enumerate(pairs):
            lengths = map(len, pair)
            if self._sizes:
                size = min(size for size in self._sizes if size >= max(map(len, pair)))
                shape = (size, size)
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
