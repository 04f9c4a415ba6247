"""The meaning of a row: padded rows hold one pair, packed rows hold several."""

import jax.numpy as jnp
import numpy as np

from jaxformer import batch
from jaxformer.tokens import BOS, EOS, PAD, UNK

# Padded; packed; packed and padded; empty, which fills up a batch.
SEGMENTS = jnp.array(
    [[1, 1, 1, 0, 0], [1, 1, 2, 3, 3], [1, 2, 2, 2, 0], [0, 0, 0, 0, 0]]
)


def test_a_segment_starts_wherever_the_number_changes():
    np.testing.assert_array_equal(
        batch.starts_of_segments(SEGMENTS),
        [[1, 0, 0, 1, 0], [1, 0, 1, 1, 0], [1, 1, 0, 0, 1], [1, 0, 0, 0, 0]],
    )


def test_positions_restart_with_each_pair_of_a_row():
    positions = batch.positions_in_segments(SEGMENTS)
    assert positions.dtype == jnp.int32
    np.testing.assert_array_equal(
        positions, [[0, 1, 2, 0, 1], [0, 1, 0, 0, 1], [0, 0, 1, 2, 0], [0, 1, 2, 3, 4]]
    )


def test_the_decoder_input_is_the_target_one_later_with_bos_before_every_pair():
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)  # the tokenizer's
    # The second target of the second row is empty.
    target = [[7, 8, EOS, PAD, PAD], [7, EOS, EOS, 9, EOS], [EOS, 7, 8, EOS, PAD]]
    shifted = batch.shift_right(jnp.array(target), SEGMENTS[:3])
    assert (shifted.shape, shifted.dtype) == ((3, 5), jnp.int32)
    real = [[BOS, 7, 8], [BOS, 7, BOS, BOS, 9], [BOS, BOS, 7, 8]]
    for row, expected in zip(shifted, real, strict=True):
        np.testing.assert_array_equal(row[: len(expected)], expected)
    shortest = batch.shift_right(jnp.array([[EOS]]), jnp.array([[1]]))
    np.testing.assert_array_equal(shortest, [[BOS]])
