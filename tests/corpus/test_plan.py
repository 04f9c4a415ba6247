"""Tests of plans: every pair once, few shapes, budgets, little padding, fixed order."""

import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.corpus.mixture import shuffle_within
from jaxformer.corpus.plan import Shape, make_plan
from jaxformer.system.errors import InputError

LAYOUTS = ("buckets", "packed")


def like_multi30k(pairs: int = 29_000) -> tuple[np.ndarray, np.ndarray]:
    """Lengths with mean, deviation and quantiles of Multi30k en-de in 10,000 pieces."""
    rng = np.random.default_rng(0)
    source = np.clip(np.exp(rng.normal(np.log(14.4), 0.28, pairs)), 6, 50)
    factor = np.exp(rng.normal(0.015, 0.16, pairs))
    target = np.clip(source * factor, 5, 52)
    return source.round().astype(np.int32), target.round().astype(np.int32)


def plan_of(source, target, mixture=None, **changes):
    values = {
        "layout": "buckets", "row_length": 128, "max_shapes": 12, "row_multiple": 1,
        "tokens_per_microbatch": 4096, "tokens_per_update": 25_000,
    }  # fmt: skip
    batching = SimpleNamespace(**values | changes)
    sides = np.asarray(source), np.asarray(target)
    return make_plan(*sides, batching, batching, mixture)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(*[st.integers(1, 40)] * 2), min_size=1, max_size=200),
    changes=st.fixed_dictionaries(
        {
            "layout": st.sampled_from(LAYOUTS),
            "max_shapes": st.integers(1, 12),
            "row_multiple": st.sampled_from([1, 2, 8]),
            "tokens_per_microbatch": st.integers(320, 1000),
        }
    ),
    seed=st.integers(0, 2**32),
)
def test_every_promise_on_any_lengths(lengths, changes, seed):
    lengths = np.array(lengths, np.int32).T
    plan = plan_of(*lengths, row_length=40, **changes)
    is_packed = changes["layout"] == "packed"
    assert len(plan.shapes) <= (1 if is_packed else changes["max_shapes"])
    for epoch in (plan.epoch(seed, 0), plan.epoch(seed, 1)):
        np.testing.assert_array_equal(np.sort(epoch.examples), range(lengths.shape[1]))
        assert epoch.examples.dtype == epoch.rows.dtype == np.int32  # 8 bytes a pair
        assert epoch.starts[[0, -1]].tolist() == [0, lengths.shape[1]]
        padded_tokens = 0
        for index in range(plan.microbatches_per_epoch):
            (height, *sides), examples, rows = epoch.microbatch(index)
            assert height * max(sides) <= changes["tokens_per_microbatch"]
            assert height % changes["row_multiple"] == 0
            assert len(examples) > 0
            assert (np.diff(rows) >= 0).all()
            assert rows.max() < height
            for side, of_side in zip(sides, lengths, strict=True):
                assert np.bincount(rows, of_side[examples]).max() <= side
            padded_tokens += height * sum(sides)
        assert plan.real_token_share == pytest.approx(lengths.sum() / padded_tokens)


@pytest.mark.parametrize("budget", [2048, 4096, 8192])
@pytest.mark.parametrize(("layout", "share"), [("buckets", 0.85), ("packed", 0.94)])
def test_little_padding_on_lengths_like_multi30k(layout, share, budget):
    plan = plan_of(*like_multi30k(), layout=layout, tokens_per_microbatch=budget)
    assert plan.real_token_share >= share


def test_a_longer_language_gets_longer_sides():
    source, target = like_multi30k(5000)
    for sides in ((source, 3 * target), (3 * source, target)):
        assert plan_of(*sides).real_token_share > 0.9


@pytest.mark.parametrize("layout", LAYOUTS)
def test_order_is_a_function_of_seed_and_epoch(layout):
    plan, again = (plan_of(*like_multi30k(3000), layout=layout) for _ in range(2))
    first, same = plan.epoch(seed=7, epoch=3), again.epoch(seed=7, epoch=3)
    for field in ("shape_of", "starts", "examples", "rows"):
        np.testing.assert_array_equal(getattr(first, field), getattr(same, field))
    for seed, epoch in ((7, 4), (8, 3), (3, 7)):
        other = plan.epoch(seed, epoch)
        assert np.mean(other.examples != first.examples) > 0.95
        if layout == "buckets":  # another order of microbatches
            assert (other.shape_of != first.shape_of).any()
        else:  # and other rows in a microbatch
            assert sorted(np.diff(other.starts)) != sorted(np.diff(first.starts))


def test_neighbours_in_a_packed_row_change_with_the_epoch():
    plan = plan_of(*like_multi30k(3000), layout="packed")
    neighbours = []
    for epoch in (plan.epoch(0, 0), plan.epoch(0, 1)):
        pairs = itertools.pairwise(epoch.examples.tolist())
        neighbours.append(set(itertools.compress(pairs, np.diff(epoch.rows) == 0)))
    assert len(set.intersection(*neighbours)) < 0.3 * len(neighbours[0])


def test_shuffle_is_uniform_within_classes_and_never_across():
    classes = np.array([1, 0, 1, 1, 0], np.uint8)
    seen = Counter(
        tuple(shuffle_within(classes, np.random.PCG64(seed))) for seed in range(1200)
    )
    orders = map(itertools.permutations, ([1, 4], [0, 2, 3]))
    assert set(seen) == {zeros + ones for zeros, ones in itertools.product(*orders)}
    assert all(60 < times < 140 for times in seen.values())  # 100, deviation 9.6


def test_updates_share_an_epoch_evenly():
    plan = plan_of(*like_multi30k(), tokens_per_update=6 * 4096)
    parts = [plan.microbatches_of(u) for u in range(plan.updates_per_epoch)]
    assert list(itertools.chain(*parts)) == list(range(plan.microbatches_per_epoch))
    assert {len(part) for part in parts} <= {5, 6}
    small = plan_of(*like_multi30k(100), tokens_per_update=100)
    # A small corpus is not cut into many microbatches.
    assert small.updates_per_epoch == small.microbatches_per_epoch == 2
    nearest = plan_of([5], [5], tokens_per_update=5.6 * 4096)
    assert nearest.microbatches_per_update == 6


def test_a_later_plan_begins_an_epoch_at_its_update():
    first, second = (
        plan_of(*like_multi30k(pairs), tokens_per_update=4096) for pairs in (1000, 2000)
    )
    plan, size = replace(first, later=((7, second),)), second.updates_per_epoch
    assert plan.locate(6) == (plan, *divmod(6, first.updates_per_epoch))
    assert plan.locate(7) == (second, 7, 0)
    assert plan.locate(7 + size + 2) == (second, 8, 2)
    expected = 7 / first.updates_per_epoch + 3 / size
    assert plan.epochs(10) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("source", "target", "layout", "shapes"),
    [
        # A shape for each of two lengths.
        ([(5, 800), (10, 400)], [(5, 800), (10, 400)],
         "buckets", [(400, 5, 5), (200, 10, 10)]),
        # 11 microbatches of 182 rows each, and no nearly empty one.
        ([(10, 2002)], [(10, 2002)], "buckets", [(182, 10, 10)]),
        # A long side beside a short one in a row.
        ([(60, 32), (4, 32)], [(4, 32), (60, 32)], "packed", [(16, 64, 64)]),
    ],
)  # fmt: skip
def test_no_padding_where_none_is_needed(source, target, layout, shapes):
    """Source and target are (length, times)."""
    lengths = (np.repeat(*zip(*side, strict=True)) for side in (source, target))
    plan = plan_of(*lengths, layout=layout, row_length=64, tokens_per_microbatch=2000)
    assert plan.shapes == tuple(Shape(*shape) for shape in shapes)
    assert plan.real_token_share == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "packed", "row_length": 64}, "row_length=64 does not hold .* 70"),
        ({"tokens_per_microbatch": 500, "row_multiple": 8}, "=500 .* 8 .* 70 tokens"),
    ],
)
def test_values_that_cannot_work_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        plan_of([5, 70], [5, 7], **changes)
