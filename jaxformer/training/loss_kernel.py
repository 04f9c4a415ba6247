"""The loss of `jaxformer.training.loss` and its gradient without holding the logits.

The logits are the largest arrays of the model by far, so training makes them, their
loss and their gradient a few positions at a time.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.training.loss import LossSums, sums_of_rows

CHUNK_TOKENS = 512  # whose logits are held at a time; as fast on a CPU as 256 or 1,024


@functools.partial(jax.custom_vjp, nondiff_argnames=("label_smoothing",))
def projected_loss_sums(
    x: jax.Array,
    embedding: jax.Array,
    bias: jax.Array | None,
    target: jax.Array,
    segments: jax.Array,
    label_smoothing: float,
) -> LossSums:
    """Compute `loss_sums` of the logits x E^T + bias, a few positions at a time.

    x [B, T, D], embedding float32 [V, D], bias float32 [V] or None, target and segments
    int [B, T]. Only `loss` is differentiable, in x, the embedding and the bias.
    """
    return _forward(x, embedding, bias, target, segments, label_smoothing)[0]


def _forward(
    x: jax.Array,
    embedding: jax.Array,
    bias: jax.Array | None,
    target: jax.Array,
    segments: jax.Array,
    label_smoothing: float,
) -> tuple[LossSums, Any]:
    """The sums, and the gradients of the loss for the backward pass.

    d loss / d logits = softmax(logits) - smoothed target. Chunks give the part of the
    softmax; the part of the target is added here.
    """
    b, t, d = x.shape
    # Chunks run along the length, so that every device of a shard works on each.
    most = max(1, CHUNK_TOKENS // b)
    size = max(n for n in range(1, min(most, t) + 1) if t % n == 0)

    def chunks(array: jax.Array) -> jax.Array:  # [B, T, ...] -> [T/size, B size, ...]
        split = array.reshape(b, t // size, size, *array.shape[2:])
        return jnp.moveaxis(split, 1, 0).reshape(-1, b * size, *array.shape[2:])

    matrix = embedding.astype(x.dtype)  # [V, D]
    row_sum = matrix.sum(axis=0, dtype=jnp.float32)  # [D]
    output = (matrix, row_sum, bias, 0.0 if bias is None else bias.sum())
    (grad_matrix, grad_bias), (grad_x, sums) = jax.lax.scan(
        functools.partial(_chunk, output, label_smoothing),
        jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (embedding, bias)),
        (chunks(x), chunks(target), chunks(segments)),
    )
    grad_x = jnp.moveaxis(grad_x.reshape(-1, b, size, d), 0, 1).reshape(b, t, d)
    real = (segments != 0).astype(jnp.float32)[:, :, None]  # [B, T, 1]
    # Smoothing's even share is one row of the gradient, the same for every piece.
    even = label_smoothing / embedding.shape[0]
    grad_matrix -= even * (real * x).sum((0, 1), dtype=jnp.float32)[None]
    # The right piece's share of the smoothed target touches one row a token.
    share = (1.0 - label_smoothing) * real
    grad_x = (grad_x - share * jnp.take(matrix, target, axis=0)).astype(x.dtype)
    grad_matrix = grad_matrix.at[target].add(-share * x)
    if bias is not None:
        grad_bias = (grad_bias - even * real.sum()).at[target].add(-share[:, :, 0])
    return jax.tree.map(jnp.sum, sums), (grad_x, grad_matrix, grad_bias)


def _chunk(output: tuple, label_smoothing: float, totals: tuple, chunk: tuple) -> tuple:
    """Add a chunk of M positions to the totals; returns its own gradient and sums.

    Arrays as large as the logits are read seldom, so the exponentials enter the
    products unscaled: the D numbers of a row are scaled instead of its V. The mean of
    a row of logits is a product with the mean of the embedding's rows.
    """
    matrix, row_sum, bias, bias_sum = output  # [V, D], [D], [V], []
    grad_matrix, grad_bias = totals
    x, target, segments = chunk  # [M, D], [M], [M]
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    logits = product("md,vd->mv", x, matrix)
    if bias is not None:
        logits += bias[None]
    highest = logits.max(axis=-1)
    exponentials = jnp.exp(logits - highest[:, None])
    normaliser = exponentials.sum(axis=-1)  # [M]
    mean = jnp.einsum("md,d->m", x, row_sum, precision="highest")
    mean = (mean + bias_sum) / len(matrix)
    rows = (highest, highest + jnp.log(normaliser), mean)
    sums = sums_of_rows(logits, *rows, target, segments, label_smoothing)
    real = (segments != 0).astype(jnp.float32)
    scale = (real / normaliser)[:, None]  # [M, 1]
    exponentials = exponentials.astype(x.dtype)
    grad_x = scale * product("mv,vd->md", exponentials, matrix)
    grad_x -= label_smoothing / len(matrix) * real[:, None] * row_sum[None]
    scaled = (scale * x).astype(x.dtype)
    grad_matrix += product("mv,md->vd", exponentials, scaled)
    if bias is not None:
        grad_bias += jnp.einsum("mv,m->v", exponentials, scale[:, 0])
    return (grad_matrix, grad_bias), (grad_x, sums)


def _backward(label_smoothing: float, grads: Any, cotangent: LossSums) -> tuple:
    scale = cotangent.loss
    scaled = jax.tree.map(lambda grad: grad * scale.astype(grad.dtype), grads)
    return *scaled, None, None


projected_loss_sums.defvjp(_forward, _backward)
