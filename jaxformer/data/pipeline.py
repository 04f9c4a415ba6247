"""Carries out a plan: gathers token ids into padded or packed rows, ahead of need.

Every batch is a pure function of (corpus, plan, position), so there is nothing to save
and nothing to restore: training starts at any update. Two executors read the same
positions in the same order: "tf.data", TensorFlow's input pipeline with parallel reads,
and "python", one background thread, for machines without TensorFlow. Both are used
through `updates` by `jaxformer.training.loop`.
"""

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import count, islice
from threading import Lock

import numpy as np

from jaxformer.batch import Batch, Rows
from jaxformer.data.layout import concatenated_ranges
from jaxformer.data.plan import EpochPlan, Plan
from jaxformer.data.store import Ragged, TokenizedCorpus
from jaxformer.errors import InputError

# Microbatches read ahead: a few megabytes. Reading is far cheaper than training on what
# was read, so two threads are plenty and leave the other cores to XLA.
_READ_AHEAD = 16
_THREADS = 2


def updates(
    corpus: TokenizedCorpus,
    plan: Plan,
    *,
    seed: int,
    start: int,
    executor: str,
    rows: Rows = Rows.ALL,
) -> Iterator[tuple[Batch, ...]]:
    """The microbatches of update `start`, of update `start` + 1, and so on for ever.

    Update u is number u mod `updates_per_epoch` of epoch u // `updates_per_epoch`.
    `executor` is "tf.data" or "python"; `rows` as in `assemble`. Raises InputError for
    another executor, or for "tf.data" where TensorFlow is not installed.
    """
    readers = {"tf.data": _read_by_tensorflow, "python": _read_by_thread}
    if executor not in readers:
        raise InputError(
            f"batches.executor is {executor!r}; it must be one of {', '.join(readers)}."
        )
    cached_plan = lru_cache(maxsize=2)(plan.epoch)  # reading ahead crosses one border
    planning = Lock()  # a thread that comes second waits for the first one's plan

    def read(position: int) -> Batch:
        epoch, index = divmod(position, plan.microbatches_per_epoch)
        with planning:
            epoch_plan = cached_plan(seed, epoch)
        return assemble(corpus, epoch_plan, index, rows=rows)

    epoch, update = divmod(start, plan.updates_per_epoch)
    first = epoch * plan.microbatches_per_epoch + plan.microbatches_of(update).start
    batches = readers[executor](read, first)
    sizes = (
        len(plan.microbatches_of(update % plan.updates_per_epoch))
        for update in count(start)
    )
    return (tuple(islice(batches, size)) for size in sizes)


def examples_of(plan: Plan, seed: int, update: int) -> np.ndarray:
    """The pairs of one update, as indices in the corpus, in the order of its rows."""
    epoch, update = divmod(update, plan.updates_per_epoch)
    epoch_plan = plan.epoch(seed, epoch)
    return np.concatenate(
        [epoch_plan.microbatch(index)[1] for index in plan.microbatches_of(update)]
    )


def evaluation_batches(
    corpus: TokenizedCorpus,
    plan: Plan,
    *,
    rows: Rows = Rows.ALL,
    process: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """Every pair of the corpus once, always in the same order.

    `process` = (p, of) takes every `of`-th microbatch from p on, for one of several
    processes that share the work.
    """
    epoch_plan = plan.epoch(seed=0, epoch=0)
    first, every = process
    for index in range(first, plan.microbatches_per_epoch, every):
        yield assemble(corpus, epoch_plan, index, rows=rows)


def assemble(
    corpus: TokenizedCorpus, epoch_plan: EpochPlan, index: int, *, rows: Rows = Rows.ALL
) -> Batch:
    """Microbatch `index` of the epoch, as numpy arrays.

    `rows` says which of its rows, for a process that feeds only its own devices. The
    batch is the same for every `rows.of`: where they do not divide its rows, empty ones
    fill it up.
    """
    shape, examples, place = epoch_plan.microbatch(index)
    height = -(-shape.rows // rows.of)  # of a block
    block = place // height
    mine = np.isin(block, rows.blocks)
    examples, place, block = examples[mine], place[mine], block[mine]
    place = place % height + np.searchsorted(rows.blocks, block) * height
    height *= len(rows.blocks)
    source, source_segments = _fill(
        corpus.source, examples, place, (height, shape.source_length)
    )
    target, target_segments = _fill(
        corpus.target, examples, place, (height, shape.target_length)
    )
    return Batch(source, target, source_segments, target_segments)


def _fill(
    side: Ragged, examples: np.ndarray, rows: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and segments, int32 of `shape`, of the examples put into ascending rows."""
    starts = side.offsets[examples]  # [n]
    lengths = side.offsets[examples + 1] - starts
    first_of_row = np.searchsorted(rows, rows)  # [n] index of the row's first pair
    before = np.cumsum(lengths) - lengths
    column = before - before[first_of_row]
    if (column + lengths > shape[1]).any():
        raise ValueError("the plan was not made from the lengths of this corpus")

    places = concatenated_ranges(rows * shape[1] + column, lengths)  # [tokens]
    ids = np.zeros(shape, np.int32)  # PAD is 0, and so is the segment of padding
    ids.ravel()[places] = side.tokens[concatenated_ranges(starts, lengths)]
    segments = np.zeros(shape, np.int32)
    number_in_row = np.arange(1, len(rows) + 1) - first_of_row
    segments.ravel()[places] = np.repeat(number_in_row, lengths)
    return ids, segments


def _read_by_thread(read: Callable[[int], Batch], first: int) -> Iterator[Batch]:
    """read(first), read(first + 1), ... by one thread that stays ahead."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
    try:
        positions = count(first)
        ahead = deque(pool.submit(read, next(positions)) for _ in range(_READ_AHEAD))
        while True:
            ahead.append(pool.submit(read, next(positions)))
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _read_by_tensorflow(read: Callable[[int], Batch], first: int) -> Iterator[Batch]:
    """The same through tf.data, several at once and in order."""
    tf = _import_tensorflow()

    def read_in_graph(position):
        return tf.numpy_function(
            lambda number: tuple(read(int(number))),
            [position],
            [tf.int32] * len(Batch._fields),
        )

    dataset = tf.data.Dataset.counter(start=first)
    dataset = dataset.map(
        read_in_graph, num_parallel_calls=_THREADS, deterministic=True
    ).prefetch(_READ_AHEAD)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = _THREADS
    arrays = _gone_before_exit(dataset.with_options(options).as_numpy_iterator())
    return map(Batch._make, arrays)


def _gone_before_exit(iterator: Iterator) -> Iterator:
    """Its items; deletes it before the interpreter shuts down.

    The threads of a tf.data iterator call back into Python. A process that ended while
    such a call was waiting would hang for ever.
    """
    held = [iterator]
    del iterator
    atexit.register(held.clear)
    try:
        while True:
            yield next(held[0])
    finally:
        held.clear()
        atexit.unregister(held.clear)


def _import_tensorflow():
    """TensorFlow, quiet and kept off the accelerators, which belong to JAX."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf
    except ImportError:
        raise InputError(
            "batches.executor=tf.data needs TensorFlow, which is not installed here: "
            "install it or read the same batches with --config.batches.executor=python."
        ) from None
    tf.config.set_visible_devices([], "GPU")
    return tf
