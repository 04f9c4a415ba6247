"""Searches that share a device, so that small requests do not wait for large ones.

Each search is an `Engine` with slots of its own. The searches take turns:

- small requests have one share of the time
- texts with phrases have one share
- large requests have half a share
"""

import time
from typing import Any

from jaxformer.decoding.engine import Engine
from jaxformer.decoding.tasks import Task

SMALL_REQUEST = 128  # source tokens at most
LARGE_SLOTS = 16  # of a device, for large requests: few, so that a step is short
# Seconds of a turn. Small requests begin between two turns, so turns are short while
# there are large ones. Otherwise they are long, since fewer refills are faster.
SHORT_TURN, LONG_TURN = 0.01, 0.04
# Of small requests, of large ones, and of texts with phrases: their seconds are
# multiplied by these to compare the searches.
WEIGHTS = 1, 2, 1


class Lanes:
    """Engines for small requests, large requests, and texts with phrases.

    All use compiled programs. Has the methods of an engine that a server uses.
    """

    def __init__(self, engine: Engine, phrased: Engine) -> None:
        self._engines = engine, engine.limited(LARGE_SLOTS), phrased
        self._used = [0.0] * 3  # seconds x weight
        self._step_seconds = [SHORT_TURN] * 3  # recent mean

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of waiting tasks and of tasks in flight."""
        waiting, in_flight = zip(
            *(engine.load for engine in self._engines), strict=True
        )
        return sum(waiting), sum(in_flight)

    def submit(self, task: Task) -> None:
        """Queue a task for a slot, in turn as in `Engine.submit`."""
        self._engines[2 if task.phrases else task.is_large].submit(task)

    def cancel(self, request: Any) -> None:
        """Drop the tasks of a request, waiting or in flight."""
        for engine in self._engines:
            engine.cancel(request)

    def advance(self, most: int) -> bool:
        """Take a turn in one search, of `most` steps at most.

        Returns False when no task is left.
        """
        busy = [lane for lane, engine in enumerate(self._engines) if any(engine.load)]
        if not busy:
            return False
        lane = min(busy, key=self._used.__getitem__)  # of equals, the small requests
        start = time.monotonic()
        turn = LONG_TURN if busy == [0] else SHORT_TURN
        steps = max(1, min(most, round(turn / self._step_seconds[lane])))
        self._engines[lane].advance(steps)
        self._engines[lane].wait()
        seconds = time.monotonic() - start
        self._step_seconds[lane] = (self._step_seconds[lane] + seconds / steps) / 2
        self._used[lane] += seconds * WEIGHTS[lane]
        least = min(self._used[lane] for lane in busy)
        for idle in {*range(len(self._engines))} - {*busy}:
            self._used[idle] = least  # it gets no extra time afterwards
        return any(self.load)
