"""A plan: every pair once, few shapes, budgets kept, little padding, fixed position."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.layout import _cheapest_cuts, concatenated_ranges
from jaxformer.data.plan import (
    Shape,
    _shuffle_within,
    make_plan,
)
from jaxformer.errors import InputError

LAYOUTS = ("buckets", "packed")


def like_multi30k(pairs: int = 29_000) -> tuple[np.ndarray, np.ndarray]:
    """Lengths with the moments of Multi30k en-de in 10,000 pieces.

    Source log-normal around 14.4 (mean 15.0, deviation 4.3, 99th percentile 28), target
    the source times a log-normal factor (mean 15.4, mean difference 1.9 places).
    """
    rng = np.random.default_rng(0)
    source = np.clip(np.exp(rng.normal(np.log(14.4), 0.28, pairs)), 6, 50)
    factor = np.exp(rng.normal(0.015, 0.16, pairs))
    target = np.clip(source * factor, 5, 52)
    return source.round().astype(np.int32), target.round().astype(np.int32)


def plan_of(source, target, **changes):
    """A plan with the values that most tests share."""
    values = {
        "layout": "buckets",
        "row_length": 128,
        "max_shapes": 12,
        "tokens_per_microbatch": 4096,
        "tokens_per_update": 25_000,
        "row_multiple": 1,
    }
    return make_plan(np.asarray(source), np.asarray(target), **(values | changes))


def assert_plan_holds(plan, epoch, source, target, budget, multiple):
    """Every promise about one epoch, checked microbatch by microbatch."""
    np.testing.assert_array_equal(np.sort(epoch.examples), np.arange(len(source)))
    assert epoch.starts[0] == 0
    assert epoch.starts[-1] == len(source)
    places = 0
    for index in range(plan.microbatches_per_epoch):
        shape, examples, rows = epoch.microbatch(index)
        assert shape.rows * max(shape.source_length, shape.target_length) <= budget
        assert shape.rows % multiple == 0
        assert len(examples) > 0
        assert (np.diff(rows) >= 0).all()
        assert rows.max() < shape.rows
        assert np.bincount(rows, source[examples]).max() <= shape.source_length
        assert np.bincount(rows, target[examples]).max() <= shape.target_length
        places += shape.rows * (shape.source_length + shape.target_length)
    assert plan.real_token_share == pytest.approx((source + target).sum() / places)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200
    ),
    layout=st.sampled_from(LAYOUTS),
    max_shapes=st.integers(1, 12),
    multiple=st.sampled_from([1, 2, 8]),
    budget=st.integers(320, 1000),
    seed=st.integers(0, 2**32),
)
def test_every_promise_on_any_lengths(
    lengths, layout, max_shapes, multiple, budget, seed
):
    source, target = np.array(lengths, np.int32).T
    plan = plan_of(
        source,
        target,
        layout=layout,
        row_length=40,
        max_shapes=max_shapes,
        tokens_per_microbatch=budget,
        row_multiple=multiple,
    )
    assert len(plan.shapes) <= (1 if layout == "packed" else max_shapes)
    for number in (0, 1):
        epoch = plan.epoch(seed, number)
        assert_plan_holds(plan, epoch, source, target, budget, multiple)


@pytest.mark.parametrize("budget", [2048, 4096, 8192])
@pytest.mark.parametrize(("layout", "share"), [("buckets", 0.85), ("packed", 0.94)])
def test_little_padding_on_lengths_like_multi30k(layout, share, budget):
    source, target = like_multi30k()
    plan = plan_of(source, target, layout=layout, tokens_per_microbatch=budget)
    assert plan.real_token_share >= share
    assert len(plan.shapes) <= 12
    assert_plan_holds(plan, plan.epoch(1, 0), source, target, budget, 1)


def test_a_longer_language_gets_longer_sides():
    source, _ = like_multi30k(5000)
    plan = plan_of(source, 3 * source)
    for shape in plan.shapes:
        assert shape.target_length == 3 * shape.source_length
    assert plan.real_token_share >= 0.85


@pytest.mark.parametrize("layout", LAYOUTS)
def test_order_is_a_function_of_seed_and_epoch(layout):
    plan, again = (plan_of(*like_multi30k(3000), layout=layout) for _ in range(2))
    first = plan.epoch(seed=7, epoch=3)
    same = again.epoch(seed=7, epoch=3)
    for field in ("shape_of", "starts", "examples", "rows"):
        np.testing.assert_array_equal(getattr(first, field), getattr(same, field))
    for seed, epoch in ((7, 4), (8, 3), (3, 7)):
        other = plan.epoch(seed, epoch)
        assert len(other.starts) == len(first.starts)
        moved = np.mean(other.examples != first.examples)
        assert moved > 0.95


def test_company_in_a_packed_row_changes_with_the_epoch():
    plan = plan_of(*like_multi30k(3000), layout="packed")

    def neighbours(epoch):
        same_row = np.diff(epoch.rows) == 0
        pairs = zip(epoch.examples[:-1], epoch.examples[1:], strict=True)
        return {
            pair for pair, together in zip(pairs, same_row, strict=True) if together
        }

    first, second = (neighbours(plan.epoch(0, epoch)) for epoch in (0, 1))
    assert len(first & second) < 0.3 * len(first)


def test_shuffle_is_uniform_within_classes_and_never_across():
    seen = {}
    for seed in range(1200):
        order = _shuffle_within(
            np.array([1, 0, 1, 1, 0], np.uint8), np.random.PCG64(seed)
        )
        seen[tuple(order)] = seen.get(tuple(order), 0) + 1
    expected = {
        (*zeros, *ones)
        for zeros in itertools.permutations([1, 4])
        for ones in itertools.permutations([0, 2, 3])
    }
    assert set(seen) == expected
    assert min(seen.values()) > 60  # 100 on average, deviation 9.6
    assert max(seen.values()) < 140


def test_updates_share_an_epoch_evenly():
    plan = plan_of(*like_multi30k(), tokens_per_update=6 * 4096)
    parts = [plan.microbatches_of(u) for u in range(plan.updates_per_epoch)]
    assert list(itertools.chain(*parts)) == list(range(plan.microbatches_per_epoch))
    assert {len(part) for part in parts} <= {5, 6}


def test_an_update_is_never_less_than_a_microbatch():
    plan = plan_of(*like_multi30k(3000), tokens_per_update=100)
    assert plan.updates_per_epoch == plan.microbatches_per_epoch


def test_two_lengths_need_two_shapes_and_no_padding():
    lengths = np.repeat([5, 10], [800, 400])
    plan = plan_of(lengths, lengths, tokens_per_microbatch=2000)
    assert plan.shapes == (Shape(400, 5, 5), Shape(200, 10, 10))
    assert plan.microbatches_per_epoch == 4
    assert plan.real_token_share == 1.0


def test_the_cheapest_lengths_are_merged():
    lengths = np.repeat([10, 11, 30], [1000, 100, 500])
    plan = plan_of(lengths, lengths, max_shapes=2, tokens_per_microbatch=2200)
    assert [shape.source_length for shape in plan.shapes] == [11, 30]


def test_the_rest_of_a_bucket_costs_no_padding():
    lengths = np.full(1001, 10)  # 100 rows fit: 11 microbatches of 91, not 10 and a bit
    plan = plan_of(lengths, lengths, tokens_per_microbatch=1000)
    assert plan.shapes == (Shape(91, 10, 10),)
    assert plan.real_token_share == 1.0


def test_opposite_pairs_are_packed_together():
    source, target = np.repeat([60, 4], 32), np.repeat([4, 60], 32)
    plan = plan_of(
        source, target, layout="packed", row_length=64, tokens_per_microbatch=512
    )
    assert plan.shapes == (Shape(8, 64, 64),)
    assert plan.real_token_share == 1.0


def test_cuts_are_the_cheapest_of_all():
    rng = np.random.default_rng(0)
    size = 7
    for pieces in (1, 2, 3, 6):
        cost = np.triu(rng.uniform(1, 9, (size, size)), 1)
        cost[np.tril_indices(size, -1)] = np.inf

        def total(cuts, cost=cost):
            return sum(cost[a, b] for a, b in itertools.pairwise((0, *cuts)))

        choices = (
            (*inner, size - 1)
            for count in range(pieces)
            for inner in itertools.combinations(range(1, size - 1), count)
        )
        best = min(map(total, choices))
        assert total(_cheapest_cuts(cost, pieces)) == pytest.approx(best)


def test_concatenated_ranges():
    ranges = concatenated_ranges(np.array([5, 0, 9, 2]), np.array([2, 0, 1, 3]))
    assert ranges.tolist() == [5, 6, 9, 2, 3, 4]


def test_values_that_cannot_work_are_named():
    source, target = np.array([5, 70]), np.array([5, 7])
    with pytest.raises(InputError, match="row_length=64 does not hold a pair of 70"):
        plan_of(source, target, layout="packed", row_length=64)
    with pytest.raises(
        InputError, match=r"tokens_per_microbatch=500 .* 8 .* 70 tokens"
    ):
        plan_of(source, target, tokens_per_microbatch=500, row_multiple=8)
    with pytest.raises(InputError, match="layout is 'sorted'"):
        plan_of(source, target, layout="sorted")
    with pytest.raises(ValueError, match="make no plan"):
        plan_of(source, target[:1])
    with pytest.raises(ValueError, match="make no plan"):
        plan_of([], [])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_epoch_of_4500000_pairs_takes_under_two_seconds(layout):
    plan = plan_of(*like_multi30k(4_500_000), layout=layout)
    started = time.process_time()
    epoch = plan.epoch(seed=0, epoch=1)
    assert time.process_time() - started < 2
    arrays = (epoch.examples, epoch.rows, epoch.starts, epoch.shape_of)
    assert sum(array.nbytes for array in arrays) < 10 * 4_500_000


@pytest.mark.parametrize("layout", ["buckets", "packed"])
@pytest.mark.parametrize("multiple", [0, -1])
def test_a_multiple_of_rows_that_is_none_is_named(layout, multiple):
    with pytest.raises(InputError, match=f"row_multiple={multiple}"):
        plan_of([5, 70], [5, 7], layout=layout, row_multiple=multiple)
