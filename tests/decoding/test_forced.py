"""Given pairs: their log-probabilities and their attention."""

import jax
import numpy as np
import pytest

from jaxformer.decoding.forced import Attention, TeacherForcing, joined_links, pharaoh
from jaxformer.system.errors import InputError
from jaxformer.tokens import EOS
from tests.decoding.tiny import (
    MODEL,
    SENTENCES,
    Numbers,
    open_translator,
    params_of,
    random_sentences,
    teacher_forced,
)
from tests.models.tiny import model_of

LEARNED = model_of(positions="learned", max_positions=20)
FULL = " ".join(["5"] * 19)  # 20 tokens with EOS; its bucket is 24


@pytest.mark.parametrize(
    ("model", "sources", "targets"),
    [
        (MODEL, SENTENCES, ["", *random_sentences(8, longest=12, seed=1)]),
        (LEARNED, [FULL, "4"], ["6", FULL]),
        (MODEL, [], []),
    ],
)
def test_each_piece_has_its_log_probability_given_those_before(model, sources, targets):
    forcing = TeacherForcing(model, Numbers(), batch_tokens=64)
    found = forcing.score(params_of(model), sources, targets)
    for source, target, each in zip(sources, targets, found, strict=True):
        assert each.pieces == [*target.split(), "</s>"]
        room = model.longest or 32
        rows = teacher_forced(model, params_of(model), source, target, room)
        ids = [*map(int, target.split()), EOS]
        expected = rows[np.arange(len(ids)), ids]
        np.testing.assert_allclose(each.log_probabilities, expected, atol=1e-5)
        assert each.log_probability == pytest.approx(expected.sum(), rel=1e-5)


def test_pieces_are_scored_as_they_are_and_by_parts():
    """Parts that a search has found are independent of each other."""
    forcing = TeacherForcing(MODEL, Numbers(), batch_tokens=64)
    params = params_of(MODEL)
    texts = forcing.score(params, ["4 5", "6", " "], ["7", "8 9", ""])
    assert texts[2] == ([], [])  # blank on both sides
    sources = [["4", "5", "</s>"], ["4", "5", "</s>", "6", "</s>"], []]
    targets = [["7", "</s>"], ["7", "</s>", "8", "9", "</s>"], []]
    found = forcing.score(params, sources, targets)
    assert [each.pieces for each in found] == targets
    both = [value for each in texts for value in each.log_probabilities]
    np.testing.assert_allclose(found[1].log_probabilities, both, rtol=1e-4)
    assert found[0].log_probability == pytest.approx(texts[0].log_probability)
    assert len(forcing.attention(params, sources[1], targets[1])) == 2


class Tagged(Numbers):
    """Its targets begin with a tag, the number 5."""

    target_start = (5,)

    def encode_target(self, sentences):
        return [[5, *ids] for ids in self.encode(sentences)]


def test_a_given_tag_is_not_scored_and_no_word():
    forcing = TeacherForcing(MODEL, Tagged(), batch_tokens=64)
    pair, blank = forcing.score(params_of(MODEL), ["4 5", " "], ["6", ""])
    assert (pair.pieces, blank) == (["5", "6", "</s>"], ([], []))
    assert pair.log_probabilities[0] == 0 > pair.log_probabilities[1]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (["4", "</s>"], ["7"], "7 ... are not this tokeniser's pieces"),
        (["4", "</s>"], ["seven", "</s>"], "seven </s> ... are not this"),
        (["4", "</s>", "5", "</s>"], ["7", "</s>"], "has 2 parts and .* 1"),
        ([], "7", "of pair 1 has 0 parts"),
    ],
)
def test_pieces_of_another_tokeniser_or_hypothesis_are_refused(source, target, message):
    forcing = TeacherForcing(MODEL, Numbers(), batch_tokens=64)
    with pytest.raises(InputError, match=message):
        forcing.score(params_of(MODEL), [source], [target])


@pytest.mark.parametrize("is_limited", [False, True])
def test_a_pair_longer_than_the_positions_is_refused(is_limited):
    """Also where few lengths are used, as in a server."""
    forcing = TeacherForcing(LEARNED, Numbers(), batch_tokens=64)
    if is_limited:
        assert forcing.limit(128)[-1] == 20
    said = "has 21 pieces on a side, .* max_positions=20 of the model; shorten it"
    with pytest.raises(InputError, match=f"pair 2 {said}"):
        forcing.score(None, [FULL, "4"], ["6", f"{FULL} 5"])
    with pytest.raises(InputError, match=f"pair 1 {said}"):
        forcing.attention(None, f"5 {FULL}", "6")


def test_attention_is_that_of_the_pair_without_padding():
    forcing = TeacherForcing(MODEL, Numbers(), batch_tokens=64)
    (maps,) = forcing.attention(params_of(MODEL), "4 5 6 7", "8 9")
    assert maps.source == ["4", "5", "6", "7", "</s>"]
    assert maps.target == ["8", "9", "</s>"]
    for each, t, s in ((maps.encoder, 5, 5), (maps.decoder, 3, 3), (maps.cross, 3, 5)):
        assert each.shape == (1, 2, t, s)
        np.testing.assert_allclose(each.sum(axis=-1), 1.0, rtol=1e-5)
    # Query t depends on target tokens before t.
    (other,) = forcing.attention(params_of(MODEL), "4 5 6 7", "8 10")
    np.testing.assert_array_equal(other.cross[:, :, :2], maps.cross[:, :, :2])
    assert (other.cross[:, :, 2] != maps.cross[:, :, 2]).any()


def test_parameters_that_are_not_numbers_are_refused():
    translator = open_translator()
    translator.params = [jax.tree.map(lambda x: x * np.nan, translator.params[0])]
    for use in (translator.score, lambda *_: translator.attention("4", "5")):
        with pytest.raises(InputError, match="scores are not numbers"):
            use(["4"], ["5"])


# Alignment ------------------------------------------------------------------------

SURE = [[0.9, 0.1, 0.0], [0.0, 0.8, 0.2], [0.0, 0.0, 1.0]]
LOST = [[0.0, 1.0, 0.0]] * 3
# The means of these heads are 0.3, 0.65 and 0.75, 0.2; with a layer of SURE they are
# 0.6, 0.38 and 0.38, 0.5.
HEADS = [[[0.6, 0.4, 0.0]] * 3, [[0.0, 0.9, 0.1], [0.9, 0.0, 0.1], [0.0, 0.0, 1.0]]]


@pytest.mark.parametrize(
    ("cross", "alignment"),
    [
        ([HEADS], "1-0 0-1"),  # of all heads
        ([HEADS, [SURE, SURE]], "0-0 1-1"),  # of all layers
        ([[SURE, SURE], HEADS, [LOST, LOST]], "1-0 1-1"),
        ([[[[0.1, 0.2, 0.7], [0.0, 0.0, 1.0]]]], "1-0"),  # the end has no link
        ([[[[0.5, 0.5]]]], ""),
        ([[[[1.0], [1.0]]]], ""),
    ],
)
def test_alignment_links_each_piece_to_its_largest_mean_weight(cross, alignment):
    cross, none = np.array(cross, np.float32), np.zeros(0)
    *_, t, s = cross.shape
    maps = Attention(["w"] * s, ["w"] * t, none, none, cross)
    assert pharaoh(maps.alignment()) == pharaoh(joined_links([maps])) == alignment
    # A tag has no link, whatever its weight.
    tag = np.full_like(cross[..., :1], 2.0)
    names = [">>de<<", *maps.source], maps.target
    tagged = Attention(*names, none, none, np.concatenate([tag, cross], axis=-1))
    assert tagged.alignment() == [(s + 1, t) for s, t in maps.alignment()]
    # The links of a second part count the pieces of the first one, ends included.
    moved = [(len(maps.source) + s, len(maps.target) + t) for s, t in maps.alignment()]
    assert joined_links([maps, maps]) == [*maps.alignment(), *moved]
