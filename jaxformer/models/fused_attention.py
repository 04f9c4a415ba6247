"""cuDNN's kernel for equation 1, which never stores the scores [B, H, T, S].

The mesh in context says which devices a program is for, and so whether the kernel is in
it: a machine without a GPU compiles the program that runs on one. Without a mesh it is
this process's only device. Masks reach the
kernel as a bias [B, 1, T, S]. cuDNN has two other forms, and neither is exact here:

- Offsets of segments need a static limit of segments in a row, which batches lack.
  Memory grows with that limit, and the output at padding is undefined.
- Lengths allow one segment in a row; windows hide the right side.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import AbstractDevice, PartitionSpec

from jaxformer.models.shards import shards_of

AMPERE = (8, 0)  # the first compute capability with the kernel
LARGEST_HEAD = 128  # the limit before Hopper
Device = jax.Device | AbstractDevice
AXES = ("batch", "length", "heads", "head_size")


def cuda_capability(device: Device | None) -> tuple[int, int] | None:
    """The compute capability of devices of one kind; None without CUDA.

    Devices that this process lacks, for which it only compiles, count as Ampere.
    """
    if device is None or device.platform != "gpu" or "AMD" in device.device_kind:
        return None
    for local in jax.local_devices():
        if local.device_kind == device.device_kind:
            return tuple(map(int, local.compute_capability.split(".")))
    return AMPERE


def fused_attention_fits(query: jax.Array, key: jax.Array, value: jax.Array) -> bool:
    """Whether cuDNN's kernel takes query [B, T, H, K], key [B, S, H, K] and value.

    A mesh must split rows and heads evenly and nothing else. Lengths are even because a
    mask reaches the kernel as a bias that has a gradient.
    """
    mesh = jax.sharding.get_abstract_mesh()
    device = mesh.abstract_device
    if mesh.empty and jax.device_count() == 1:
        (device,) = jax.devices()
    capability = cuda_capability(device)
    rows, heads = shards_of("batch"), shards_of("heads")
    size = value.shape[-1]
    return (
        capability is not None
        and capability >= AMPERE
        and rows * heads == max(mesh.size, 1)
        and query.shape[0] % rows == query.shape[2] % heads == 0
        and query.dtype in (jnp.bfloat16, jnp.float16)
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] == size
        and size % 8 == 0
        and size <= LARGEST_HEAD
        and query.shape[1] % 2 == key.shape[1] % 2 == 0
    )


def fused_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
) -> jax.Array:
    """Equation 1 by cuDNN's kernel, on each device for its own rows and heads.

    query [B, T, H, K], key and value [B, S, H, K], mask bool [B or 1, 1, T, S]; returns
    [B, T, H, K]. `fused_attention_fits` says whether it can be called.
    """

    def attend(query, key, value, mask=None):
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, implementation="cudnn"
        )

    operands = (query, key, value) + (() if mask is None else (mask,))
    if jax.sharding.get_abstract_mesh().empty:
        return attend(*operands)
    split = nn.logical_to_mesh_axes(AXES)
    of_mask = PartitionSpec(split[0] if mask is not None and len(mask) > 1 else None)
    specs = (split, split, split, of_mask)[: len(operands)]
    return jax.shard_map(attend, in_specs=specs, out_specs=split)(*operands)
