"""Given pairs: their log-probabilities and their attention."""

import numpy as np
import pytest

from jaxformer.batch import EOS
from jaxformer.decoding.forced import Attention, TeacherForcing
from tests.decoding.tiny import (
    MODEL,
    Numbers,
    params_of,
    random_sentences,
    teacher_forced,
)
from tests.models.tiny import model_of


def make_forcing(model=MODEL, *, batch_tokens: int = 64) -> TeacherForcing:
    forcing = TeacherForcing(model, Numbers(), batch_tokens=batch_tokens)
    forcing.params = params_of(model)
    return forcing


@pytest.fixture(scope="module")
def forcing() -> TeacherForcing:
    return make_forcing()


def test_each_piece_has_its_log_probability_given_those_before(forcing):
    sources = random_sentences(9, longest=18)
    targets = random_sentences(9, longest=12, seed=1)[::-1]
    targets[3] = ""  # the end alone
    found = forcing.score(sources, targets)
    assert len(found) == 9
    for source, target, each in zip(sources, targets, found, strict=True):
        assert each.pieces == [*target.split(), "</s>"]
        rows = teacher_forced(MODEL, params_of(MODEL), source, target)
        ids = [*map(int, target.split()), EOS]
        expected = rows[np.arange(len(ids)), ids]
        np.testing.assert_allclose(each.log_probabilities, expected, atol=1e-5)
        assert each.log_probability == pytest.approx(expected.sum(), rel=1e-5)


def test_no_pairs_have_no_scores(forcing):
    assert forcing.score([], []) == []


def test_attention_is_that_of_the_pair_without_padding(forcing):
    source, target = "4 5 6 7", "8 9"
    maps = forcing.attention(source, target)
    assert maps.source == ["4", "5", "6", "7", "</s>"]
    assert maps.target == ["8", "9", "</s>"]
    assert maps.encoder.shape == (1, 2, 5, 5)
    assert maps.decoder.shape == (1, 2, 3, 3)
    assert maps.cross.shape == (1, 2, 3, 5)
    for each in (maps.encoder, maps.decoder, maps.cross):
        np.testing.assert_allclose(each.sum(axis=-1), 1.0, rtol=1e-5)
    assert (maps.decoder * np.triu(np.ones((3, 3)), k=1) == 0).all()
    # The first query of the decoder knows the source alone, the last both words.
    other = forcing.attention(source, "8 10")
    np.testing.assert_array_equal(other.cross[:, :, :2], maps.cross[:, :, :2])
    assert (other.cross[:, :, 2] != maps.cross[:, :, 2]).any()


def test_positions_that_are_learned_hold_all_that_they_can():
    """Padding to a bucket of 24 would ask for more than the 20 there are."""
    model = model_of(positions="learned", max_positions=20)
    forcing = make_forcing(model)
    long = " ".join(["5"] * 19)
    found = forcing.score([long, "4"], ["6", long])
    for each, pair in zip(found, [(long, "6"), ("4", long)], strict=True):
        rows = teacher_forced(model, params_of(model), *pair, room=20)
        ids = [*map(int, pair[1].split()), EOS]
        expected = rows[np.arange(len(ids)), ids]
        np.testing.assert_allclose(each.log_probabilities, expected, atol=1e-5)


# Alignment ------------------------------------------------------------------------


def attention_with(cross) -> Attention:
    """Maps [N, H, T, S] of attention across, and nothing else."""
    cross = np.array(cross, np.float32)
    *_, t, s = cross.shape
    nothing = np.zeros(0)
    return Attention(["w"] * s, ["w"] * t, nothing, nothing, cross)


def test_an_alignment_is_where_the_last_layer_but_one_looks_most():
    sure = [[0.9, 0.1, 0.0], [0.0, 0.8, 0.2], [0.0, 0.0, 1.0]]
    lost = [[0.0, 1.0, 0.0]] * 3
    heads = [[[0.6, 0.4, 0.0]] * 3, [[0.0, 0.9, 0.1], [0.9, 0.0, 0.1], [0.0, 0.0, 1.0]]]
    maps = attention_with([[lost, lost], heads, [sure, sure]])
    # The means are 0.3, 0.65 and 0.75, 0.2; the end of both sides is left out.
    assert maps.alignment() == [(1, 0), (0, 1)]
    assert maps.pharaoh() == "1-0 0-1"
    assert attention_with([[sure, sure]]).alignment() == [(0, 0), (1, 1)]


def test_a_piece_is_never_linked_to_the_end():
    maps = attention_with([[[[0.1, 0.2, 0.7], [0.0, 0.0, 1.0]]]])
    assert maps.pharaoh() == "1-0"


def test_nothing_is_linked_where_a_side_is_empty():
    assert attention_with([[[[0.5, 0.5]]]]).alignment() == []
    assert attention_with([[[[1.0], [1.0]]]]).pharaoh() == ""
