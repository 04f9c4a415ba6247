"""Searches that run at once on a CPU, each in a thread.

The small operations of a search and its host work leave cores idle, which a second
search uses: docs/speed.md has figures.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import jax

from jaxformer.decoding.engine import Engine, Task
from jaxformer.decoding.slots import SlotPrograms
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
    """`count` engines that divide the tasks, and one for those with phrases.

    `batch_tokens` and MOST_SLOTS bound all engines together, and that one alone.
    """

    def __init__(self, programs: SlotPrograms, batch_tokens: int, count: int) -> None:
        self._few = FEW // programs.options.beam_size  # tasks
        self._make = functools.partial(Engine, programs, batch_tokens)
        self.engines = [self._make(sharing=count) for _ in range(count)]
        self.phrased = self._make(with_phrases=True)

    def run(self, tasks: Sequence[Task], check_stop: Callable[[], None]) -> None:
        """Run tasks, as `run_searches` does; drop them if it raises.

        Their `done` may be called in any thread.
        """
        engines = self.engines
        plain = [task for task in tasks if not task.phrases]
        longest = max([0, *(len(task.source) for task in plain)])
        fit = len(plain) * longest <= engines[0].shapes.batch_tokens
        chosen = engines[:1] if fit and len(plain) <= self._few else engines
        try:
            for task, engine in zip(plain, itertools.cycle(chosen), strict=False):
                engine.submit(task)
            for task in tasks:
                if task.phrases:
                    self.phrased.submit(task)
            run_searches([each for each in engines if any(each.load)], check_stop)
            run_searches([self.phrased], check_stop)
        except BaseException:
            # A thread may still use the old engines.
            self.engines = [self._make(sharing=len(engines)) for _ in engines]
            self.phrased.clear()
            raise


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
