"""Tests of batches: they hold the corpus, from any start, with either executor."""

import subprocess
import sys
import threading
import time
from itertools import chain, islice
from types import SimpleNamespace
from unittest.mock import create_autospec

import numpy as np
import pytest

from jaxformer.batch import ALL_ROWS, Rows
from jaxformer.corpus.pipeline import assemble, evaluation_batches, examples_of, updates
from jaxformer.corpus.plan import EpochPlan, Plan, Shape, make_plan
from jaxformer.corpus.store import TokenizedCorpus
from jaxformer.system.errors import InputError
from jaxformer.text.ragged import Ragged, concatenated_ranges

every_layout = pytest.mark.parametrize("layout", ["buckets", "packed"])


@pytest.fixture(scope="module")
def corpus() -> TokenizedCorpus:
    """700 pairs of 2 to 30 ids; the first ids number the pair."""
    rng = np.random.default_rng(0)
    sides = (
        [
            [4 + number // 256, 4 + number % 256, *rng.integers(4, 999, length)]
            for number, length in enumerate(rng.integers(0, 29, 700))
        ]
        for _ in range(2)
    )
    return TokenizedCorpus(*map(Ragged.of, sides))


def plan_of(corpus, layout="buckets", **changes):
    values = {
        "row_length": 48, "max_shapes": 5, "row_multiple": 2, "layout": layout,
        "tokens_per_microbatch": 512, "tokens_per_update": 1536,
    }  # fmt: skip
    batching = SimpleNamespace(**values | changes)
    return make_plan(*(side.lengths for side in corpus), batching, batching)


def updates_of(corpus, plan, start, executor="python", **options):
    return updates([corpus], plan, seed=1, start=start, executor=executor, **options)


def pairs_of(batches):
    """The (source, target) pairs of batches, read back by segment."""
    for batch in batches:
        for source, target, *segments in zip(*batch, strict=True):
            for number in range(1, segments[0].max() + 1):
                yield tuple(
                    tuple(ids[segment == number].tolist())
                    for ids, segment in zip((source, target), segments, strict=True)
                )


def assert_equal(batches, expected):
    for batch, same in zip(batches, expected, strict=True):
        for array, wanted in zip(batch, same, strict=True):
            assert array.dtype == np.int32
            np.testing.assert_array_equal(array, wanted)


def test_rows_and_segments_by_hand():
    sides = [[10, 3], [11, 12, 3], [13, 3]], [[20, 21, 3], [3], [22, 3]]
    arrays = map(np.array, ([0], [0, 3], [2, 1, 0], [0, 0, 2]))
    epoch = EpochPlan((Shape(3, 6, 5),), *arrays)
    batch = assemble(TokenizedCorpus(*map(Ragged.of, sides)), epoch, 0)
    assert [array.tolist() for array in batch] == [
        [[13, 3, 11, 12, 3, 0], [0] * 6, [10, 3, 0, 0, 0, 0]],
        [[22, 3, 3, 0, 0], [0] * 5, [20, 21, 3, 0, 0]],
        [[1, 1, 2, 2, 2, 0], [0] * 6, [1, 1, 0, 0, 0, 0]],
        [[1, 1, 2, 0, 0], [0] * 5, [1, 1, 1, 0, 0]],
    ]


@every_layout
def test_an_epoch_holds_every_pair_once_and_training_starts_anywhere(corpus, layout):
    plan = plan_of(corpus, layout)
    sides = [[tuple(ids.tolist()) for ids in side] for side in corpus]
    pairs = list(zip(*sides, strict=True))
    evaluated = list(evaluation_batches(corpus, plan))
    for batch in evaluated:
        assert Shape(*batch.source.shape, batch.target.shape[1]) in plan.shapes
        assert not batch.source[batch.source_segments == 0].any()
        assert not batch.target[batch.target_segments == 0].any()
    assert sorted(pairs_of(evaluated)) == sorted(pairs)

    size = plan.updates_per_epoch
    whole = list(islice(updates_of(corpus, plan, 0), 2 * size + 3))
    assert sorted(pairs_of(chain(*whole[:size]))) == sorted(pairs)
    for number, update in enumerate(whole):
        assert len(update) == len(plan.microbatches_of(number % size))
        examples = examples_of(plan, 1, number)
        assert list(pairs_of(update)) == [pairs[index] for index in examples]
    for start in (1, size - 1, size, 2 * size + 1):
        later = islice(updates_of(corpus, plan, start), len(whole) - start)
        assert_equal(chain(*later), chain(*whole[start:]))


@pytest.mark.slow
@every_layout
def test_both_executors_read_the_same(corpus, layout):
    plan = plan_of(corpus, layout)
    start = plan.updates_per_epoch - 2  # crosses into the next epoch
    streams = (
        chain(*islice(updates_of(corpus, plan, start, executor), 6))
        for executor in ("tf.data", "python")
    )
    assert_equal(*streams)


@every_layout
@pytest.mark.parametrize(
    ("blocks", "of"),
    [((0,), 1), ((1,), 2), ((2,), 3), ((0, 1), 4), ((0, 2, 3), 4), ((3, 7), 8)],
)  # fmt: skip
def test_a_process_gets_its_blocks_of_the_same_batches(corpus, layout, blocks, of):
    """Batches do not depend on the number of devices: empty rows fill the blocks."""
    plan = plan_of(corpus, layout)
    found, whole = (
        [
            *evaluation_batches(corpus, plan, rows=rows),
            *chain(*islice(updates_of(corpus, plan, 3, rows=rows), 5)),
        ]
        for rows in (Rows(blocks, of), ALL_ROWS)
    )
    expected = []
    for batch in whole:
        fill = (0, -len(batch.source) % of), (0, 0)
        in_blocks = (np.split(np.pad(array, fill), of) for array in batch)
        expected.append([np.concatenate([x[b] for b in blocks]) for x in in_blocks])
    assert_equal(found, expected)
    assert any(len(batch.source) % of for batch in whole) == (of > 2)


@pytest.mark.parametrize("processes", [2, 5, 100])
def test_processes_share_an_evaluation(corpus, processes):
    plan = plan_of(corpus)
    whole = list(evaluation_batches(corpus, plan))
    for number in range(processes):
        own = evaluation_batches(corpus, plan, part=(number, processes))
        assert_equal(own, whole[number::processes])


def test_an_epoch_is_planned_once_when_it_is_reached(corpus, monkeypatch):
    planned = create_autospec(Plan.epoch, side_effect=Plan.epoch)
    monkeypatch.setattr(Plan, "epoch", planned)
    plan = plan_of(corpus, tokens_per_microbatch=64, tokens_per_update=64)
    stream = updates_of(corpus, plan, 1000 * plan.updates_per_epoch + 7)
    assert len([next(stream) for _ in range(5)]) == 5
    assert [call.args[1:] for call in planned.call_args_list] == [(1, 1000)]


@pytest.mark.slow
@every_layout
def test_the_four_millionth_pair_is_read_within_two_seconds(layout):
    """In the first epoch and in a far one, of 4.5 million pairs as WMT14 has.

    Processor time of all threads, which other work on the machine does not change.
    """
    rng = np.random.default_rng(0)
    source = rng.integers(3, 61, 4_500_000)
    target = np.clip(source + rng.integers(-4, 5, len(source)), 3, 60)

    sides = (
        Ragged.one(np.broadcast_to(np.uint16(9), lengths.sum()), lengths)
        for lengths in (source, target)
    )
    corpus = TokenizedCorpus(*sides)
    tokens = {"tokens_per_microbatch": 12_800, "tokens_per_update": 25_600}
    plan = plan_of(corpus, layout, row_length=256, max_shapes=12, **tokens)
    for epoch in (0, 1000):
        before = time.process_time()
        stream = updates_of(corpus, plan, int((epoch + 0.9) * plan.updates_per_epoch))
        next(stream)
        assert time.process_time() - before < 2
        stream.close()


def test_without_tensorflow_a_thread_reads_until_nobody_asks(corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # makes the import fail
    plan, before = plan_of(corpus), {*threading.enumerate()}
    stream = updates_of(corpus, plan, 3, "tf.data")
    for number in (3, 4):
        wanted = np.stack([side.lengths for side in corpus])[
            :, examples_of(plan, 1, number)
        ]
        pairs = pairs_of(next(stream))
        assert [[*map(len, pair)] for pair in pairs] == wanted.T.tolist()
    (thread,) = {*threading.enumerate()} - before
    assert thread.name.startswith("read-ahead")
    del stream
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_a_damaged_tensorflow_is_an_error(corpus, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tensorflow.py").write_text("import missing_part")
    with pytest.raises(ModuleNotFoundError, match="missing_part"):
        updates_of(corpus, plan_of(corpus), 0, "tf.data")


@pytest.mark.parametrize(
    "executor", ["python", pytest.param("tf.data", marks=pytest.mark.slow)]
)
def test_an_error_while_reading_is_raised_as_it_is(executor):
    class Damaged(Ragged):
        def gather(self, indices):
            raise InputError("a shard is damaged")

    side = Damaged(**vars(Ragged.of([[9] * 20] * 100)))
    stream = updates_of(TokenizedCorpus(side, side), plan_of([side] * 2), 0, executor)
    with pytest.raises(InputError, match="a shard is damaged"):
        next(stream)


ENDS_WHILE_READING = """
from tests.corpus.test_pipeline import Ragged, TokenizedCorpus, plan_of, updates_of

corpus = TokenizedCorpus(*[Ragged.of([[9] * 20] * 30_000)] * 2)
stream = updates_of(corpus, plan_of(corpus, tokens_per_microbatch=20_000), 0, "{}")
for _ in range(40):
    next(stream)
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["tf.data", "python"])
def test_a_process_ends_while_batches_are_being_read(executor):
    script = ENDS_WHILE_READING.format(executor)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_ranges_of_uint64_are_exact():
    starts, lengths = np.array([2**63 + 1, 5], np.uint64), np.array([2, 3])
    found = concatenated_ranges(starts, lengths)
    assert found.dtype == np.uint64
    assert found.tolist() == [2**63 + 1, 2**63 + 2, 5, 6, 7]
