"""Dropout, whose gradient computes the mask again where that is faster."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from jaxformer.models.arrays import Floats, Integer
from jaxformer.models.kernels.barrier import pass_ends

Seeds = tuple[UInt32[Array, ""], UInt32[Array, ""]]


def random_bits(
    seeds: Seeds, shape: tuple[int, ...], first_row: Integer | int = 0
) -> UInt32[Array, "..."]:
    """Hash each element's index with two seeds.

    Two rounds of the murmur3 finaliser, which XLA fuses into the loop that uses them,
    so no array of bits is stored. Element i depends on (seeds, i) alone: the bits are
    the same on every mesh.
    """
    bits, stride = jnp.zeros(shape, jnp.uint32), 1  # each element's index
    for axis in reversed(range(len(shape))):
        index = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        if axis == 0:
            index += jnp.uint32(first_row)
        bits += index * np.uint32(stride)
        stride = stride * shape[axis] % 2**32
    for seed in seeds:
        bits = (bits ^ seed) * np.uint32(0x85EBCA6B)
        bits = (bits ^ (bits >> 15)) * np.uint32(0xC2B2AE35)
        bits = bits ^ (bits >> 16)
    return bits


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def drop(x: Floats, seeds: Seeds, first_row: Integer | int, rate: float) -> Floats:
    """Zero each element with probability `rate`, and scale the others up.

    The first row of x is the row `first_row` of an array that devices share.
    """
    keep = random_bits(seeds, x.shape, first_row) >= np.uint32(rate * 2**32)
    scaled = x * jnp.float32(1.0 / (1.0 - rate))  # which bfloat16 would round
    return jnp.where(keep, scaled.astype(x.dtype), jnp.zeros_like(x))


def _backward(rate: float, kept: tuple, gradient: Floats) -> tuple:
    # XLA would keep the mask, a byte for each element. A GPU computes it again while it
    # waits for memory.
    seeds, first_row = kept
    return drop(gradient, pass_ends(*seeds), first_row, rate), None, None


drop.defvjp(lambda x, *rest: (drop(x, *rest), rest[:2]), _backward)
