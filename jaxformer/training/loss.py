"""Section 5.4: label-smoothed cross-entropy, as sums and counts.

Sums are divided once, on the host, when they are logged or when an update is applied:
averaging averages would weight tokens wrongly where microbatches or devices hold
different numbers of them.

`loss_sums` is the formula. `projected_loss_sums` is the same from the decoder's output,
for training: the logits are the largest arrays of the model by far, so it makes them,
their loss and their gradient a few positions at a time and never holds them all.
"""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

CHUNK_TOKENS = 512  # whose logits are held at a time; as fast on a CPU as 256 or 1,024


class LossSums(NamedTuple):
    """Sums over real target tokens, each float32 []; divide by `tokens` for means."""

    loss: jax.Array  # label-smoothed cross-entropy, in nats: what is minimised
    nll: jax.Array  # negative log-likelihood, in nats: exp(nll / tokens) = perplexity
    correct: jax.Array  # tokens whose most likely prediction is right
    tokens: jax.Array  # real target tokens, EOS included


def averages(sums: Mapping[str, float]) -> dict[str, float]:
    """Divide `LossSums` by their tokens: loss, nll, ppl, accuracy, and tokens.

    Takes host numbers by the names of `LossSums`. loss and nll are in nats per target
    token, ppl is exp(nll), accuracy is from 0 to 1.
    """
    tokens = float(sums["tokens"]) or math.nan  # of updates that were all skipped
    nll = float(sums["nll"]) / tokens
    return {
        "loss": float(sums["loss"]) / tokens,
        "nll": nll,
        "ppl": math.exp(min(nll, 700.0)),  # e^710 is more than a float holds
        "accuracy": float(sums["correct"]) / tokens,
        "tokens": tokens,
    }


def loss_sums(
    logits: jax.Array, target: jax.Array, segments: jax.Array, *, label_smoothing: float
) -> LossSums:
    """Sum the loss and its companions over tokens that are not padding.

    logits float32 [B, T, V], target and segments int [B, T], segment 0 = padding. The
    smoothed target distribution gives 1 - eps to the right piece and spreads eps evenly
    over all V pieces (Szegedy et al. 2015, section 7, which section 5.4 cites). No
    one-hot array is made.
    """
    highest = logits.max(axis=-1)  # [B, T]
    right = _at(logits, target)
    log_normaliser = jax.nn.logsumexp(logits, axis=-1)
    return _sums(
        right, highest, log_normaliser, logits.mean(axis=-1), segments, label_smoothing
    )


def _at(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Logits [..., V] of the right pieces: [...]."""
    return jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]


def _sums(
    right: jax.Array,
    highest: jax.Array,
    log_normaliser: jax.Array,
    mean: jax.Array,
    segments: jax.Array,
    label_smoothing: float,
) -> LossSums:
    """The sums from what they need of each row of logits, all [...]."""
    real = (segments != 0).astype(jnp.float32)
    nll = log_normaliser - right
    uniform = log_normaliser - mean  # cross-entropy to 1/V everywhere
    loss = (1.0 - label_smoothing) * nll + label_smoothing * uniform
    correct = (right >= highest).astype(jnp.float32)
    return LossSums(
        (loss * real).sum(), (nll * real).sum(), (correct * real).sum(), real.sum()
    )


class ProjectionGradients(NamedTuple):
    """Gradients of a loss in what its logits are made of; leading N by shard."""

    x: jax.Array  # [B, T, D]
    embedding: jax.Array  # float32 [V, D]
    bias: jax.Array | None  # float32 [V]


@functools.partial(jax.custom_vjp, nondiff_argnames=("label_smoothing",))
def projected_loss_sums(
    x: jax.Array,
    embedding: jax.Array,
    bias: jax.Array | None,
    target: jax.Array,
    segments: jax.Array,
    label_smoothing: float,
) -> LossSums:
    """`loss_sums` of the logits x E^T + bias, without ever holding them all.

    x [N, B/N, T, D], embedding float32 [N, V, D], bias float32 [N, V] or None, target
    and segments int [N, B/N, T] for N shards of the batch, each with an embedding and
    a bias of its own (`jaxformer.models.shards`): nothing crosses shards but the sums.
    Only `loss` is differentiable, in x, the embedding and the bias.
    """
    return _projected_forward(x, embedding, bias, target, segments, label_smoothing)[0]


def _projected_forward(
    x: jax.Array,
    embedding: jax.Array,
    bias: jax.Array | None,
    target: jax.Array,
    segments: jax.Array,
    label_smoothing: float,
) -> tuple[LossSums, ProjectionGradients]:
    """The sums, and what the backward pass needs: the loss's gradients."""
    one_shard = functools.partial(_forward_of_shard, label_smoothing=label_smoothing)
    sums, gradients = jax.vmap(one_shard)(x, embedding, bias, target, segments)
    return jax.tree.map(jnp.sum, sums), gradients


def _positions_per_chunk(rows: int, length: int) -> int:
    """Count positions whose tokens in all rows make about CHUNK_TOKENS; divides length.

    Chunks run along the length, so that every device of a shard works on each.
    """
    wanted = max(1, CHUNK_TOKENS // rows)
    return max(n for n in range(1, min(wanted, length) + 1) if length % n == 0)


def _forward_of_shard(
    x: jax.Array,
    embedding: jax.Array,
    bias: jax.Array | None,
    target: jax.Array,
    segments: jax.Array,
    *,
    label_smoothing: float,
) -> tuple[LossSums, ProjectionGradients]:
    """Loss sums of x [B, T, D], and their gradients; embedding [V, D], bias [V].

    d loss / d logits = softmax(logits) - smoothed target, so with the logits of a chunk
    at hand its gradients cost two matrix products and nothing need be kept or redone.
    What is as large as the logits is touched seldom: once for the highest of each row,
    once to take exponentials and once to sum them. These go into the products as they
    are, and their scale onto the D numbers of a row instead of its V; the mean of a row
    of logits is a product with the mean of the embedding's rows.
    """
    b, t, d = x.shape
    size = _positions_per_chunk(b, t)
    matrix = embedding.astype(x.dtype)  # [V, D]
    row_sum = matrix.sum(axis=0, dtype=jnp.float32)  # [D]
    bias_sum = 0.0 if bias is None else bias.sum()
    even = label_smoothing / embedding.shape[0]

    def chunks(array: jax.Array) -> jax.Array:  # [B, T, ...] -> [T/size, B size, ...]
        split = array.reshape(b, t // size, size, *array.shape[2:])
        return jnp.moveaxis(split, 1, 0).reshape(-1, b * size, *array.shape[2:])

    def one_chunk(
        totals: tuple[jax.Array, jax.Array | None],
        chunk: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[tuple[jax.Array, jax.Array | None], tuple[jax.Array, LossSums]]:
        grad_matrix, grad_bias = totals
        x, target, segments = chunk
        logits = jnp.einsum("md,vd->mv", x, matrix, preferred_element_type=jnp.float32)
        if bias is not None:
            logits += bias[None]
        highest = logits.max(axis=-1)
        exponentials = jnp.exp(logits - highest[:, None])
        normaliser = exponentials.sum(axis=-1)  # [B size]
        mean = jnp.einsum("md,d->m", x, row_sum, precision="highest")
        mean = (mean + bias_sum) / len(matrix)
        sums = _sums(
            _at(logits, target), highest, highest + jnp.log(normaliser), mean,
            segments, label_smoothing,
        )  # fmt: skip
        real = (segments != 0).astype(jnp.float32)
        scale = (real / normaliser)[:, None]  # [B size, 1]
        exponentials = exponentials.astype(x.dtype)
        grad_x = jnp.einsum(
            "mv,vd->md", exponentials, matrix, preferred_element_type=jnp.float32
        )
        grad_x = scale * grad_x - even * real[:, None] * row_sum[None]
        grad_matrix += jnp.einsum(
            "mv,md->vd", exponentials, (scale * x).astype(x.dtype),
            preferred_element_type=jnp.float32,
        )  # fmt: skip
        if bias is not None:
            grad_bias += jnp.einsum("mv,m->v", exponentials, scale[:, 0])
        return (grad_matrix, grad_bias), (grad_x, sums)

    zeros = jax.tree.map(
        lambda table: jnp.zeros(table.shape, jnp.float32), (embedding, bias)
    )
    (grad_matrix, grad_bias), (grad_x, sums) = jax.lax.scan(
        one_chunk, zeros, (chunks(x), chunks(target), chunks(segments))
    )
    grad_x = jnp.moveaxis(grad_x.reshape(-1, b, size, d), 0, 1).reshape(b, t, d)
    real = (segments != 0).astype(jnp.float32)[:, :, None]  # [B, T, 1]
    # Smoothing's even share is one row of the gradient, the same for every piece.
    grad_matrix -= even * (real * x).sum((0, 1), dtype=jnp.float32)[None]
    # The right piece's share of the smoothed target touches one row a token.
    share = (1.0 - label_smoothing) * real
    grad_x = (grad_x - share * jnp.take(matrix, target, axis=0)).astype(x.dtype)
    grad_matrix = grad_matrix.at[target].add(-share * x)
    if bias is not None:
        grad_bias = (grad_bias - even * real.sum()).at[target].add(-share[:, :, 0])
    sums = jax.tree.map(jnp.sum, sums)
    return sums, ProjectionGradients(grad_x, grad_matrix, grad_bias)


def _projected_backward(
    label_smoothing: float, gradients: ProjectionGradients, cotangent: LossSums
) -> tuple[jax.Array | None, ...]:
    scale = cotangent.loss
    scaled = jax.tree.map(lambda grad: grad * scale.astype(grad.dtype), gradients)
    return *scaled, None, None


projected_loss_sums.defvjp(_projected_forward, _projected_backward)
