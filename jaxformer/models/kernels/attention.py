"""Equation 1 by the fastest way there is for its arguments and devices."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from jaxformer.models.arrays import ArrayMask, Heads, Keys, Queries, Values
from jaxformer.models.kernels.fused_attention import (
    device_of_program,
    fused_attention,
    fused_attention_fits,
)
from jaxformer.models.local_attention import Neighbourhood, local_attention
from jaxformer.models.masks import MASKED

# For these TPUs XLA leaves large float32 arrays [B, H, T, S] in the memory outside the
# chip, which takes longer than to round them. A v5e keeps them on the chip.
ROUNDING = ("TPU v5", "TPU v5p", "TPU v6 lite", "TPU v6e")
LARGE = 2**23  # numbers on a device


def attend(
    query: Queries,
    key: Keys,
    value: Values,
    mask: ArrayMask | Neighbourhood | None = None,
    *,
    may_fuse: bool = False,
) -> Heads:
    """Compute `jaxformer.models.attention.dot_product_attention`.

    A neighbourhood is only for self-attention, whose scores it computes in blocks.
    `may_fuse` allows cuDNN's kernel, which never stores the scores [B, H, T, S].
    """
    if isinstance(mask, Neighbourhood):
        return local_attention(query, key, value, mask)
    if may_fuse and fused_attention_fits(query, key, value):
        return fused_attention(query, key, value, mask)
    device, scores = device_of_program(), math.prod(query.shape[:3]) * key.shape[1]
    rounds = device is not None and device.device_kind in ROUNDING and scores >= LARGE
    return _attend(query, key, value, mask, rounds)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(
    query: Queries, key: Keys, value: Values, mask: ArrayMask | None, rounds: bool
) -> Heads:
    """Equation 1 with a gradient that rounds arrays [B, H, T, S] only if it `rounds`.

    Unrounded, XLA computes these arrays within the products that use them; rounded, it
    writes them for the products, in the dtype of their factors.
    """
    return _attend_forward(query, key, value, mask, rounds=False)[0]


def _attend_forward(
    query: Queries, key: Keys, value: Values, mask: ArrayMask | None, rounds: bool
) -> tuple[Heads, tuple]:
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    scale = query.shape[-1] ** -0.5
    if rounds:  # scaled queries would be copied into the layout of the product
        scores = scale * product("bthk,bshk->bhts", query, key)
    else:
        scores = product("bthk,bshk->bhts", query * scale, key)
    scores = scores if mask is None else jnp.where(mask, scores, MASKED)
    exponentials = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    inverse = 1.0 / exponentials.sum(axis=-1, keepdims=True)  # [B, H, T, 1]
    weights = (exponentials * inverse).astype(value.dtype)
    if rounds:
        weights = jax.lax.optimization_barrier(weights)
    heads = jnp.einsum("bhts,bshu->bthu", weights, value)
    kept = (weights, heads) if rounds else (exponentials, inverse)
    return heads, (query, key, value, mask, *kept)


def _attend_backward(rounds: bool, kept: tuple, gradient: Heads) -> tuple:
    query, key, value, mask, weights, other = kept
    weights = weights if rounds else weights * other
    scale = query.shape[-1] ** -0.5
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    grad_weights = product("bthu,bshu->bhts", gradient, value)
    if rounds:
        mean = (gradient.astype(jnp.float32) * other).sum(axis=-1)  # [B, T, H]
        mean = mean.swapaxes(1, 2)[..., None]
    else:
        mean = (grad_weights * weights).sum(axis=-1, keepdims=True)
    grad_scores = weights * (grad_weights - mean)
    if mask is not None:  # a query without keys has weights
        grad_scores = jnp.where(mask, grad_scores, 0.0)
    if rounds:
        grad_scores = grad_scores.astype(query.dtype)
    grad_query = scale * product("bhts,bshk->bthk", grad_scores, key)
    if rounds:
        grad_key = scale * product("bhts,bthk->bshk", grad_scores, query)
    else:
        grad_key = product("bhts,bthk->bshk", grad_scores, query * scale)
    return (
        grad_query.astype(query.dtype),
        grad_key.astype(key.dtype),
        jnp.einsum("bhts,bthu->bshu", weights.astype(value.dtype), gradient),
        None,
    )


_attend.defvjp(_attend_forward, _attend_backward)
