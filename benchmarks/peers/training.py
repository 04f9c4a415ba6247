"""What the contestants of benchmarks/train.py are given, and what they give back."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxformer.batch import EOS, Batch
from jaxformer.models.transformer.config import TransformerConfig

# Makes one update with a batch of numpy arrays and waits for it; gives its mean loss.
Update = Callable[[Batch], float]
BETA1, BETA2, EPSILON = 0.9, 0.98, 1e-9  # section 5.3
LABEL_SMOOTHING = 0.1  # section 5.4
DROPOUT = 0.1
LEARNING_RATE = 1e-4  # of every contestant; no schedule, which costs nothing anyway


@dataclass(frozen=True, kw_only=True)
class TrainSizes:
    """A model and its batch; every row is full."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    vocabulary: int
    rows: int
    source: int  # tokens a row, EOS included
    target: int
    dtype: str = "float32"  # of activations: "float32" or "bfloat16"
    fused_attention: bool = False  # ours alone: cuDNN's kernel where it fits

    def config(self) -> TransformerConfig:
        """The same as a config of ours."""
        head = self.d_model // self.num_heads
        return TransformerConfig(
            architecture="transformer", encoder_layers=self.num_layers,
            decoder_layers=self.num_layers, d_model=self.d_model, d_ff=self.d_ff,
            num_heads=self.num_heads, d_k=head, d_v=head, dropout=DROPOUT,
            positions="sinusoidal", max_positions=512,
            norm_first=False, dtype=self.dtype, attention_bias=False,
            activation="relu", logits_bias=False, layer_norm_epsilon=1e-6,
            attention_window=None, fused_attention=self.fused_attention,
        )  # fmt: skip

    def batch(self, seed: int) -> Batch:
        """Random sentences without padding."""
        draw = np.random.default_rng(seed)

        def ids(length: int) -> np.ndarray:
            shape = (self.rows, length)
            found = draw.integers(EOS + 1, self.vocabulary, shape, dtype=np.int32)
            found[:, -1] = EOS
            return found

        source, target = ids(self.source), ids(self.target)
        return Batch(source, target, np.ones_like(source), np.ones_like(target))


BASE = TrainSizes(
    num_layers=6, d_model=512, d_ff=2048, num_heads=8, vocabulary=37_000, rows=32,
    source=32, target=32,
)  # fmt: skip
BIG = TrainSizes(
    num_layers=6, d_model=1024, d_ff=4096, num_heads=16, vocabulary=37_000, rows=32,
    source=32, target=32,
)  # fmt: skip
SMALL = TrainSizes(
    num_layers=4, d_model=128, d_ff=256, num_heads=4, vocabulary=10_000, rows=256,
    source=16, target=16,
)  # fmt: skip
TINY = TrainSizes(
    num_layers=1, d_model=16, d_ff=32, num_heads=2, vocabulary=64, rows=4, source=8,
    target=8,
)  # fmt: skip


@dataclass(frozen=True)
class Product:
    """`count` products of [batch, rows, inner] with [batch, inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int
    count: int

    @property
    def flops(self) -> int:
        """Operations of all of them."""
        return 2 * self.count * self.batch * self.rows * self.inner * self.columns


def products(sizes: TrainSizes) -> list[Product]:
    """All matrix products of a train step, forward and backward, by shape.

    y = x w costs three: itself, dx = dy w^T and dw = x^T dy.
    """
    d, f, n = sizes.d_model, sizes.d_ff, sizes.num_layers
    sides = {"source": sizes.rows * sizes.source, "target": sizes.rows * sizes.target}
    found: dict[tuple[int, ...], int] = {}

    def both_passes(
        batch: int, rows: int, inner: int, columns: int, count: int
    ) -> None:
        for shape in (
            (batch, rows, inner, columns),
            (batch, rows, columns, inner),
            (batch, inner, rows, columns),
        ):
            found[shape] = found.get(shape, 0) + count

    for side, places in sides.items():
        # Encoder: four projections. Decoder: four of self-attention and two of cross-
        # attention, whose other two project the source.
        both_passes(1, places, d, d, 6 * n)
        both_passes(1, places, d, f, n)
        both_passes(1, places, f, d, n)
        if side == "target":
            both_passes(1, places, d, sizes.vocabulary, 1)
    head = d // sizes.num_heads
    for queries, keys in (
        (sizes.source, sizes.source),
        (sizes.target, sizes.target),
        (sizes.target, sizes.source),
    ):
        heads = sizes.rows * sizes.num_heads
        both_passes(heads, queries, head, keys, n)
        both_passes(heads, queries, keys, head, n)
    return [Product(*shape, count) for shape, count in found.items()]


def flops(sizes: TrainSizes) -> int:
    """Operations of the matrix products of a train step."""
    return sum(product.flops for product in products(sizes))


def positions(length: int, d_model: int) -> np.ndarray:
    """Section 3.5 for a peer: float32 [length, d_model]."""
    angle = np.arange(length)[:, None] * np.exp(
        np.arange(0, d_model, 2) * -math.log(10_000.0) / d_model
    )
    return (
        np.stack([np.sin(angle), np.cos(angle)], -1)
        .reshape(length, d_model)
        .astype(np.float32)
    )
