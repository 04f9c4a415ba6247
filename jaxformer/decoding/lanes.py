"""Two searches that share a device, so that small requests do not wait for large ones.

Each search is an `Engine` with slots of its own. The searches take turns. While both
have work, that of small requests has two thirds of the time.
"""

import time
from typing import Any

from jaxformer.decoding.engine import Engine, Task

SMALL_REQUEST = 128  # source tokens at most
LARGE_SLOTS = 16  # of a device, for large requests: few, so that a step is short
# Seconds of a turn. Small requests begin between two turns, so turns are short while
# there are large ones. Otherwise they are long, since fewer refills are faster.
SHORT_TURN, LONG_TURN = 0.01, 0.04
# Of small and of large requests: their seconds are multiplied by these to compare the
# two searches.
WEIGHTS = 1, 2


class Lanes:
    """An engine for small requests and one for large; both use compiled programs.

    Has the methods of an engine that a server uses.
    """

    def __init__(self, engine: Engine) -> None:
        self._engines = engine, engine.limited(LARGE_SLOTS)
        self._used = [0.0, 0.0]  # seconds x weight
        self._step_seconds = [SHORT_TURN] * 2  # recent mean

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of waiting tasks and of tasks in flight."""
        small, large = (engine.load for engine in self._engines)
        return small[0] + large[0], small[1] + large[1]

    def submit(self, task: Task) -> None:
        """Queue a task for a slot, in turn as in `Engine.submit`."""
        self._engines[task.is_large].submit(task)

    def cancel(self, request: Any) -> None:
        """Drop the tasks of a request, waiting or in flight."""
        for engine in self._engines:
            engine.cancel(request)

    def advance(self, most: int) -> bool:
        """Take a turn in one search, of `most` steps at most.

        Returns False when no task is left.
        """
        busy = [lane for lane in (0, 1) if any(self._engines[lane].load)]
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
        if len(busy) == 1:  # a search that was idle gets no extra time
            self._used = [self._used[lane]] * 2
        return any(self.load)
