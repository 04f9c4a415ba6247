"""Continuous batching: a search whose sentences come and go.

A batch of B slots takes steps; when enough sentences are done, others take their slots,
without waiting for the longest of a batch. The device runs one compiled program for
each of a few shapes (slots, source length, ring length), which grow and shrink by
buckets with what is in flight. While it runs, the host turns results into text.

Used by `jaxformer.decoding.translate`, for files and for servers alike.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.batch import PAD
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import Requests, SearchResult
from jaxformer.decoding.slots import Shape, SlotPrograms, Slots

SHORTEST_BUCKET = 16  # pieces
AHEAD = 8  # steps that a ring must have room for when it starts
REFILL = 8  # sentences come in by this part of the slots
MOST_SLOTS = 64  # of a device: enough for fast products; more would wait for refills


class Task(NamedTuple):
    """A sentence to be decoded, and whom to tell."""

    source: Sequence[int]  # pieces, EOS last
    max_length: int  # of the translation, EOS included
    done: Callable[[SearchResult], None]  # called with arrays [W, ...] of numpy
    min_length: int = 0
    prefix: Sequence[int] = ()
    seed: int = 0


def bucket_length(length: int) -> int:
    """Round a length up to one of few: 16, 24, 32, 48, 64, 96, 128, ... pieces."""
    bucket = SHORTEST_BUCKET
    while bucket < length:
        if bucket * 3 // 2 >= length:
            return bucket * 3 // 2
        bucket *= 2
    return bucket


class Engine:
    """Slots, the tasks in them, and those that wait.

    `batch_tokens` bounds slots x source length, padding included (or one slot a
    device); `rows` says how slots lie on the devices of this process, None on one.
    `weights` may be set anew between two sentences, not during one.
    """

    def __init__(
        self,
        scorer: Scorer,
        options: SearchOptions,
        *,
        batch_tokens: int,
        rows: jax.sharding.NamedSharding | None,
    ) -> None:
        self.weights: Any = None
        self._batch_tokens, self._rows = batch_tokens, rows
        self._waiting: deque[Task] = deque()
        self._tasks: list[Task | None] = []  # by slot
        self._slots: Slots | None = None
        self._shape = Shape(0, 0, 0, 0)
        self._running = False  # a program is under way
        self._programs = SlotPrograms(scorer, options, rows)

    def submit(self, task: Task) -> None:
        """Let a task wait for a slot."""
        self._waiting.append(task)

    @property
    def in_flight(self) -> int:
        """How many tasks are in slots."""
        return sum(task is not None for task in self._tasks)

    def advance(self, most: int | None = None) -> bool:
        """Start the next program, then report what the last one has finished.

        At most `most` steps, that new tasks may soon join. Returns False when nothing
        is left to do.
        """
        finished = self._harvest()
        self._refill()
        launched = self._launch(most)
        for task, found in finished:
            task.done(found)
        return launched or bool(self._waiting)

    def clear(self) -> None:
        """Forget all tasks, waiting or in flight."""
        self._waiting.clear()
        self._slots, self._tasks, self._running = None, [], False
        self._shape = Shape(0, 0, 0, 0)

    # Between two programs --------------------------------------------------------

    def _harvest(self) -> list[tuple[Task, SearchResult]]:
        """Wait for the program under way; free the slots of finished tasks."""
        if not self._running:
            return []
        self._running = False
        state = self._slots.state
        is_done = np.asarray(state.done)
        slots = [
            slot
            for slot, task in enumerate(self._tasks)
            if task is not None and is_done[slot]
        ]
        if not slots:
            return []
        found = jax.tree.map(np.asarray, state.finished)
        finished = []
        for slot in slots:
            result = jax.tree.map(lambda leaf, s=slot: leaf[s], found)
            finished.append((self._tasks[slot], result))
            self._tasks[slot] = None
        return finished

    def _refill(self) -> None:
        """Give waiting tasks the free slots, if it is worth it."""
        live = [task for task in self._tasks if task is not None]
        group = self._next_group(live)
        if live and len(group) < min(len(self._waiting), self._portion):
            group = []
        if not live and not group:
            return
        for _ in group:
            self._waiting.popleft()
        self._fit(live, group)
        free = [slot for slot, task in enumerate(self._tasks) if task is None]
        size = self._portion
        if len(group) > self._shape.slots // 2:
            size = self._shape.slots
        for begin in range(0, len(group), size):
            tasks = group[begin : begin + size]
            slots = free[begin : begin + len(tasks)]
            for slot, task in zip(slots, tasks, strict=True):
                self._tasks[slot] = task
            self._slots = self._programs.insert(
                self.weights, self._slots, *self._arrays(slots, tasks, size)
            )

    @property
    def _portion(self) -> int:
        """How many sentences come in at a time."""
        return max(1, self._shape.slots // REFILL)

    def _next_group(self, live: Sequence[Task]) -> list[Task]:
        """Who waits first and finds room, given the longest source in flight."""
        group: list[Task] = []
        longest = max((len(task.source) for task in live), default=1)
        for task in self._waiting:
            longest = max(longest, len(task.source))
            if len(live) + len(group) >= self._most_slots(bucket_length(longest)):
                break
            group.append(task)
        return group

    def _most_slots(self, source: int) -> int:
        """As many slots as `batch_tokens` allows: a power of two a device."""
        devices = 1 if self._rows is None else self._rows.num_devices
        each = min(MOST_SLOTS, max(1, self._batch_tokens // source // devices))
        return devices << (each.bit_length() - 1)

    def _fit(self, live: Sequence[Task], group: Sequence[Task]) -> None:
        """Grow the shape to what is needed, or shrink it if it is far too large."""
        new = self._needed_shape([*live, *group])
        old = self._shape
        if live:  # to be moved, and perhaps compiled for: not for a little
            most = self._most_slots(max(new.source, old.source))
            if new.slots < old.slots < 4 * new.slots and old.slots <= most:
                new = new._replace(slots=old.slots)
            if new.source < old.source < 2 * new.source and new.slots <= most:
                new = new._replace(source=old.source)
            if new.ring < old.ring < 2 * new.ring:
                new = new._replace(ring=old.ring)
            new = new._replace(prefix=max(new.prefix, old.prefix))
        if new != old:
            self._shape = new
            if live:
                self._move(new)
            else:
                self._slots, self._tasks = self._programs.empty(new), [None] * new.slots

    def _needed_shape(self, tasks: Sequence[Task]) -> Shape:
        """The least that holds those in flight and those that come."""
        source = bucket_length(max(len(task.source) for task in tasks))
        prefix = max(len(task.prefix) for task in tasks)
        wanted = len(tasks) + len(self._waiting)
        slots = 1 if self._rows is None else self._rows.num_devices
        while slots < min(wanted, self._most_slots(source)):
            slots *= 2
        ages = {
            id(task): age for task, age in zip(self._tasks, self._ages(), strict=True)
        }
        # A translation is about as long as its source; the ring grows if it is longer.
        ring = max(
            min(t.max_length, max(ages.get(id(t), 0) + AHEAD, len(t.source)))
            for t in tasks
        )
        return Shape(
            slots, source, bucket_length(ring), bucket_length(prefix) if prefix else 0
        )

    def _ages(self) -> list[int]:
        return (
            [] if self._slots is None else np.asarray(self._slots.state.ages).tolist()
        )

    def _move(self, shape: Shape) -> None:
        """Move who is in flight into slots of another shape."""
        taken = [slot for slot, task in enumerate(self._tasks) if task is not None]
        origin = np.full(shape.slots, -1, np.int32)
        origin[: len(taken)] = taken
        self._slots = self._programs.resize(self._slots, origin, shape)
        empty = [None] * (shape.slots - len(taken))
        self._tasks = [self._tasks[slot] for slot in taken] + empty

    def _arrays(
        self, slots: Sequence[int], group: Sequence[Task], count: int
    ) -> tuple[np.ndarray, np.ndarray, Requests]:
        """Slot numbers, sources and requests of a group, filled up to `count`.

        Those that fill it up have a slot number that does not exist.
        """
        shape = self._shape
        where = np.full(count, shape.slots, np.int32)
        where[: len(group)] = slots
        source = np.full((count, shape.source), PAD, np.int32)
        prefixes = np.full((count, shape.prefix), PAD, np.int32)
        numbers = np.zeros((3, count), np.int64)
        for row, task in enumerate(group):
            source[row, : len(task.source)] = task.source
            prefixes[row, : len(task.prefix)] = task.prefix
            numbers[:, row] = task.max_length, task.min_length, task.seed % 2**32
        requests = Requests(
            max_lengths=numbers[0].astype(np.int32),
            min_lengths=numbers[1].astype(np.int32),
            prefixes=prefixes,
            seeds=numbers[2].astype(np.uint32),
        )
        return where, source, requests

    def _launch(self, most: int | None) -> bool:
        """Start a program for those in flight; False if there is nobody."""
        live = self.in_flight
        if not live:
            return False
        oldest = max(
            age
            for age, task in zip(self._ages(), self._tasks, strict=True)
            if task is not None
        )
        slots = self._shape.slots
        steps = min(self._shape.ring - oldest, most or self._shape.ring)
        if self._waiting:
            enough = slots - live + self._portion
        else:  # then the slots may become fewer
            enough = slots - slots // 4 if live > slots // 4 else slots
        self._slots = self._programs.advance(
            self.weights, self._slots, np.int32(steps), np.int32(min(enough, slots))
        )
        self._running = True
        return True
