"""Continuous batching: a search in which new sentences replace finished ones.

The life of a sentence, a `Task`:

1. `Engine.submit` queues it: requests take turns, and a request's tasks are in order.
2. `advance` gives it one of the B slots of a batch, once there are enough free slots
   and waiting tasks, or none is in flight. Its source is encoded there.
3. The slots have a shape (slots, source length, ring length), for which all programs
   are compiled. It grows and shrinks with the tasks in flight, as `shapes.py` says, and
   the task moves along.
4. All slots take steps together, in one program (`slots.py`), until enough are done.
5. The next `advance` starts the next program, then passes the result to `Task.done`. So
   the host turns results into text while the device takes steps.
"""

import bisect
import functools
import itertools
import operator
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import NamedTuple

import jax
import numpy as np

from jaxformer.decoding.phrases import phrase_arrays
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.search import SearchResult, SearchState
from jaxformer.decoding.shapes import ProgramShape, Shapes
from jaxformer.decoding.slots import SlotPrograms
from jaxformer.models.sequence_model import Memory
from jaxformer.tokens import pad_rows

AHEAD = 8  # steps that a ring must have room for when it starts
# A refill fills 1 / REFILL of the slots, or the lesser of a quarter and FEWEST if that
# is more: each refill takes the host milliseconds.
REFILL, FEWEST = 8, 8
POLL = 0.1  # seconds between two calls of `check_stop`
FEW = 16  # hypotheses; for so few one search is faster: each reads all weights


class Task(NamedTuple):
    """A sentence to decode."""

    source: Sequence[int]  # ids, EOS last
    max_length: int  # of the translation, EOS included
    min_length: int = 0
    prefix: Sequence[int] = ()
    seed: int = 0
    done: Callable[[SearchResult], None] | None = None  # gets NumPy arrays [W, ...]
    request: object = None  # whose tasks are cancelled together
    turn: float = 0.0  # tokens of the request's earlier sources; see `submit`
    phrases: Sequence[Sequence[int]] = ()  # `distinct` ones that it contains
    text: str = ""  # of the source, its tag included
    unscored: int = 0  # tokens of the prefix that log P does not count


class Engine:
    """Slots, the tasks in them, and the waiting tasks.

    `batch_tokens` and `sharing` are as for `Shapes`. Engines may share `programs`. Only
    an engine `with_phrases` takes tasks that have any.
    """

    def __init__(
        self,
        programs: SlotPrograms,
        batch_tokens: int,
        *,
        sharing: int = 1,
        with_phrases: bool = False,
    ) -> None:
        self.shapes = Shapes(batch_tokens, programs.devices, sharing)
        self._programs, self._with_phrases = programs, with_phrases
        self.clear()

    def clear(self) -> None:
        """Drop all tasks, waiting or in flight."""
        self._waiting: list[Task] = []  # by turn
        self._turn = 0.0  # source tokens that each request has started by turns
        self._tasks: dict[int, Task] = {}  # by slot
        self._state: SearchState | None = None
        self._shape = ProgramShape(0, 0, 0)
        # Advances since each size was as needed.
        self._too_large = ProgramShape(0, 0, 0)

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
        task = task._replace(turn=self._turn + task.turn)
        bisect.insort(self._waiting, task, key=operator.attrgetter("turn"))

    def cancel(self, request: object) -> None:
        """Drop the tasks of a request, waiting or in flight.

        Their slots are free at once; nothing reads what these rows still compute.
        """
        self._waiting = [task for task in self._waiting if task.request is not request]
        for slot in [k for k, task in self._tasks.items() if task.request is request]:
            del self._tasks[slot]

    def compile(self, shape: ProgramShape) -> None:
        """Run all programs of a shape, without tasks, and use it afterwards.

        Call it for the shapes in the order of `Shapes.limit`.
        """
        self.shapes.add(shape)
        if shape.slots <= self.shapes.most_slots(shape.source):
            self._begin([], shape)
        else:  # only reached from fewer slots: the shape before
            self._resize(shape)
        self._insert([], [])
        self._take_steps(0, 0)
        others = {*self.shapes.all} - {shape}
        for neighbour in sorted({self.shapes.next(shape, other) for other in others}):
            self._resize(neighbour)
            self._resize(shape)

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

    def _harvest(self) -> list[tuple[Callable[[SearchResult], None], SearchResult]]:
        """Wait for the running program; free the slots of finished tasks."""
        is_done = np.asarray(self._state.done) if self._tasks else ()
        slots = [slot for slot in sorted(self._tasks) if is_done[slot]]
        found = [np.asarray(leaf) for leaf in self._state.finished] if slots else []
        return [
            (self._tasks.pop(slot).done, SearchResult(*(leaf[slot] for leaf in found)))
            for slot in slots
        ]

    def _refill(self) -> None:
        """Give free slots to waiting tasks once there are enough of both."""
        count = self._number_that_fits()
        if self._tasks and count < min(len(self._waiting), self._portion):
            count = 0
        tasks = self._waiting[:count]
        started = sum(len(task.source) for task in tasks)
        self._turn += started / max(1, len(self._waiting))
        self._turn = max([self._turn, *(task.turn for task in tasks)])
        del self._waiting[:count]
        if self._tasks:
            self._fit(tasks)
            free = sorted({*range(self._shape.slots)} - {*self._tasks})
            for begin in range(0, count, self._portion):
                self._insert(tasks[begin : begin + self._portion], free[begin:])
            return
        self._state = None  # free the device memory of the search that ended
        if tasks:
            self._too_large = ProgramShape(0, 0, 0)
            self.shapes.begin()
            self._begin(tasks, self._needed_shape(tasks))

    def _begin(self, tasks: Sequence[Task], shape: ProgramShape) -> None:
        """Start a new search with these tasks."""
        self._shape, self._tasks = shape, dict(enumerate(tasks))
        memory, requests = self._encoded(tasks, shape.slots)
        self._state = self._programs.begin(memory, requests, shape.ring)

    def _insert(self, tasks: Sequence[Task], free: Sequence[int]) -> None:
        """Start at most a portion of tasks in the first of the free slots."""
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

    def _number_that_fits(self) -> int:
        """Count the next waiting tasks that fit beside those in flight."""
        source = max((len(task.source) for task in self._tasks.values()), default=1)
        prefix = 0
        for count, task in enumerate(self._waiting):
            source = max(source, len(task.source))
            prefix = max(prefix, len(task.prefix))
            if len(self._tasks) + count >= self.shapes.room(source, prefix):
                return count
        return len(self._waiting)

    def _fit(self, group: Sequence[Task]) -> None:
        """Grow the shape for a new group, or shrink it if it is far too large."""
        new, old = self._needed_shape(group), self._shape
        too_large = zip(map(operator.lt, new, old), self._too_large, strict=True)
        ages = ProgramShape(*(age + 1 if is_less else 0 for is_less, age in too_large))
        self._too_large = ages
        new = self.shapes.fitted(old, new, ages, len(self._waiting))
        while new != self._shape:
            self._resize(self.shapes.next(self._shape, new))

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
        needed = max(len(tasks), min(count, self.shapes.room(source, ring)))
        return self.shapes.smallest(needed, source, ring)

    def _ages(self) -> list[int]:
        """Count the output tokens of each task in flight."""
        if not self._tasks:
            return []
        return np.asarray(self._state.ages)[list(self._tasks)].tolist()

    def _encoded(self, tasks: Sequence[Task], count: int) -> tuple[Memory, Requests]:
        """Encode the sources of tasks; return the memory and requests of `count` slots.

        Slots without a task have empty ones.
        """
        tasks = [*tasks, *[Task((), max_length=0)] * (count - len(tasks))]
        phrases = [task.phrases for task in tasks]
        requests = Requests(
            max_lengths=np.array([task.max_length for task in tasks], np.int32),
            min_lengths=np.array([task.min_length for task in tasks], np.int32),
            prefixes=pad_rows([task.prefix for task in tasks], self._shape.ring),
            unscored=np.array([task.unscored for task in tasks], np.int32),
            seeds=np.array([task.seed % 2**32 for task in tasks], np.uint32),
            phrases=phrase_arrays(phrases) if self._with_phrases else None,
        )
        source = pad_rows([task.source for task in tasks], self._shape.source)
        return self._programs.encode(self._programs.weights, source), requests

    def _launch(self, most: int | None) -> None:
        shape, live = self._shape, len(self._tasks)
        steps = min(shape.ring - max(self._ages()), most or shape.ring)
        until_done = shape.slots
        if self._waiting:
            until_done = min(until_done, until_done - live + self._portion)
        elif live > shape.slots // 4:  # stop when there can be fewer slots
            until_done -= shape.slots // 4
        self._take_steps(steps, until_done)

    def _take_steps(self, *numbers: int) -> None:
        given = self._programs.weights, self._state, *map(np.int32, numbers)
        self._state = self._programs.advance(*given)


def run_tasks(
    programs: SlotPrograms,
    tasks: Sequence[Task],
    *,
    batch_tokens: int,
    searches: int,
    check_stop: Callable[[], None],
) -> None:
    """Divide tasks among engines, and run them as `run_searches` does.

    `batch_tokens` and MOST_SLOTS bound all `searches` together. Tasks with phrases have
    an engine of their own, which runs afterwards.
    """
    make = functools.partial(Engine, programs, batch_tokens)
    engines, phrased = [make(sharing=searches)], make(with_phrases=True)
    lengths = [len(task.source) for task in tasks if not task.phrases]
    are_few = len(lengths) * programs.options.beam_size <= FEW
    if not are_few or len(lengths) * max(lengths, default=0) > batch_tokens // searches:
        engines += [make(sharing=searches) for _ in range(1, searches)]
    turns = itertools.cycle(engines)
    for task in tasks:
        (phrased if task.phrases else next(turns)).submit(task)
    run_searches([each for each in engines if any(each.load)], check_stop)
    run_searches([phrased], check_stop)


def run_searches(engines: Sequence[Engine], check_stop: Callable[[], None]) -> None:
    """Advance all engines until none has a task left.

    One engine runs in this thread, several in a thread each: on a CPU the small
    operations of a search and its host work leave cores idle (docs/speed.md has
    figures). `Task.done` may be called in any of them. `check_stop` is called in this
    thread and may raise. An exception ends all searches, but a program that runs or is
    compiled is not waited for, so do not use several engines after it.
    """
    if len(engines) < 2:
        for engine in engines:
            while engine.advance():
                check_stop()
        return
    is_over = threading.Event()

    def run(engine: Engine) -> None:
        while not is_over.is_set() and engine.advance():
            pass

    pool = ThreadPoolExecutor(len(engines))
    try:
        running = {pool.submit(run, engine) for engine in engines}
        while running:
            done, running = wait(running, POLL, FIRST_EXCEPTION)
            for each in done:
                each.result()
            check_stop()
    finally:
        is_over.set()
        pool.shutdown(wait=False)
