"""Ways to compute attention on a GPU, for packed rows where they can."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from jaxformer.models.kernels.attention import attend
from jaxformer.models.kernels.fused_attention import fused_attention
from jaxformer.models.masks import causal_mask, segment_mask

XLA, LENGTHS, FULL = "XLA", "cuDNN, lengths", "cuDNN without a mask"
NAMES = (XLA, "cuDNN", "cuDNN, packed", LENGTHS, FULL, "Pallas")
MOST = 16  # the limit of sentences a row of "cuDNN, packed"


def attention(
    name: str, is_causal: bool, queries: jax.Array, keys: jax.Array, *qkv: Any
) -> jax.Array:
    """Compute equation 1 for segments [B, T] of queries and [B, S] of keys.

    LENGTHS takes rows of one sentence, and FULL rows without padding.
    """
    library = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
    mask, scale = segment_mask(queries, keys), qkv[0].shape[-1] ** -0.5
    mask = mask & causal_mask(mask.shape[-1]) if is_causal else mask
    match name:
        case "XLA":
            return attend(*qkv, mask)
        case "cuDNN":
            return fused_attention(*qkv, mask)
        case "cuDNN, packed":
            of_queries, of_keys = lengths_and_starts(queries), lengths_and_starts(keys)
            kinds = cudnn.MaskType
            return cudnn.dot_product_attention(
                *qkv, q_seqlen=of_queries[0], q_offsets=of_queries[1],
                kv_seqlen=of_keys[0], kv_offsets=of_keys[1], scale=scale,
                mask_type=kinds.PADDING_CAUSAL if is_causal else kinds.PADDING,
            )  # fmt: skip
        case "cuDNN, lengths":
            of_queries, of_keys = (queries > 0).sum(1), (keys > 0).sum(1)
            return library(
                *qkv, is_causal=is_causal, query_seq_lengths=of_queries,
                key_value_seq_lengths=of_keys,
            )  # fmt: skip
        case "cuDNN without a mask":
            return library(*qkv, is_causal=is_causal)
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    if queries is not keys:
        raise ValueError("the kernel is for self-attention: it takes one segment array")
    return mha(
        *qkv, queries, scale, is_causal, BlockSizes(128, 128, 64, 64, 64, 64),
        interpret=jax.default_backend() == "cpu",
    )  # fmt: skip


def lengths_and_starts(segments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return those of each segment, [B, MOST] and [B, MOST + 1], filled with -1."""
    counts = jax.nn.one_hot(segments - 1, MOST, dtype=jnp.int32).sum(1)
    starts = jnp.where(counts > 0, counts.cumsum(1) - counts, -1)
    starts = jnp.pad(starts, ((0, 0), (0, 1)), constant_values=-1)
    return jnp.where(counts > 0, counts, -1), starts
