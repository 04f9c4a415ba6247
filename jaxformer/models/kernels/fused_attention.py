"""cuDNN's kernel for equation 1, which never stores the scores [B, H, T, S].

The mesh in context says which devices a program is for, and so whether the kernel is in
it: a machine without a GPU compiles the program that runs on one. Without a mesh it is
this process's only device. Masks reach the
kernel as a bias [B, 1, T, S]. cuDNN has two other forms, and neither is exact here:

- Offsets of segments need a static limit of segments in a row, which batches lack.
  Memory grows with that limit, and the output at padding is undefined.
- Lengths allow one segment in a row; windows hide the right side.
"""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import AbstractDevice, PartitionSpec
from jaxtyping import Array, Float

from jaxformer.models.arrays import ArrayMask, Keys, Queries, Values

AMPERE = (8, 0)  # the first compute capability with the kernel
LARGEST_HEAD = 128  # the limit before Hopper
Device = jax.Device | AbstractDevice


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


def device_of_program() -> Device | None:
    """The kind of device that the program is for; None if that is not known."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty and jax.device_count() == 1:
        return jax.devices()[0]
    return mesh.abstract_device


def fused_attention_fits(query: Queries, key: Keys, value: Values) -> bool:
    """Whether cuDNN's kernel takes the operands.

    A mesh must split rows and heads evenly and nothing else.
    """
    sizes, capability = _sizes_left(), cuda_capability(device_of_program())
    rows, heads = (
        math.prod(sizes[axis] for axis in _splits(name)) for name in ("batch", "heads")
    )
    size = value.shape[-1]
    return (
        capability is not None
        and capability >= AMPERE
        and rows * heads == math.prod(sizes.values())
        and query.shape[0] % rows == query.shape[2] % heads == 0
        and query.dtype in (jnp.bfloat16, jnp.float16)
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] == size
        and size % 8 == 0
        and size <= LARGEST_HEAD
    )


def fused_attention(
    query: Queries, key: Keys, value: Keys, mask: ArrayMask | None
) -> Queries:
    """Equation 1 by cuDNN's kernel, on each device for its own rows and heads.

    A query whose keys are all masked, such as padding, sees all keys: otherwise the
    kernel's gradient for it is NaN (jax 0.11.2, an H100).
    `fused_attention_fits` says whether it can be called.
    """
    length = query.shape[1]
    query, key, value, mask = _even(query, key, value, mask)

    def attend(query, key, value, mask=None):
        if mask is not None:
            mask = mask | ~mask.any(axis=-1, keepdims=True)
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, implementation="cudnn"
        )

    operands = (query, key, value) + (() if mask is None else (mask,))
    axes = _sizes_left().keys()
    if not axes:
        return attend(*operands)[:, :length]
    rows, heads = _splits("batch"), _splits("heads")
    of_heads = PartitionSpec(rows, None, heads)
    of_mask = PartitionSpec(rows if mask is not None and len(mask) > 1 else None)
    specs = (of_heads, of_heads, of_heads, of_mask)[: len(operands)]
    heads_of_rows = jax.shard_map(
        attend, in_specs=specs, out_specs=of_heads, axis_names=set(axes),
        check_vma=False,  # which fails on the gradient inside another `shard_map`
    )  # fmt: skip
    return heads_of_rows(*operands)[:, :length]


def _even(query: Queries, key: Keys, value: Keys, mask: ArrayMask | None) -> tuple:
    """Pad odd lengths by a query, and by a key that is masked.

    The kernel accepts only even lengths with a mask, which it gets as a bias.
    """
    queries, keys = query.shape[1] % 2, key.shape[1] % 2

    def pad(heads: Float[Array, "B L H K"], count: int) -> Float[Array, "B more H K"]:
        return jnp.pad(heads, ((0, 0), (0, count), (0, 0), (0, 0)))

    if keys and mask is None:
        mask = jnp.ones((1, 1, query.shape[1], key.shape[1]), bool)
    if mask is not None:
        mask = jnp.pad(mask, ((0, 0), (0, 0), (0, queries), (0, keys)))
    return pad(query, queries), pad(key, keys), pad(value, keys), mask


def _sizes_left() -> dict[str, int]:
    """The mesh's axes, without those of a `jax.shard_map` around this code."""
    mesh = jax.sharding.get_abstract_mesh()
    return {n: size for n, size in mesh.shape.items() if n not in mesh.manual_axes}


def _splits(name: str) -> tuple[str, ...]:
    """The axes of `_sizes_left` that split a logical axis."""
    (axes,) = nn.logical_to_mesh_axes((name,)) or (None,)
    axes = (axes,) if isinstance(axes, str) else axes or ()
    return tuple(axis for axis in axes if axis in _sizes_left())
