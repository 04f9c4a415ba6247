"""When equation 1 runs as cuDNN's kernel, which never stores the scores [B, H, T, S].

The rule is stricter than cuDNN's own. `model.fused_attention` allows the kernel, and
`attention.py` calls it.
"""

import jax
import jax.numpy as jnp


def cuda_capability() -> tuple[int, int] | None:
    """The compute capability of this process's first device; None without CUDA."""
    device = jax.local_devices()[0]
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:
        return None
    major, minor = device.compute_capability.split(".")
    return int(major), int(minor)


def fused_attention_fits(query: jax.Array, key: jax.Array, value: jax.Array) -> bool:
    """Whether the kernel takes query [B, T, H, K], key [B, S, H, K] and value.

    Lengths are even because a mask reaches the kernel as a bias that has a gradient.
    On several devices all operands would need the same sharding.
    """
    size, capability = value.shape[-1], cuda_capability()
    return (
        capability is not None
        and capability >= (8, 0)  # Ampere
        and jax.device_count() == 1
        and query.dtype in (jnp.bfloat16, jnp.float16)
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] == size
        and size % 8 == 0
        and size <= 128  # the limit before Hopper
        and query.shape[1] % 2 == key.shape[1] % 2 == 0
    )
