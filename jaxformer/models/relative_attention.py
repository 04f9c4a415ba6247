"""Relative positions (Shaw et al. 2018): vectors for the distance between two tokens.

The distance j - i of key j to query i, clipped to [-k, k], chooses one of 2k + 1
learned vectors a^K and one of as many a^V, which all heads of a layer share:

    e_ij = q_i (k_j + a^K_ij)^T / sqrt(d_k)        equation 4
    z_i  = sum_j softmax(e_i)_j (v_j + a^V_ij)     equation 3

Queries are multiplied with the 2k + 1 vectors, and weights are summed by distance, so
no array has a vector for each pair of tokens. In a packed row the distance within the
row is that within the sentence.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from jaxformer.models.arrays import ArrayMask, Ids, Vectors
from jaxformer.models.attention import MultiHeadAttention, attention_scores
from jaxformer.models.masks import MASKED


def spread_to_keys(x: Float[Array, "*H L R"], length: int) -> Float[Array, "*H L L"]:
    """Expand numbers of the R = 2k + 1 distances -k ... k to keys.

    Query i and key j get the number of the clipped distance j - i.
    """
    extra = length - 1 - x.shape[-1] // 2
    before = ((0, 0),) * (x.ndim - 1)
    if extra > 0:  # distances 1 - L ... L - 1, of each query
        rows = jnp.pad(x, (*before, (extra, extra)), mode="edge")
    else:
        rows = x[..., -extra : x.shape[-1] + extra]
    # Shift row i by i: read as a sequence, rows of 2 L begin one number later each time
    # if they are cut after 2 L - 1.
    rows = jnp.pad(rows, (*before, (0, 1))).reshape(*rows.shape[:-2], -1)
    rows = rows[..., length - 1 : -1].reshape(*rows.shape[:-1], -1, 2 * length - 1)
    return rows[..., :length]


def sum_by_distance(x: Float[Array, "*H L L"], reach: int) -> Float[Array, "*H L R"]:
    """Sum numbers of keys by clipped distance, R = 2 reach + 1."""
    length = x.shape[-1]
    shape = (*x.shape[:-1], 2 * reach + 1)
    expand = partial(spread_to_keys, length=length)
    transpose = jax.linear_transpose(expand, jax.ShapeDtypeStruct(shape, x.dtype))
    return transpose(x)[0]


def relative_weights(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B L H K"],
    of_key: Float[Array, "R K"],  # a^K
    mask: ArrayMask,
) -> Float32[Array, "B H L L"]:
    """Compute the softmax of equation 4."""
    scores = attention_scores(query, key, None)
    of_distance = jnp.einsum(
        "bthk,rk->bhtr", query * query.shape[-1] ** -0.5, of_key,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    scores += spread_to_keys(of_distance, key.shape[1])
    return jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)


def relative_mix(
    weights: Float32[Array, "B H L L"],
    value: Float[Array, "B L H U"],
    of_value: Float[Array, "R U"],  # a^V
) -> Float[Array, "B L H U"]:
    """Compute equation 3 in value's dtype."""
    heads = jnp.einsum("bhts,bshu->bthu", weights.astype(value.dtype), value)
    sums = sum_by_distance(weights, len(of_value) // 2).astype(value.dtype)
    return heads + jnp.einsum("bhtr,ru->bthu", sums, of_value)


class RelativeAttention(MultiHeadAttention, kw_only=True):
    """Self-attention with relative positions; no kernel of cuDNN's computes it."""

    distance: int  # k

    def attend(
        self,
        queries: Vectors,
        keys: Vectors,
        values: Vectors,
        mask: ArrayMask,
        positions: Ids | None,
    ) -> Float[Array, "B L H U"]:
        query, key, value = self.projected(queries, keys, values, positions)
        init = nn.initializers.xavier_uniform()
        init = nn.with_logical_partitioning(init, (None, "head_size"))
        of_key, of_value = (
            self.param(name, init, (2 * self.distance + 1, size)).astype(query.dtype)
            for name, size in (("relative_key", self.d_k), ("relative_value", self.d_v))
        )
        weights = relative_weights(query, key, of_key, mask)
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", "weights", weights)
        return relative_mix(weights, value, of_value)
