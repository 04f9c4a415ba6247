"""What a row means, on literal rows: padded (one pair) and packed (several)."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import (
    BOS,
    EOS,
    PAD,
    UNK,
    positions_in_segments,
    shift_right,
    starts_of_segments,
)

PADDED = [1, 1, 1, 0, 0]
PACKED = [1, 1, 2, 3, 3]
PACKED_AND_PADDED = [1, 2, 2, 2, 0]
EMPTY = [0, 0, 0, 0, 0]  # fills up a batch
SEGMENTS = jnp.array([PADDED, PACKED, PACKED_AND_PADDED, EMPTY])


def test_reserved_ids_are_those_of_the_tokenizer_and_padding_is_zero():
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)


def test_a_segment_starts_wherever_the_number_changes():
    np.testing.assert_array_equal(
        starts_of_segments(SEGMENTS),
        [
            [1, 0, 0, 1, 0],
            [1, 0, 1, 1, 0],
            [1, 1, 0, 0, 1],
            [1, 0, 0, 0, 0],
        ],
    )


def test_positions_restart_with_each_pair_of_a_row():
    positions = positions_in_segments(SEGMENTS)
    assert positions.dtype == jnp.int32
    np.testing.assert_array_equal(
        positions,
        [
            [0, 1, 2, 0, 1],
            [0, 1, 0, 0, 1],
            [0, 0, 1, 2, 0],
            [0, 1, 2, 3, 4],
        ],
    )


def test_the_decoder_s_input_is_the_target_one_later_with_bos_before_every_pair():
    target = jnp.array(
        [
            [7, 8, EOS, PAD, PAD],
            [7, EOS, EOS, 9, EOS],  # the second pair's target is empty
            [EOS, 7, 8, EOS, PAD],
        ]
    )
    shifted = shift_right(target, SEGMENTS[:3])
    real = [
        [BOS, 7, 8],
        [BOS, 7, BOS, BOS, 9],
        [BOS, BOS, 7, 8],
    ]
    for row, expected in zip(shifted, real, strict=True):
        np.testing.assert_array_equal(row[: len(expected)], expected)


def test_shifting_keeps_shape_and_type_at_the_shortest_length():
    row = jnp.array([[EOS]], jnp.int32)
    shifted = shift_right(row, jnp.array([[1]], jnp.int32))
    assert (shifted.shape, shifted.dtype) == (row.shape, row.dtype)
    assert shifted.item() == BOS


@pytest.mark.parametrize("segments", [PADDED, PACKED, PACKED_AND_PADDED])
def test_no_pair_s_input_holds_a_token_of_another_pair(segments):
    segments = np.array([segments])
    target = 10 * segments + 5  # a token tells its pair
    shifted = np.asarray(shift_right(jnp.array(target), jnp.array(segments)))
    foreign = (shifted != BOS) & (shifted // 10 != segments)
    assert not foreign[segments != 0].any()
