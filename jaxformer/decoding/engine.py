"""Continuous batching: a search in which new sentences replace finished ones.

A batch of B slots takes steps. When enough sentences are done, waiting ones take their
slots. The device runs one compiled program for each of a few shapes (slots, source
length, ring length), which grow and shrink by buckets with the sentences in flight.
Meanwhile the host turns results into text.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.batch import PAD
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import SearchResult, SearchState
from jaxformer.decoding.slots import Shape, SlotPrograms

SHORTEST_BUCKET = 16  # tokens
AHEAD = 8  # steps that a ring must have room for when it starts
REFILL = 8  # one refill fills 1 / REFILL of the slots
MOST_SLOTS = 64  # of a device: enough for fast products; refills of more take longer


class Task(NamedTuple):
    """A sentence to decode."""

    source: Sequence[int]  # ids, EOS last
    max_length: int  # of the translation, EOS included
    min_length: int = 0
    prefix: Sequence[int] = ()
    seed: int = 0
    done: Callable[[SearchResult], None] | None = None  # gets NumPy arrays [W, ...]


def bucket_length(length: int) -> int:
    """Round a length up to one of few: 16, 24, 32, 48, 64, 96, 128, ... tokens."""
    power = max(SHORTEST_BUCKET, 1 << (length - 1).bit_length())
    middle = power * 3 // 4
    return middle if SHORTEST_BUCKET < length <= middle else power


def pad_rows(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Stack ids of different lengths: int32 [rows, length], padded with PAD."""
    padded = np.full((len(rows), length), PAD, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


class Engine:
    """Slots, the tasks in them, and the waiting tasks.

    `batch_tokens` bounds slots x source length, padding included, except that each
    device has at least one slot. `rows` shards the slots over the devices of this
    process; None: one device. Replace `weights` only while no task is in flight.
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
        self._batch_tokens = batch_tokens
        self._devices = 1 if rows is None else rows.num_devices
        self._programs = SlotPrograms(scorer, options, rows)
        self._waiting: deque[Task] = deque()
        self.clear()

    def clear(self) -> None:
        """Drop all tasks, waiting or in flight."""
        self._waiting.clear()
        self._tasks: dict[int, Task] = {}  # by slot
        self._state: SearchState | None = None
        self._shape = Shape(0, 0, 0, 0)

    def submit(self, task: Task) -> None:
        """Queue a task for a slot."""
        self._waiting.append(task)

    def advance(self, most: int | None = None) -> bool:
        """Start the next program, then report the results of the previous one.

        The program takes at most `most` steps, so that new tasks can join soon. Returns
        False when no task is left.
        """
        finished = self._harvest()
        self._refill()
        if self._tasks:
            self._launch(most)
        for done, found in finished:
            done(found)
        return bool(self._tasks or self._waiting)

    def _harvest(self) -> list[tuple[Callable, SearchResult]]:
        """Wait for the running program; free the slots of finished tasks."""
        if not self._tasks:
            return []
        is_done = np.asarray(self._state.done)
        slots = [slot for slot in sorted(self._tasks) if is_done[slot]]
        if not slots:
            return []
        found = [np.asarray(leaf) for leaf in self._state.finished]
        return [
            (self._tasks.pop(slot).done, SearchResult(*(leaf[slot] for leaf in found)))
            for slot in slots
        ]

    def _refill(self) -> None:
        """Give free slots to waiting tasks once there are enough of both."""
        group = self._next_group()
        if self._tasks and len(group) < min(len(self._waiting), self._portion):
            group = []
        for _ in group:
            self._waiting.popleft()
        if self._tasks:
            self._fit(group)
            self._insert(group)
        elif group:
            self._state = None  # so that there is no second one on the device
            self._shape = self._needed_shape(group)
            self._tasks = dict(enumerate(group))
            arrays = self._arrays(group, self._shape.slots)
            ring = self._shape.ring
            self._state = self._programs.begin(self.weights, *arrays, ring)

    def _insert(self, group: Sequence[Task]) -> None:
        """Start tasks in free slots."""
        slots = self._shape.slots
        free = [slot for slot in range(slots) if slot not in self._tasks]
        size = slots if len(group) > slots // 2 else self._portion
        for begin in range(0, len(group), size):
            tasks = group[begin : begin + size]
            indices = np.full(size, slots, np.int32)  # this slot does not exist
            indices[: len(tasks)] = free[begin : begin + len(tasks)]
            self._tasks |= zip(indices.tolist(), tasks, strict=False)
            self._state = self._programs.insert(
                self.weights, self._state, indices, *self._arrays(tasks, size)
            )

    @property
    def _portion(self) -> int:
        """The number of sentences that one program inserts."""
        return max(1, self._shape.slots // REFILL)

    def _next_group(self) -> list[Task]:
        """The first waiting tasks that fit beside those in flight."""
        group: list[Task] = []
        longest = max((len(task.source) for task in self._tasks.values()), default=1)
        for task in self._waiting:
            longest = max(longest, len(task.source))
            if len(self._tasks) + len(group) >= self._most_slots(
                bucket_length(longest)
            ):
                break
            group.append(task)
        return group

    def _most_slots(self, source: int) -> int:
        """The most slots that `batch_tokens` allows: a power of two for each device."""
        each = min(MOST_SLOTS, max(1, self._batch_tokens // source // self._devices))
        return self._devices << (each.bit_length() - 1)

    def _fit(self, group: Sequence[Task]) -> None:
        """Grow the shape for a new group, or shrink it if it is far too large.

        Resizing moves data and may compile, so small changes are ignored.
        """
        new, old = self._needed_shape(group), self._shape
        most = self._most_slots(max(new.source, old.source))
        if new.slots < old.slots < 4 * new.slots and old.slots <= most:
            new = new._replace(slots=old.slots)
        if new.source < old.source < 2 * new.source and new.slots <= most:
            new = new._replace(source=old.source)
        if new.ring < old.ring < 2 * new.ring:
            new = new._replace(ring=old.ring)
        new = new._replace(prefix=max(new.prefix, old.prefix))
        if new == old:
            return
        taken = sorted(self._tasks)
        origin = np.full(new.slots, -1, np.int32)
        origin[: len(taken)] = taken
        self._state = self._programs.resize(self._state, origin, new)
        self._tasks = dict(enumerate(self._tasks[slot] for slot in taken))
        self._shape = new

    def _needed_shape(self, group: Sequence[Task]) -> Shape:
        """The smallest shape for the tasks in flight and a new group."""
        tasks = [*self._tasks.values(), *group]
        ages = self._ages() + [0] * len(group)
        source = bucket_length(max(len(task.source) for task in tasks))
        prefix = max(len(task.prefix) for task in tasks)
        slots = self._devices
        needed = min(len(tasks) + len(self._waiting), self._most_slots(source))
        while slots < needed:
            slots *= 2
        # A translation is about as long as its source; the ring grows if it is longer.
        ring = max(
            min(task.max_length, max(age + AHEAD, len(task.source)))
            for task, age in zip(tasks, ages, strict=True)
        )
        prefix = bucket_length(prefix) if prefix else 0
        return Shape(slots, source, bucket_length(ring), prefix)

    def _ages(self) -> list[int]:
        """Count the output tokens of each task in flight."""
        if not self._tasks:
            return []
        return np.asarray(self._state.ages)[list(self._tasks)].tolist()

    def _arrays(self, tasks: Sequence[Task], count: int) -> tuple[np.ndarray, Requests]:
        """Sources and requests of tasks, and of empty ones up to `count`."""
        tasks = [*tasks, *[Task((), max_length=0)] * (count - len(tasks))]
        source = pad_rows([task.source for task in tasks], self._shape.source)
        requests = Requests(
            max_lengths=np.array([task.max_length for task in tasks], np.int32),
            min_lengths=np.array([task.min_length for task in tasks], np.int32),
            prefixes=pad_rows([task.prefix for task in tasks], self._shape.prefix),
            seeds=np.array([task.seed % 2**32 for task in tasks], np.uint32),
        )
        return source, requests

    def _launch(self, most: int | None) -> None:
        shape, live = self._shape, len(self._tasks)
        steps = min(shape.ring - max(self._ages()), most or shape.ring)
        until_done = shape.slots
        if self._waiting:
            until_done = min(until_done, until_done - live + self._portion)
        elif live > shape.slots // 4:  # stop when there can be fewer slots
            until_done -= shape.slots // 4
        numbers = np.int32(steps), np.int32(until_done)
        self._state = self._programs.advance(self.weights, self._state, *numbers)
