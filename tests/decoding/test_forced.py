"""Teacher forcing: log-probabilities of the targets, whatever the batch."""

import math

import numpy as np

from jaxformer.decoding.forced import Attention, token_log_probabilities


def test_log_probabilities_are_those_of_the_targets_and_zero_on_padding():
    target = np.array([[3, 2, 1], [2, 0, 0]])
    logits = np.log(np.array([0.1, 0.25, 0.25, 0.4]), dtype=np.float32)
    scores = token_log_probabilities(np.broadcast_to(logits, (2, 3, 4)), target)
    log = math.log
    expected = [[log(0.4), log(0.25), log(0.25)], [log(0.25), 0, 0]]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_alignment_is_the_largest_weight_of_the_last_layer_but_one():
    cross = np.zeros((3, 2, 3, 3), np.float32)
    cross[1, :, 0, 1] = cross[1, :, 1, 0] = 0.4
    cross[1, :, :, 2] = 0.6  # the end of the source is never linked
    cross[0] = cross[2] = np.eye(3)
    maps = Attention(list("ab."), list("cd."), cross, cross, cross)
    assert maps.alignment() == [(1, 0), (0, 1)]
    assert maps.pharaoh() == "1-0 0-1"


def test_nothing_is_aligned_with_nothing():
    one = np.ones((1, 1, 1, 1), np.float32)
    assert Attention(["."], ["."], one, one, one).alignment() == []
    long = np.ones((1, 1, 3, 1), np.float32)
    assert Attention(["."], list("ab."), one, one, long).alignment() == []
