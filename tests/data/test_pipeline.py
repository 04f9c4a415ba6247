"""The pipeline: batches say what the corpus says, from anywhere, by either executor."""

import subprocess
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from jaxformer.batch import Batch, Rows
from jaxformer.data.pipeline import (
    assemble,
    evaluation_batches,
    examples_of,
    updates,
)
from jaxformer.data.plan import EpochPlan, Shape, make_plan
from jaxformer.data.store import Ragged, TokenizedCorpus
from jaxformer.errors import InputError

LAYOUTS = ("buckets", "packed")


def ragged(sequences) -> Ragged:
    lengths = [len(sequence) for sequence in sequences]
    tokens = np.concatenate(sequences).astype(np.uint16)
    return Ragged(tokens, np.cumsum([0, *lengths], dtype=np.int64))


@pytest.fixture(scope="module")
def corpus() -> TokenizedCorpus:
    """700 pairs of 2 to 30 ids; the first ids number the pair."""
    rng = np.random.default_rng(0)

    def side():
        return ragged(
            [
                [4 + number // 256, 4 + number % 256, *rng.integers(4, 999, length)]
                for number, length in enumerate(rng.integers(0, 29, 700))
            ]
        )

    return TokenizedCorpus(side(), side())


def plan_of(corpus, layout="buckets", row_multiple=2):
    return make_plan(
        corpus.source.lengths,
        corpus.target.lengths,
        layout=layout,
        row_length=48,
        max_shapes=5,
        tokens_per_microbatch=512,
        tokens_per_update=1536,
        row_multiple=row_multiple,
    )


def pairs_of(batch):
    """The (source, target) pairs of a batch, read back by segment."""
    for row in range(len(batch.source)):
        for segment in range(1, batch.source_segments[row].max() + 1):
            yield (
                tuple(batch.source[row][batch.source_segments[row] == segment]),
                tuple(batch.target[row][batch.target_segments[row] == segment]),
            )


def assert_equal(batch, other):
    for array, expected in zip(batch, other, strict=True):
        assert array.dtype == np.int32
        np.testing.assert_array_equal(array, expected)


def test_rows_and_segments_by_hand():
    corpus = TokenizedCorpus(
        ragged([[10, 3], [11, 12, 3], [13, 3]]), ragged([[20, 21, 3], [3], [22, 3]])
    )
    epoch = EpochPlan(
        shapes=(Shape(3, 6, 5),),
        shape_of=np.zeros(1, np.uint8),
        starts=np.array([0, 3]),
        examples=np.array([2, 1, 0], np.int32),
        rows=np.array([0, 0, 2], np.int32),
    )
    batch = assemble(corpus, epoch, 0)
    assert batch.source.tolist() == [[13, 3, 11, 12, 3, 0], [0] * 6, [10, 3, *[0] * 4]]
    assert batch.target.tolist() == [[22, 3, 3, 0, 0], [0] * 5, [20, 21, 3, 0, 0]]
    assert batch.source_segments.tolist() == [
        [1, 1, 2, 2, 2, 0],
        [0] * 6,
        [1, 1, 0, 0, 0, 0],
    ]
    assert batch.target_segments.tolist() == [[1, 1, 2, 0, 0], [0] * 5, [1, 1, 1, 0, 0]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_pair_comes_once_and_whole(corpus, layout):
    expected = Counter(
        (tuple(corpus.source[i]), tuple(corpus.target[i]))
        for i in range(len(corpus.source))
    )
    plan = plan_of(corpus, layout)
    found = Counter()
    for batch in evaluation_batches(corpus, plan):
        assert Shape(*batch.source.shape, batch.target.shape[1]) in plan.shapes
        assert not batch.source[batch.source_segments == 0].any()
        assert not batch.target[batch.target_segments == 0].any()
        found.update(pairs_of(batch))
    assert found == expected

    epoch = islice(
        updates(corpus, plan, seed=3, start=0, executor="python"),
        plan.updates_per_epoch,
    )
    trained = (pair for update in epoch for batch in update for pair in pairs_of(batch))
    assert Counter(trained) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_starting_anywhere_is_skipping(corpus, layout):
    plan = plan_of(corpus, layout)
    length = 2 * plan.updates_per_epoch + 3
    stream = updates(corpus, plan, seed=1, start=0, executor="python")
    whole = list(islice(stream, length))
    assert [len(update) for update in whole] == [
        len(plan.microbatches_of(u % plan.updates_per_epoch)) for u in range(length)
    ]
    for start in (1, plan.updates_per_epoch - 1, plan.updates_per_epoch, length - 2):
        later = updates(corpus, plan, seed=1, start=start, executor="python")
        for update, expected in zip(later, whole[start:], strict=False):
            for batch, other in zip(update, expected, strict=True):
                assert_equal(batch, other)


def joined(parts):
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of", [1, 2, 3, 8])
def test_blocks_make_the_whole_and_empty_rows_where_they_do_not_divide_it(
    corpus, layout, of
):
    """So a batch is the same for every number of devices, as the plan has it."""
    plan = plan_of(corpus, layout)
    epoch = plan.epoch(0, 0)
    fillings = set()
    for index in range(plan.microbatches_per_epoch):
        whole = assemble(corpus, epoch, index)
        parts = [
            assemble(corpus, epoch, index, rows=Rows((block,), of))
            for block in range(of)
        ]
        assert len({part.source.shape for part in parts}) == 1  # equal blocks
        filling = -len(whole.source) % of
        fillings.add(filling)
        empty = (np.zeros((filling, a.shape[1]), np.int32) for a in whole)
        assert_equal(Batch(*joined(parts)), joined([whole, empty]))
    assert fillings == {0} if of <= 2 else max(fillings) > 0


@pytest.mark.parametrize("blocks", [(0, 1), (1, 3), (0, 2, 3), (0, 1, 2, 3)])
def test_a_process_may_hold_any_blocks(corpus, blocks):
    """As the devices of a host may lie anywhere in the mesh."""
    plan = plan_of(corpus, "packed")
    epoch = plan.epoch(0, 0)
    for index in range(plan.microbatches_per_epoch):
        alone = [
            assemble(corpus, epoch, index, rows=Rows((block,), 4)) for block in blocks
        ]
        together = assemble(corpus, epoch, index, rows=Rows(blocks, 4))
        assert_equal(together, joined(alone))


def test_updates_are_cut_into_blocks_as_each_batch_is(corpus):
    plan = plan_of(corpus, "packed")
    streams = (
        updates(corpus, plan, seed=2, start=3, executor="python", rows=rows)
        for rows in (Rows.ALL, Rows((0, 1), 4), Rows((2, 3), 4))
    )
    for whole, first, second in islice(zip(*streams, strict=True), 5):
        for batch, *parts in zip(whole, first, second, strict=True):
            filling = -len(batch.source) % 4
            empty = (np.zeros((filling, a.shape[1]), np.int32) for a in batch)
            assert_equal(Batch(*joined(parts)), joined([batch, empty]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of", [2, 5, 100])
def test_processes_that_share_an_evaluation_have_every_batch_once(corpus, layout, of):
    plan = plan_of(corpus, layout)
    whole = list(evaluation_batches(corpus, plan))
    shares = [
        list(evaluation_batches(corpus, plan, process=(number, of)))
        for number in range(of)
    ]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert sum(map(len, shares)) == len(whole)
    for index, batch in enumerate(whole):
        assert_equal(shares[index % of][index // of], batch)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_pairs_of_an_update_are_those_of_its_batches(corpus, layout):
    plan = plan_of(corpus, layout)
    start = plan.updates_per_epoch - 2  # crosses into the next epoch
    stream = updates(corpus, plan, seed=4, start=start, executor="python")
    for number, update in enumerate(islice(stream, 4), start=start):
        told = [
            (tuple(corpus.source[index]), tuple(corpus.target[index]))
            for index in examples_of(plan, 4, number)
        ]
        assert told == [pair for batch in update for pair in pairs_of(batch)]


def test_a_foreign_plan_is_refused(corpus):
    plan = plan_of(corpus)
    longer = TokenizedCorpus(ragged([np.full(31, 9)] * 700), corpus.target)
    with pytest.raises(ValueError, match="not made from the lengths of this corpus"):
        list(evaluation_batches(longer, plan))


def test_an_unknown_executor_is_named(corpus):
    with pytest.raises(InputError, match="executor is 'torch'"):
        updates(corpus, plan_of(corpus), seed=0, start=0, executor="torch")


def test_without_tensorflow_the_message_names_the_way_out(corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # makes the import fail
    with pytest.raises(InputError, match="executor=python"):
        updates(corpus, plan_of(corpus), seed=0, start=0, executor="tf.data")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_executors_read_the_same(corpus, layout):
    plan = plan_of(corpus, layout)
    start = plan.updates_per_epoch - 2  # crosses into the next epoch
    streams = (
        updates(corpus, plan, seed=5, start=start, executor=executor)
        for executor in ("tf.data", "python")
    )
    for update, expected in islice(zip(*streams, strict=True), 6):
        assert len(update) == len(expected)
        for batch, other in zip(update, expected, strict=True):
            assert_equal(batch, other)


ENDS_WHILE_READING = """
import numpy as np
from jaxformer.data.pipeline import updates
from jaxformer.data.plan import make_plan
from jaxformer.data.store import Ragged, TokenizedCorpus

lengths = np.full(30_000, 20)
side = Ragged(np.full(600_000, 9, np.uint16), np.arange(0, 600_001, 20))
plan = make_plan(lengths, lengths, layout="buckets", row_length=20, max_shapes=1,
                 tokens_per_microbatch=20_000, tokens_per_update=20_000, row_multiple=1)
corpus = TokenizedCorpus(side, side)
stream = updates(corpus, plan, seed=0, start=0, executor="{}")
for _ in range(40):
    next(stream)
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["tf.data", "python"])
def test_a_process_ends_while_batches_are_being_read(executor):
    script = ENDS_WHILE_READING.format(executor)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
