"""What a decoding step derives from clock, ages and ancestors of its ring buffer.

P counts the slots that are cached, H heads, K and U their sizes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32

from jaxformer.models.arrays import Columns
from jaxformer.models.positions import rotate, rotations
from jaxformer.models.sequence_model import Newest
from jaxformer.models.transformer.cached_attention import Attended


def steps_ago(newest: Newest, slots: int) -> Int32[Array, " {slots}"]:
    """Count the steps since each slot was written, 0 in this one."""
    return (newest.clock - jnp.arange(slots)) % slots


def self_mask(newest: Newest, slots: int) -> Bool[Array, "B W {slots}*W"]:
    """Mask the slots that each hypothesis may see."""
    _, ages, clock, ancestors = newest
    batch, width, length = ancestors.shape
    ago = steps_ago(newest, slots)
    if slots != length:
        ancestors = jnp.take(ancestors, (clock - ago) % length, axis=2)
    is_past = ago[None, :] <= ages[:, None]  # [B, P]
    writers = jnp.arange(width)[None, None, None]
    is_own = ancestors[..., None] == writers  # [B, W, P, W]
    mask = is_own & is_past[:, None, :, None]
    return mask.reshape(batch, width, slots * width)


def rotate_newest(x: Columns, newest: Newest, size: int) -> Columns:
    """Rotate queries or keys of head size K = `size` by the ages of their tokens.

    Ages of cached keys do not change, so their rotations stay valid.
    """
    batch, width, length = newest.ancestors.shape
    turns = rotations(newest.ages, length, size)  # [B, K / 2]
    turns = [each.T[None, :, :, None] for each in turns]
    heads = x.reshape(-1, size, batch, width)
    return rotate(heads, *turns, axis=1).reshape(x.shape)


def vectors_of_slots(
    tables: tuple[Float[Array, "distances K"], Float[Array, "distances U"]],
    newest: Newest,
    slots: int,
) -> Attended:
    """Choose the vectors of `relative_attention` by the age of each of P slots."""
    reach = len(tables[0]) // 2
    rows = reach - jnp.minimum(steps_ago(newest, slots), reach)
    return Attended(*(table[rows] for table in tables))


def state_before(
    state: Float32[Array, "B W D"], newest: Newest
) -> Float32[Array, "B W D"]:
    """Return the states of the parents, and zeros where sentences begin."""
    _, ages, clock, ancestors = newest
    parents = ancestors[:, :, (clock - 1) % ancestors.shape[2]]
    state = jnp.take_along_axis(state, parents[..., None], axis=1)
    return jnp.where((ages == 0)[:, None, None], 0.0, state)
