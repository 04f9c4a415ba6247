"""Continuous batching: a search in which new sentences replace finished ones.

A batch of B slots takes steps. When enough sentences are done, waiting ones take their
slots. The device runs one compiled program for each of a few shapes (slots, source
length, ring length), which grow and shrink by buckets with the sentences in flight.
`Engine.compile` limits them to fewer, all compiled, as a server needs. Meanwhile the
host turns results into text.
"""

import copy
import heapq
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import SearchResult, SearchState
from jaxformer.decoding.shapes import ProgramShape, Shapes
from jaxformer.decoding.slots import SlotPrograms
from jaxformer.decoding.tasks import Task, as_arrays

AHEAD = 8  # steps that a ring must have room for when it starts
# A refill fills 1 / REFILL of the slots, or the lesser of a quarter and FEWEST if that
# is more: each refill takes the host milliseconds.
REFILL, FEWEST = 8, 8


class _Waiting(NamedTuple):
    """A task in the queue, which is ordered by turn, then by number."""

    turn: float
    number: int
    task: Task


class Engine:
    """Slots, the tasks in them, and the waiting tasks.

    `batch_tokens` bounds slots x source length, padding included, except that each
    device has at least one slot and that a search in progress may grow to the largest
    of limited shapes. `rows` shards the slots over the devices of this
    process; None: one device. Only an engine `with_phrases` takes tasks that have any.
    Replace `weights` only while no task is in flight.
    """

    def __init__(
        self,
        scorer: Scorer,
        options: SearchOptions,
        *,
        batch_tokens: int,
        rows: jax.sharding.NamedSharding | None,
        with_phrases: bool = False,
    ) -> None:
        self._with_phrases = with_phrases
        self.weights: Any = None
        self._devices = 1 if rows is None else rows.num_devices
        self._shapes = Shapes(batch_tokens, self._devices)
        self._programs = SlotPrograms(scorer, options, rows)
        self.clear()

    def clear(self) -> None:
        """Drop all tasks, waiting or in flight."""
        self._waiting: list[_Waiting] = []  # a heap
        self._numbers = itertools.count()
        self._turn = 0.0  # source tokens that each request has started by turns
        self._tasks: dict[int, Task] = {}  # by slot
        self._state: SearchState | None = None
        self._shape = ProgramShape(0, 0, 0)
        # Advances since each size was as needed.
        self._too_large = ProgramShape(0, 0, 0)

    def release(self) -> None:
        """Drop the weights and the last state; there must be no task in flight."""
        self.weights = self._state = None

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of waiting tasks and of tasks in flight."""
        return len(self._waiting), len(self._tasks)

    def submit(self, task: Task) -> None:
        """Queue a task for a slot.

        Tasks start in the order of their turns. A task's turn is the number of source
        tokens before it in its own request, plus the turn in progress when the request
        was submitted. Turns advance with the work done, so later requests cannot delay
        a task for ever.
        """
        turn = self._turn + task.before
        heapq.heappush(self._waiting, _Waiting(turn, next(self._numbers), task))

    def cancel(self, request: object) -> None:
        """Drop the tasks of a request, waiting or in flight.

        Their slots are free at once; nothing reads what these rows still compute.
        """
        self._waiting = [e for e in self._waiting if e.task.request is not request]
        heapq.heapify(self._waiting)
        for slot, task in list(self._tasks.items()):
            if task.request is request:
                del self._tasks[slot]

    def limit(
        self, *, source: int, output: int, slots: int, is_one: bool = False
    ) -> list[ProgramShape]:
        """Use few shapes afterwards, and return them, for `compile` in this order.

        The arguments bound the tokens of a task's source and output, and the slots of
        each device. `is_one`: use one shape alone.
        """
        return self._shapes.limit(source, output, slots, is_one)

    def compile(self, shape: ProgramShape) -> None:
        """Run all programs of a shape without tasks."""
        if shape.slots <= self._shapes.most_slots(shape.source):
            self._shape = shape
            self._begin([])
        else:  # only reached from fewer slots: the shape before
            self._resize(shape)
        self._insert_portion([], [])
        self._take_steps(0, 0)
        state = self._state
        for neighbour in self._shapes.neighbours(shape):
            self._resize(neighbour)
            self._state, self._shape = state, shape

    def limited(self, slots: int) -> "Engine":
        """Return an idle engine with the same programs and fewer slots of a device."""
        engine = copy.copy(self)
        engine._shapes = copy.copy(self._shapes)
        engine._shapes.most = min(slots, self._shapes.most)
        engine.clear()
        return engine

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

    def wait(self) -> None:
        """Wait for the running program."""
        jax.block_until_ready(self._state)

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
        enough = min(len(self._waiting) + len(group), self._portion)
        if self._tasks and len(group) < enough:
            for each in group:
                heapq.heappush(self._waiting, each)
            group = []
        tasks = [each.task for each in group]
        started = sum(len(task.source) for task in tasks)
        self._turn += started / max(1, len(self._waiting) + len(tasks))
        self._turn = max([self._turn, *(each.turn for each in group)])
        if self._tasks:
            self._fit(tasks)
            self._insert(tasks)
        elif tasks:
            self._state = None  # so that there is no second one on the device
            self._too_large = ProgramShape(0, 0, 0)
            self._shapes.begin()
            self._shape = self._needed_shape(tasks)
            self._begin(tasks)

    def _begin(self, group: Sequence[Task]) -> None:
        self._tasks = dict(enumerate(group))
        memory, requests = self._encoded(group, self._shape.slots)
        self._state = self._programs.begin(memory, requests, self._shape.ring)

    def _insert(self, group: Sequence[Task]) -> None:
        """Start tasks in free slots."""
        slots, size = self._shape.slots, self._portion
        free = [slot for slot in range(slots) if slot not in self._tasks]
        for begin in range(0, len(group), size):
            self._insert_portion(group[begin : begin + size], free[begin:])

    def _insert_portion(self, tasks: Sequence[Task], free: Sequence[int]) -> None:
        size = self._portion
        indices = np.full(size, self._shape.slots, np.int32)  # this slot does not exist
        indices[: len(tasks)] = free[: len(tasks)]
        self._tasks |= zip(indices.tolist(), tasks, strict=False)
        begun = self._encoded(tasks, size)
        self._state = self._programs.insert(self._state, indices, *begun)

    @property
    def _portion(self) -> int:
        """The number of sentences that one program inserts."""
        slots = self._shape.slots
        return max(1, slots // REFILL, min(FEWEST, slots // 4))

    def _next_group(self) -> list[_Waiting]:
        """Take the next waiting tasks that fit beside those in flight."""
        group: list[_Waiting] = []
        source = max((len(task.source) for task in self._tasks.values()), default=1)
        prefix = 0
        while self._waiting:
            task = self._waiting[0].task
            source = max(source, len(task.source))
            prefix = max(prefix, len(task.prefix))
            taken = len(self._tasks) + len(group)
            if taken >= self._shapes.room(source, prefix):
                break
            group.append(heapq.heappop(self._waiting))
        return group

    def _fit(self, group: Sequence[Task]) -> None:
        """Grow the shape for a new group, or shrink it if it is far too large."""
        new, old = self._needed_shape(group), self._shape
        too_large = zip(map(operator.lt, new, old), self._too_large, strict=True)
        ages = ProgramShape(*(age + 1 if is_less else 0 for is_less, age in too_large))
        self._too_large = ages
        new = self._shapes.fitted(old, new, ages, len(self._waiting))
        while new != self._shape:
            self._resize(self._shapes.next(self._shape, new))

    def _resize(self, new: ProgramShape) -> None:
        taken = sorted(self._tasks)
        origin = np.full(new.slots, -1, np.int32)
        origin[: len(taken)] = taken
        self._state = self._programs.resize(self._state, origin, new)
        self._tasks = dict(enumerate(self._tasks[slot] for slot in taken))
        self._shape = new

    def _needed_shape(self, group: Sequence[Task]) -> ProgramShape:
        """The smallest shape for the tasks in flight and a new group."""
        tasks = [*self._tasks.values(), *group]
        ages = self._ages() + [0] * len(group)
        # A translation is about as long as its source; the ring grows if it is longer.
        # A ring also holds the prefix.
        ring = max(
            min(task.max_length, max(age + AHEAD, len(task.source), len(task.prefix)))
            for task, age in zip(tasks, ages, strict=True)
        )
        source = max(len(task.source) for task in tasks)
        count = len(tasks) + len(self._waiting)
        needed = max(len(tasks), min(count, self._shapes.room(source, ring)))
        return self._shapes.smallest(needed, source, ring)

    def _ages(self) -> list[int]:
        """Count the output tokens of each task in flight."""
        if not self._tasks:
            return []
        return np.asarray(self._state.ages)[list(self._tasks)].tolist()

    def _encoded(self, tasks: Sequence[Task], count: int) -> tuple[Any, Requests]:
        """Encode the sources of tasks; return the memory and requests of `count` slots.

        Slots without a task have empty ones.
        """
        sizes = {"count": count, "source": self._shape.source}
        sizes |= {"output": self._shape.ring, "with_phrases": self._with_phrases}
        source, requests = as_arrays(tasks, **sizes)
        return self._programs.encode(self.weights, source), requests

    def _launch(self, most: int | None) -> None:
        shape, live = self._shape, len(self._tasks)
        steps = min(shape.ring - max(self._ages()), most or shape.ring)
        until_done = shape.slots
        if self._waiting:
            until_done = min(until_done, until_done - live + self._portion)
        elif live > shape.slots // 4:  # stop when there can be fewer slots
            until_done -= shape.slots // 4
        self._take_steps(steps, until_done)

    def _take_steps(self, steps: int, until_done: int) -> None:
        numbers = np.int32(steps), np.int32(until_done)
        self._state = self._programs.advance(self.weights, self._state, *numbers)
