"""An epoch of several corpora has each by its weight, and rows hold what is drawn."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.corpus.mixture import Weighted, make_mixture, rank
from tests.corpus.test_plan import like_multi30k, plan_of


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(*[st.integers(1, 30)] * 2), min_size=2, max_size=80),
    cut=st.floats(0.0, 1.0),
    weights=st.tuples(*[st.floats(0.0, 3.0)] * 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_promise_on_any_corpora(lengths, cut, weights, seed):
    source, target = np.array(lengths, np.int32).T
    middle = round(cut * len(source))
    corpora = [
        Weighted(0, middle, weights[0]),
        Weighted(middle, len(source), weights[1]),
    ]
    mixture = make_mixture(source, target, corpora)
    for epoch in range(3):
        found = mixture.members(seed, epoch)
        np.testing.assert_array_equal(found, mixture.members(seed, epoch))
        for room, side in zip(mixture.lengths, (source, target), strict=True):
            assert len(room) == len(found)
            assert (side[found] <= room).all()
        times = Counter(found.tolist())
        for begin, end, weight in corpora:
            counts = [times[pair] for pair in range(begin, end)]
            wanted, is_small = weight * (end - begin), sum(counts) == 1
            if not (is_small and 0 < wanted < 0.5):
                assert sum(counts) == pytest.approx(wanted, abs=0.501)
            assert {*counts} <= {int(weight), int(weight) + 1, round(weight)}


def test_a_small_corpus_of_small_weight_has_a_pair_in_each_epoch():
    lengths = np.array([5] * 40, np.int32)
    mixture = make_mixture(lengths, lengths, [Weighted(0, 40, 0.01)])
    found = [mixture.members(1, epoch) for epoch in range(40)]
    assert {len(each) for each in found} == {1}
    assert len({int(each[0]) for each in found}) > 20


def test_each_pair_is_drawn_with_the_same_chance():
    """Of pairs with few and with many others of their length; 40 % of 25 pairs."""
    source = np.array([3] * 20 + [5, 7, 7, 9, 30], np.int32)
    mixture = make_mixture(source, source, [Weighted(0, 25, 0.4)])
    epochs = [tuple(mixture.members(1, epoch)) for epoch in range(3000)]
    assert {len(set(epoch)) for epoch in epochs} == {10}
    counts = np.bincount(np.concatenate(epochs), minlength=25)
    expected = 0.4 * len(epochs)
    deviation = (expected * 0.6) ** 0.5
    assert np.abs(counts - expected).max() < 4 * deviation
    assert len(set(map(frozenset, epochs))) > 2000  # epochs differ


def test_other_seeds_and_epochs_draw_other_pairs():
    source, target = like_multi30k(2000)
    mixture = make_mixture(source, target, [Weighted(0, 2000, 0.1)])
    drawn = [
        set(mixture.members(seed, epoch)) for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    ]
    shared = [len(drawn[0] & each) for each in drawn[1:]]
    assert all(0 < each < 60 for each in shared)  # 20 on average


@pytest.mark.parametrize("weight", [0.25, 0.37])
def test_epochs_share_as_many_pairs_as_chance(weight):
    """Also if all lengths differ: weight^2 of the pairs."""
    source = np.random.default_rng(0).permutation(2000).astype(np.int32) + 1
    mixture = make_mixture(source, source, [Weighted(0, 2000, weight)])
    epochs = [set(mixture.members(1, epoch).tolist()) for epoch in range(8)]
    shared = [len(a & b) for a, b in itertools.combinations(epochs, 2)]
    expected = 2000 * weight**2
    assert np.mean(shared) == pytest.approx(expected, rel=0.05)
    assert np.abs(np.subtract(shared, expected)).max() < 4 * expected**0.5
    order = np.sort(source)  # short and long pairs alike
    drawn = [np.sort(source[[*epoch]]) for epoch in epochs]
    near = order[np.linspace(0, 1999, len(drawn[0])).astype(int)]
    assert max(np.abs(each - near).max() for each in drawn) < 4 / weight


def test_corpora_of_equal_lengths_draw_different_pairs():
    lengths = np.full(200, 5, np.int32)
    corpora = [Weighted(0, 100, 0.5), Weighted(100, 200, 0.5)]
    found = make_mixture(lengths, lengths, corpora).members(1, 0)
    assert {*found[:50]} != {*(found[50:] - 100)}


def test_ranks_go_up_and_down_by_target_length_in_turn():
    assert rank(np.array([2, 2, 3, 3]), np.array([1, 9, 1, 9])).tolist() == [0, 1, 3, 2]


@pytest.mark.parametrize("layout", ["buckets", "packed"])
def test_slots_cost_little_padding(layout):
    """Half of 10,000 pairs beside 4,000 once and 500 two and a half times."""
    source, target = like_multi30k(14_500)
    corpora = [
        Weighted(0, 10_000, 0.5),
        Weighted(10_000, 14_000, 1.0),
        Weighted(14_000, 14_500, 2.5),
    ]
    plain = plan_of(source[:10_250], target[:10_250], layout=layout)
    mixed = plan_of(
        source, target, layout=layout, mixture=make_mixture(source, target, corpora)
    )
    assert mixed.real_token_share > plain.real_token_share - 0.01
    for epoch in range(2):
        plan, real = mixed.epoch(3, epoch), 0
        assert len(plan.examples) == 5_000 + 4_000 + 1_250
        for index in range(mixed.microbatches_per_epoch):
            (_, *widths), examples, rows = plan.microbatch(index)
            for side, width in zip((source, target), widths, strict=True):
                filled = np.bincount(rows, weights=side[examples])
                assert filled.max() <= width
                real += filled.sum()
        positions = sum(
            mixed.shapes[shape].rows * sum(mixed.shapes[shape][1:])
            for shape in plan.shape_of
        )
        assert real / positions == pytest.approx(mixed.real_token_share, rel=2e-3)
