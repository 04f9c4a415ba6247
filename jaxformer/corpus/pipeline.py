"""Gather token ids into the batches of a plan, ahead of use.

Every batch is a pure function of (corpus, plan, seed, position): training starts at any
update, without a state to restore.
"""

import atexit
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import numpy as np

from jaxformer.batch import ALL_ROWS, Batch, Rows
from jaxformer.corpus.plan import EpochPlan, Plan
from jaxformer.corpus.store import TokenizedCorpus
from jaxformer.system.progress import quieten_tensorflow
from jaxformer.text.ragged import concatenated_ranges

_READ_AHEAD = 16  # microbatches: a few megabytes


def updates(
    versions: Sequence[TokenizedCorpus],
    plan: Plan,
    *,
    seed: int,
    start: int,
    executor: str,
    rows: Rows = ALL_ROWS,
) -> Iterator[tuple[Batch, ...]]:
    """Yield the microbatches of update `start`, of update `start` + 1, without end.

    Update u is where `Plan.locate` says. `executor` says what reads ahead: "python", a
    thread, or "tf.data", for which a thread stands in where TensorFlow is not
    installed. Both give the same batches.
    Epoch e reads `versions[e % len(versions)]` of the corpus. `rows` as in `assemble`.
    """
    read = _read_by_tensorflow if executor == "tf.data" else _read_by_thread
    batches = read(_microbatches(versions, plan, seed, start, rows))
    places = (plan.locate(update) for update in count(start))
    sizes = (len(stage.microbatches_of(update)) for stage, _, update in places)
    return (tuple(islice(batches, size)) for size in sizes)


def _microbatches(
    versions: Sequence[TokenizedCorpus], plan: Plan, seed: int, start: int, rows: Rows
) -> Iterator[Batch]:
    known = None
    for number in count(start):
        stage, epoch, update = plan.locate(number)
        if known != (stage, epoch):
            known, epoch_plan = (stage, epoch), stage.epoch(seed, epoch)
            corpus = versions[epoch % len(versions)]
        for index in stage.microbatches_of(update):
            yield assemble(corpus, epoch_plan, index, rows=rows)


def examples_of(plan: Plan, seed: int, update: int) -> np.ndarray:
    """Return the corpus indices of the pairs of one update, in their order."""
    stage, epoch, update = plan.locate(update)
    epoch_plan = stage.epoch(seed, epoch)
    return np.concatenate(
        [epoch_plan.microbatch(index)[1] for index in stage.microbatches_of(update)]
    )


def evaluation_batches(
    corpus: TokenizedCorpus,
    plan: Plan,
    *,
    part: tuple[int, int] = (0, 1),
    rows: Rows = ALL_ROWS,
) -> Iterator[Batch]:
    """Yield every pair of the corpus once, always in the same order.

    `part` (p, n) yields microbatches p, p + n, p + 2n, ....
    """
    epoch_plan = plan.epoch(seed=0, epoch=0)
    indices = range(plan.microbatches_per_epoch)
    for index in indices[part[0] :: part[1]]:
        yield assemble(corpus, epoch_plan, index, rows=rows)


def assemble(
    corpus: TokenizedCorpus, epoch_plan: EpochPlan, index: int, *, rows: Rows = ALL_ROWS
) -> Batch:
    """Return microbatch `index` of the epoch as numpy arrays, or its blocks `rows`.

    If `rows.of` does not divide the rows, empty ones are added at the end.
    """
    shape, examples, row = epoch_plan.microbatch(index)
    height = -(-shape.rows // rows.of)  # of a block
    block = row // height
    is_mine = np.isin(block, rows.blocks)
    examples, row, block = examples[is_mine], row[is_mine], block[is_mine]
    gathered = [side.gather(examples) for side in corpus]
    row = row % height + np.searchsorted(rows.blocks, block) * height
    height *= len(rows.blocks)
    sides = (
        _fill(*each, row, (height, length))
        for each, length in zip(gathered, shape[1:], strict=True)
    )
    ids, segments = zip(*sides, strict=True)
    return Batch(*ids, *segments)


def _fill(
    tokens: np.ndarray, lengths: np.ndarray, rows: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Put n sentences into ascending rows; returns ids and segments, int32 of `shape`.

    `tokens` has one sentence after the other; `lengths` and `rows` are int [n].
    """
    first_of_row = np.searchsorted(rows, rows)  # [n] index of the row's first pair
    before = np.cumsum(lengths) - lengths
    column = before - before[first_of_row]
    index = concatenated_ranges(rows * shape[1] + column, lengths)  # [tokens]
    ids = np.zeros(shape, np.int32)  # PAD is 0, and so is the segment of padding
    ids.ravel()[index] = tokens
    segments = np.zeros(shape, np.int32)
    number_in_row = np.arange(1, len(rows) + 1) - first_of_row
    segments.ravel()[index] = np.repeat(number_in_row, lengths)
    return ids, segments


def _read_by_thread(batches: Iterator[Batch]) -> Iterator[Batch]:
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
    try:
        ahead = deque(pool.submit(next, batches) for _ in range(_READ_AHEAD))
        while True:
            ahead.append(pool.submit(next, batches))
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _read_by_tensorflow(batches: Iterator[Batch]) -> Iterator[Batch]:
    quieten_tensorflow()
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":  # a damaged installation
            raise
        return _read_by_thread(batches)
    tf.config.set_visible_devices([], "GPU")  # JAX uses the accelerators
    types = [tf.int32] * len(Batch._fields)
    failed: list[Exception] = []

    def read() -> tuple[np.ndarray, ...]:
        try:
            return tuple(next(batches))
        except Exception as error:  # of which TensorFlow makes errors of its own
            failed.append(error)
            raise

    dataset = tf.data.Dataset.counter().map(
        lambda _: tf.numpy_function(read, [], types)
    )
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    dataset = dataset.prefetch(_READ_AHEAD).with_options(options)
    return map(Batch._make, _deleted_at_exit(dataset.as_numpy_iterator(), failed))


def _deleted_at_exit(iterator: Iterator, failed: list[Exception]) -> Iterator:
    """Yield its items; delete it before the interpreter shuts down.

    A process that ended while a thread of tf.data calls back into Python would hang.
    Raises the first of the errors in `failed` instead of those that follow from it.
    """
    held = [iterator]
    del iterator
    atexit.register(held.clear)
    try:
        while True:
            yield next(held[0])
    except Exception:
        if failed:
            raise failed[0] from None
        raise
    finally:
        held.clear()
        atexit.unregister(held.clear)
