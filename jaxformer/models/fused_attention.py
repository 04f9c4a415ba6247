"""Equation 1 as one kernel of cuDNN, on the GPUs and for the sizes that it takes.

The kernel never writes out the scores [B, H, T, S]. `jax.nn.dot_product_attention`
calls it; which arguments it takes is the rule below, stricter than cuDNN's own, so that
all else goes the usual way. `model.fused_attention` allows it; `attention.py` asks.
"""

import jax
import jax.numpy as jnp

LARGEST_HEAD = 128  # numbers; before Hopper
LEAST_CAPABILITY = (8, 0)  # Ampere


def cuda_capability() -> tuple[int, int] | None:
    """The compute capability of this process's first device; None if it has no CUDA."""
    device = jax.local_devices()[0]
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:
        return None
    major, minor = device.compute_capability.split(".")
    return int(major), int(minor)


def fused_attention_fits(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    capability: tuple[int, int] | None,
    devices: int,
) -> bool:
    """Whether the kernel takes queries [B, T, H, K] and values [B, S, H, U].

    It wants half precision throughout, d_k = d_v, a multiple of 8 of at most 128, and,
    since a mask reaches it as a bias that has a gradient, even lengths. On more than
    one of `devices` it wants all operands split alike, so here it is for one alone.
    """
    dtypes, sizes = ({f(x) for x in (query, key, value)} for f in (_dtype, _size))
    (size, *others) = sizes
    return (
        capability is not None
        and capability >= LEAST_CAPABILITY
        and devices == 1
        and dtypes in ({jnp.dtype("bfloat16")}, {jnp.dtype("float16")})
        and not others
        and size % 8 == 0
        and size <= LARGEST_HEAD
        and query.shape[1] % 2 == 0
        and key.shape[1] % 2 == 0
    )


def _dtype(x: jax.Array) -> jnp.dtype:
    return jnp.dtype(x.dtype)


def _size(x: jax.Array) -> int:
    return x.shape[-1]


def fused_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    *,
    implementation: str = "cudnn",
) -> jax.Array:
    """Equation 1; arguments and result as those of `dot_product_attention`.

    A query that may see no key averages all values, as there. "xla" computes the same
    without the kernel, on any device.
    """
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask, implementation=implementation
    )
