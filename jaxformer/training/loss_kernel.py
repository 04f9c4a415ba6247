"""The loss of `jaxformer.training.loss` and its gradient without holding the logits.

The logits are the largest arrays of the model by far, so training makes them, their
loss and their gradient a few positions at a time.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.models.kernels.barrier import pass_ends
from jaxformer.models.kernels.mixed_precision import transposed
from jaxformer.training.loss import LossSums, sums_of_rows


class ChunkPlan(NamedTuple):
    """How the program of a platform computes the loss."""

    chunk_tokens: int  # whose logits are held at a time, at most
    sums_by_product: bool  # a product sums exponentials, which are in its dtype
    adds_transposed: bool  # chunks add to the matrix's gradient as [D, V]


# chunk_tokens: on a CPU 512 are as fast as 256 or 1,024. On accelerators, reading and
# writing the matrix's gradient for each chunk would take longer than the products of
# 512 tokens; 6,144 tokens of a TPU v6e take 1.6 ms in one chunk and 2.2 ms in two.
# sums_by_product: a TPU would take twice as long to sum exponentials as to multiply
# with them.
# adds_transposed: for a sum [V, D] XLA for CPUs would copy the exponentials transposed.
PLANS = {
    "cpu": ChunkPlan(512, sums_by_product=False, adds_transposed=True),
    "tpu": ChunkPlan(8192, sums_by_product=True, adds_transposed=False),
    "default": ChunkPlan(8192, sums_by_product=False, adds_transposed=False),
}
MOST = 64.0  # nats by which a logit counts as above the right one, at most


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
    int [B, T]. Only `loss` is differentiable, in x, the embedding and the bias. Where
    logits exceed the right one by more than MOST nats, they count as equally likely, so
    loss and nll are then too low.
    """
    return _forward(x, embedding, bias, target, segments, label_smoothing)[0]


def _forward(*arguments: jax.Array | float | None) -> tuple[LossSums, tuple]:
    """The sums, and the gradients of the loss for the backward pass."""
    *arrays, label_smoothing = arguments
    branches = {
        platform: functools.partial(_in_chunks, plan, label_smoothing)
        for platform, plan in PLANS.items()
    }
    return jax.lax.platform_dependent(*arrays, **branches)


def _in_chunks(
    plan: ChunkPlan,
    label_smoothing: float,
    x: jax.Array,
    embedding: jax.Array,
    bias: jax.Array | None,
    target: jax.Array,
    segments: jax.Array,
) -> tuple[LossSums, tuple]:
    """Compute loss sums and gradients, a chunk of tokens at a time.

    d loss / d logits = softmax(logits) - smoothed target. Chunks give the part of the
    softmax; the part of the target is added here.
    """
    shape, d = x.shape, x.shape[-1]
    (x,) = pass_ends(x)
    x, target, segments = x.reshape(-1, d), target.ravel(), segments.ravel()  # [N, D]
    count = len(x)
    chunks = math.ceil(count / plan.chunk_tokens)
    size = math.ceil(count / chunks)
    padding = (0, chunks * size - count)
    x = jnp.pad(x, (padding, (0, 0)))
    target, segments = (jnp.pad(each, padding) for each in (target, segments))
    matrix = embedding.astype(x.dtype)  # [V, D]
    if plan.sums_by_product:
        ones = jnp.ones((8, len(matrix)), x.dtype)  # XLA would not multiply by one row
        row_sum = jnp.matmul(ones, matrix, preferred_element_type=jnp.float32)[0]
    else:
        # Rounding hardly changes the sum of so many rows.
        row_sum = embedding.sum(axis=0)  # [D]
    output = (matrix, row_sum, bias, 0.0 if bias is None else bias.sum())
    real = (segments != 0).astype(jnp.float32)[:, None]  # [N, 1]
    # Smoothing's even share is one row of the gradient, the same for every piece.
    even = label_smoothing / len(matrix)
    row = -even * (real * x).sum(axis=0, dtype=jnp.float32)  # [D]
    start = jnp.broadcast_to(row, embedding.shape)
    start_bias = None if bias is None else jnp.full(bias.shape, -even * real.sum())
    sums = jnp.zeros(len(LossSums._fields))
    (grad_matrix, grad_bias, sums), grad_x = jax.lax.scan(
        functools.partial(_chunk, plan, output, label_smoothing),
        (start.T if plan.adds_transposed else start, start_bias, sums),
        [each.reshape(-1, size, *each.shape[1:]) for each in (x, target, segments)],
    )
    if plan.adds_transposed:
        # Without the barrier XLA may transpose a single chunk's product by its layout,
        # for which it has no kernel in bfloat16.
        grad_matrix = transposed(jax.lax.optimization_barrier(grad_matrix))
    # The right piece's share of the smoothed target touches one row a token.
    share = (1.0 - label_smoothing) * real
    grad_x = grad_x.reshape(-1, d) - share * jnp.take(matrix, target, axis=0)
    grad_matrix = grad_matrix.at[target].add(-share * x)
    if bias is not None:
        grad_bias = grad_bias.at[target].add(-share[:, 0])
    grad_x = grad_x[:count].astype(x.dtype).reshape(shape)
    return LossSums(*sums), (grad_x, grad_matrix, grad_bias)


def _chunk(
    plan: ChunkPlan, output: tuple, label_smoothing: float, totals: tuple, chunk: tuple
) -> tuple:
    """Add a chunk of M tokens to the totals; returns its own gradient and sums.

    Arrays as large as the logits are read seldom. One pass makes the exponentials and
    their sums, since it subtracts the right piece's logit, which is known before it,
    and not the row's highest. The exponentials enter the products unscaled: the D
    numbers of a row are scaled instead of its V. The mean of a row of logits is a
    product with the mean of the embedding's rows.
    """
    matrix, row_sum, bias, bias_sum = output  # [V, D], [D], [V], []
    grad_matrix, grad_bias, before = totals
    x, target, segments = chunk  # [M, D], [M], [M]
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    logits = product("md,vd->mv", x, matrix)
    if bias is not None:
        logits += bias[None]
    highest = logits.max(axis=-1)
    right = jnp.take_along_axis(logits, target[:, None], axis=-1)  # [M, 1]
    exponentials = jnp.exp(jnp.minimum(logits - right, MOST))
    normaliser = exponentials.sum(axis=-1)  # [M]
    exponentials = exponentials.astype(x.dtype)
    if plan.sums_by_product:
        matrix = jnp.append(matrix, jnp.ones((len(matrix), 1), matrix.dtype), axis=1)
    grad_x = product("mv,vd->md", exponentials, matrix)  # [M, D], or [M, D + 1]
    if plan.sums_by_product:
        grad_x, normaliser = grad_x[:, :-1], grad_x[:, -1]
    mean = jnp.einsum("md,d->m", x, row_sum, precision="highest")
    mean = (mean + bias_sum) / len(matrix)
    rows = (highest, right[:, 0] + jnp.log(normaliser), mean)
    sums = sums_of_rows(logits, *rows, target, segments, label_smoothing)
    real = (segments != 0).astype(jnp.float32)
    scale = (real / normaliser)[:, None]  # [M, 1]
    grad_x = scale * grad_x
    grad_x -= label_smoothing / len(matrix) * real[:, None] * row_sum[None]
    scaled = (scale * x).astype(x.dtype)
    if plan.adds_transposed:
        grad_matrix += product("dm,mv->dv", transposed(scaled), exponentials)
    else:
        grad_matrix += product("mv,md->vd", exponentials, scaled)
    if bias is not None:
        grad_bias += jnp.einsum("mv,m->v", exponentials, scale[:, 0])
    return (grad_matrix, grad_bias, before + jnp.stack(sums)), grad_x


def _backward(label_smoothing: float, grads: tuple, cotangent: LossSums) -> tuple:
    scale = cotangent.loss
    scaled = jax.tree.map(lambda grad: grad * scale.astype(grad.dtype), grads)
    return *scaled, None, None


projected_loss_sums.defvjp(_forward, _backward)
