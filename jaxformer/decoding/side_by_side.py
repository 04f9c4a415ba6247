"""Searches that run at once on a CPU, each in a thread.

The small operations of a search and its host work leave cores idle, which a second
search uses: docs/speed.md has figures.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import jax

from jaxformer.decoding.engine import Engine
from jaxformer.decoding.shapes import MOST_SLOTS
from jaxformer.decoding.tasks import Task
from jaxformer.system.cores import usable_cores

POLL = 0.1  # seconds between two calls of `check_stop`
FEW = 16  # hypotheses, for which one search is faster: each reads all weights


def number_of_searches(mesh: jax.sharding.Mesh) -> int:
    """Return how many searches may run at once: 2 on the cores of a CPU, otherwise 1.

    Several processes may share the cores, so each of them has one search.
    """
    if mesh.size > 1 or mesh.devices.item().platform != "cpu":
        return 1
    return 2 if jax.process_count() == 1 and usable_cores() > 1 else 1


class Searches:
    """Engines that divide the tasks, and one for those with phrases.

    `make` makes an engine from its arguments `batch_tokens` and `with_phrases`.
    `batch_tokens` and MOST_SLOTS bound all engines together, and that one alone.
    `width` is W, the hypotheses of a task.
    """

    def __init__(
        self, make: Callable[..., Engine], batch_tokens: int, count: int, width: int
    ) -> None:
        self._width, self._tokens = width, max(1, batch_tokens // count)
        engine = make(batch_tokens=self._tokens)
        self.engines = [engine.limited(MOST_SLOTS // count) for _ in range(count)]
        self.phrased = make(batch_tokens=batch_tokens, with_phrases=True)

    def set_weights(self, weights: Any) -> None:
        """Replace the weights of all engines, which must be idle."""
        for engine in (*self.engines, self.phrased):
            engine.weights = weights

    def release(self) -> None:
        """Drop the weights and what else idle engines hold on the devices."""
        for engine in (*self.engines, self.phrased):
            engine.release()

    def run(self, tasks: Sequence[Task], check_stop: Callable[[], None]) -> None:
        """Run tasks, as `run_searches` does; drop them if it raises.

        Their `done` may be called in any thread.
        """
        try:
            self._divide([task for task in tasks if not task.phrases])
            for task in tasks:
                if task.phrases:
                    self.phrased.submit(task)
            run_searches([each for each in self.engines if any(each.load)], check_stop)
            run_searches([self.phrased], check_stop)
        except BaseException:
            # A thread may still use the old engines.
            self.engines = [engine.limited(MOST_SLOTS) for engine in self.engines]
            self.phrased.clear()
            raise

    def _divide(self, tasks: Sequence[Task]) -> None:
        """Give tasks to all engines, or to one if they are few and fit together."""
        longest = max([0, *(len(task.source) for task in tasks)])
        are_few = len(tasks) * self._width <= FEW
        fit = len(tasks) * longest <= self._tokens
        engines = self.engines[:1] if are_few and fit else self.engines
        for task, engine in zip(tasks, itertools.cycle(engines), strict=False):
            engine.submit(task)


def run_searches(engines: Sequence[Engine], check_stop: Callable[[], None]) -> None:
    """Advance all engines until none has a task left.

    One engine runs in this thread, several in a thread each. `check_stop` is called in
    this thread and may raise. An exception ends all searches, but a program that runs
    or is compiled is not waited for, so do not use several engines after it.
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
