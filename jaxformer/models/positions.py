"""Positions besides those of section 3.5: of other programs, and rotary ones."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

from jaxformer.models.arrays import Floats
from jaxformer.models.layers import sinusoidal_positions

Angles = Float32[Array, "*angles"]


def position_table(kind: str, length: int, d_model: int) -> Float32[np.ndarray, "L D"]:
    """Sinusoids of positions 0, 1, ... as a `model.positions` names them.

    "sinusoidal" are those of the paper. tensor2tensor, which Marian follows, divides by
    D/2 - 1 instead of D/2 and has all sines first; fairseq counts from 2.
    """
    if kind == "sinusoidal":
        return sinusoidal_positions(length, d_model)
    first = 2 if kind == "fairseq" else 0
    position = np.arange(first, first + length)[:, None]  # [L, 1]
    half = np.arange(d_model // 2)[None, :]  # [1, D/2]
    angle = position / 10000.0 ** (half / max(d_model // 2 - 1, 1))  # [L, D/2]
    return np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)


def rotations(
    positions: Int[Array, "*L"], length: int, size: int
) -> tuple[Angles, Angles]:
    """Sines and cosines of the angles by which `rotate` turns heads of even `size` K.

    Positions are below `length`. The angles p / 10000^(2i/K) are those of the
    sinusoids (Su et al. 2021, section 3.2.2).
    """
    table = jnp.asarray(sinusoidal_positions(length, size)).reshape(length, -1, 2)
    rows = table[positions]
    return rows[..., 0], rows[..., 1]


def rotate(x: Floats, sines: Angles, cosines: Angles, *, axis: int) -> Floats:
    """Turn pairs of numbers of queries or keys by angles (Su et al. 2021, equation 34).

    Along `axis`, of size K, number i and number i + K / 2 are a pair. The paper pairs
    neighbours; learned projections make the order arbitrary, and halves need no
    transposition. Sines and cosines broadcast to halves of x; returns x's dtype.
    """
    first, second = jnp.split(x, 2, axis)
    turned = first * cosines - second * sines, first * sines + second * cosines
    return jnp.concatenate(turned, axis).astype(x.dtype)
