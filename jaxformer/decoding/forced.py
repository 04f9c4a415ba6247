"""Scores and attention maps of given sentence pairs, by teacher forcing.

Used by `jaxformer.decoding.translate`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.batch import PAD, Batch, Tokenizer
from jaxformer.decoding.engine import bucket_length
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
    """Attention weights of H heads in N layers for one pair; rows are queries.

    Row t of `decoder` and `cross` is the position that predicts target piece t.
    """

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

    def score(
        self, params: Any, sources: Sequence[str], targets: Sequence[str]
    ) -> list[PairScore]:
        """Score each pair; pairs of similar length share a batch."""
        ids = self._encode(sources, targets)
        names = self._tokenizer.pieces()
        scored: dict[int, PairScore] = {}
        for chosen, batch in self._batches(*ids):
            rows = np.asarray(self._log_probabilities(params, batch))
            for index, row in zip(chosen, rows, strict=False):
                target = ids[1][index]
                scored[index] = PairScore(
                    [names[i] for i in target], row[: len(target)].tolist()
                )
        return [scored[index] for index in range(len(sources))]

    def attention(self, params: Any, source: str, target: str) -> Attention:
        """Compute the attention maps of one pair.

        Raises InputError if the model has no attention.
        """
        ids = self._encode([source], [target])
        ((_, batch),) = self._batches(*ids)
        maps = self._maps(params, batch)
        if maps is None:
            raise InputError("this model has no attention to show")
        names = self._tokenizer.pieces()
        pieces = [[names[i] for i in side[0]] for side in ids]
        s, t = map(len, pieces)
        return Attention(
            *pieces,
            np.asarray(maps.encoder[:, 0, :, :s, :s]),
            np.asarray(maps.decoder[:, 0, :, :t, :t]),
            np.asarray(maps.cross[:, 0, :, :t, :s]),
        )

    def _encode(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        return (
            self._tokenizer.encode(list(sources)),
            self._tokenizer.encode_target(list(targets)),
        )

    def _batches(
        self, sources: list[list[int]], targets: list[list[int]]
    ) -> Iterator[tuple[list[int], Batch]]:
        """Pairs in few shapes, one pair a row: their indices and a batch.

        The number of rows is a power of two: of at most `batch_tokens` tokens a side,
        or one.
        """

        def padded(length: int) -> int:
            bucket = bucket_length(length)
            if self._longest is not None:  # all that learned positions can hold
                bucket = max(length, min(bucket, self._longest))
            return bucket

        groups: dict[tuple[int, ...], list[int]] = {}
        for index, pair in enumerate(zip(sources, targets, strict=True)):
            shape = tuple(padded(len(side)) for side in pair)
            groups.setdefault(shape, []).append(index)
        for shape, indices in sorted(groups.items(), reverse=True):
            most = 1 << (max(1, self._batch_tokens // max(shape)).bit_length() - 1)
            for begin in range(0, len(indices), most):
                chosen = indices[begin : begin + most]
                rows = min(most, 1 << (len(chosen) - 1).bit_length())
                sides = [np.full((rows, length), PAD, np.int32) for length in shape]
                for row, index in enumerate(chosen):
                    for array, side in zip(sides, (sources, targets), strict=True):
                        array[row, : len(side[index])] = side[index]
                segments = [(side != PAD).astype(np.int32) for side in sides]
                yield chosen, Batch(*sides, *segments)
