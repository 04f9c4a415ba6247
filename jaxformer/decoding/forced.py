"""Given pairs instead of a search: what a model thinks of them, and where it looks.

Each pair is one pass with the target forced (teacher forcing). Used by
`jaxformer.decoding.translate`.
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
    """How probable a model finds a given translation."""

    pieces: list[str]  # end of sentence included
    log_probabilities: list[float]  # of each, given those before; natural logarithm

    @property
    def log_probability(self) -> float:
        return float(np.sum(self.log_probabilities))


class Attention(NamedTuple):
    """Where each of H heads of N layers looks, for one pair; rows are queries.

    Row t of `decoder` and `cross` is the position that predicts target piece t.
    """

    source: list[str]  # S pieces, end of sentence included
    target: list[str]  # T pieces, end of sentence included
    encoder: np.ndarray  # f32 [N, H, S, S]
    decoder: np.ndarray  # f32 [N, H, T, T]
    cross: np.ndarray  # f32 [N, H, T, S]

    def alignment(self) -> list[tuple[int, int]]:
        """Link each target piece to the source piece that it looks at most.

        (source, target) places; the heads of the last layer but one are averaged, as
        its cross-attention aligns best (Garg et al. 2019). The end is linked to none.
        """
        layer = self.cross[max(len(self.cross) - 2, 0)].mean(axis=0)  # [T, S]
        best = layer[:-1, :-1].argmax(axis=1) if layer.shape[1] > 1 else []
        return [(int(s), t) for t, s in enumerate(best)]

    def pharaoh(self) -> str:
        """Write the alignment as word aligners do: "0-0 1-2"."""
        return " ".join(f"{s}-{t}" for s, t in self.alignment())


class TeacherForcing:
    """Scores and attention of given pairs; set `params` before the first call."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, *, batch_tokens: int
    ) -> None:
        self.params: Any = None
        self._tokenizer = tokenizer
        self._sizes = {"batch_tokens": batch_tokens, "longest": model.longest}

        def log_probabilities(params: Any, batch: Batch) -> jax.Array:
            return token_log_probabilities(model.logits(params, batch), batch.target)

        self._log_probabilities = jax.jit(log_probabilities)
        self._maps = jax.jit(model.attention)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
        """Score each pair; in batches of similar length, in the order given."""
        ids = self._encode(sources, targets)
        names = self._tokenizer.pieces()
        scored: list[PairScore | None] = [None] * len(sources)
        for chosen, batch in _batches(*ids, **self._sizes):
            rows = np.asarray(self._log_probabilities(self.params, batch))
            for place, row in zip(chosen, rows, strict=False):
                target = ids[1][place]
                scored[place] = PairScore(
                    [names[i] for i in target], row[: len(target)].tolist()
                )
        return scored

    def attention(self, source: str, target: str) -> Attention:
        """Where each head looks, for one pair.

        Raises InputError if the model has no attention.
        """
        ids = [each[0] for each in self._encode([source], [target])]
        ((_, batch),) = _batches(*([side] for side in ids), **self._sizes)
        maps = self._maps(self.params, batch)
        if maps is None:
            raise InputError("this model has no attention to look at")
        names = self._tokenizer.pieces()
        s, t = map(len, ids)
        return Attention(
            *([names[i] for i in side] for side in ids),
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


def token_log_probabilities(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Log-probability of each piece of target int [B, T], 0 on padding: f32 [B, T].

    logits f32 [B, T, V].
    """
    log_probability = jnp.take_along_axis(
        jax.nn.log_softmax(logits), target[:, :, None], axis=-1
    )[:, :, 0]
    return jnp.where(target != PAD, log_probability, 0.0)


def _batches(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch_tokens: int,
    longest: int | None,
) -> Iterator[tuple[list[int], Batch]]:
    """Pairs in few shapes, one pair a row: their places and a batch.

    Rows are a power of two of at most `batch_tokens` pieces a side, or one; padding
    goes no further than `longest`, all that learned positions can hold.
    """

    def padded(length: int) -> int:
        bucket = bucket_length(length)
        return bucket if longest is None else max(length, min(bucket, longest))

    groups: dict[tuple[int, int], list[int]] = {}
    for place, pair in enumerate(zip(sources, targets, strict=True)):
        shape = tuple(padded(len(side)) for side in pair)
        groups.setdefault(shape, []).append(place)
    for shape, places in sorted(groups.items(), reverse=True):
        most = 1 << (max(1, batch_tokens // max(shape)).bit_length() - 1)
        for begin in range(0, len(places), most):
            chosen = places[begin : begin + most]
            rows = min(most, 1 << (len(chosen) - 1).bit_length())
            sides = []
            for side, length in zip((sources, targets), shape, strict=True):
                array = np.full((rows, length), PAD, np.int32)
                for row, place in enumerate(chosen):
                    array[row, : len(side[place])] = side[place]
                sides.append(array)
            segments = [(side != PAD).astype(np.int32) for side in sides]
            yield chosen, Batch(*sides, *segments)
