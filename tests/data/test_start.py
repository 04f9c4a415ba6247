"""How soon the first batch is there: anywhere in any epoch of a corpus like WMT14's."""

import time
from unittest import mock

import numpy as np
import pytest

from jaxformer.data.pipeline import assemble, updates
from jaxformer.data.plan import Plan, make_plan
from jaxformer.data.store import Ragged, TokenizedCorpus

PAIRS = 4_500_000
PLACE = 4_000_000  # pairs read in the epoch before the update that is asked for
SEED = 3


@pytest.fixture(scope="module")
def corpus() -> TokenizedCorpus:
    """4.5 million pairs of 3 to 60 ids a side, the lengths of a pair much alike."""
    rng = np.random.default_rng(0)
    source = rng.integers(3, 61, PAIRS, dtype=np.int32)
    target = np.clip(source + rng.integers(-4, 5, PAIRS, dtype=np.int32), 3, 60)

    def side(lengths):
        offsets = np.zeros(PAIRS + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        tokens = np.arange(offsets[-1], dtype=np.uint32) * np.uint32(2654435761)
        return Ragged((tokens >> np.uint32(17)).astype(np.uint16) + 4, offsets)

    return TokenizedCorpus(side(source), side(target))


@pytest.fixture(scope="module", params=["buckets", "packed"])
def plan(request, corpus):
    """The plan, made when a run starts; only what comes after it is timed."""
    return make_plan(
        corpus.source.lengths,
        corpus.target.lengths,
        layout=request.param,
        row_length=256,
        max_shapes=12,
        tokens_per_microbatch=12_800,
        tokens_per_update=25_600,
        row_multiple=8,
    )


def update_at(plan, epoch_plan, pairs):
    """The update of an epoch before which at least so many pairs have been read."""
    microbatch = np.searchsorted(epoch_plan.starts, pairs)
    of_update = (plan.microbatches_of(u).start for u in range(plan.updates_per_epoch))
    return np.searchsorted(np.fromiter(of_update, np.int64), microbatch)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["python", "tf.data"])
def test_four_million_pairs_on_the_first_batch_is_there_within_two_seconds(
    corpus, plan, executor
):
    """In the first epoch and in a far one alike; it is the batch that belongs there.

    Bound: the 2 s promised. Nothing is read on the way: the time is that of putting
    4.5 million pairs in the order of one epoch, which does not depend on the epoch. It
    is counted as processor time of all threads: on an idle machine that is at least
    what the clock says, and it stays so on one that does other work as well.
    """
    if executor == "tf.data":
        import tensorflow  # noqa: F401, takes seconds, once, and is no part of this

    for epoch in (0, 1000):
        epoch_plan = plan.epoch(SEED, epoch)
        update = int(update_at(plan, epoch_plan, PLACE))
        start = epoch * plan.updates_per_epoch + update

        before = time.process_time()
        batches = updates(corpus, plan, seed=SEED, start=start, executor=executor)
        first = next(batches)
        seconds = time.process_time() - before
        batches.close()

        numbers = plan.microbatches_of(update)
        assert epoch_plan.starts[numbers.start] >= PLACE
        assert len(first) == len(numbers) == 2
        for batch, number in zip(first, numbers, strict=True):
            expected = assemble(corpus, epoch_plan, number)
            for array, wanted in zip(batch, expected, strict=True):
                np.testing.assert_array_equal(array, wanted)
        assert seconds < 2.0


@pytest.mark.parametrize("executor", ["python", "tf.data"])
def test_an_epoch_is_put_in_order_once(executor):
    """Also where several threads ask for its first batches at the same time."""
    lengths = np.full(64, 4)
    side = Ragged(np.ones(256, np.uint16), np.arange(0, 257, 4))
    plan = make_plan(
        lengths,
        lengths,
        layout="packed",
        row_length=4,
        max_shapes=1,
        tokens_per_microbatch=8,
        tokens_per_update=8,
        row_multiple=1,
    )
    asked, in_order = [], Plan.epoch

    def slowly(self, seed, epoch):
        asked.append(epoch)
        time.sleep(0.3)
        return in_order(self, seed, epoch)

    with mock.patch.object(Plan, "epoch", slowly):
        corpus = TokenizedCorpus(side, side)
        batches = updates(corpus, plan, seed=0, start=0, executor=executor)
        for _ in range(plan.updates_per_epoch // 4):
            next(batches)
        batches.close()
    assert asked == [0]
