"""Searches that run at once on a CPU, each in a thread.

The small operations of a search leave cores idle, and so does its host work. A second
search fills them: docs/speed.md has figures.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import jax

from jaxformer import processes
from jaxformer.decoding.engine import Engine

POLL = 0.1  # seconds between two calls of `check_stop` while other threads work


def best_count(mesh: jax.sharding.Mesh) -> int:
    """Return how many searches to run at once: 2 on one CPU, otherwise 1."""
    (*others, device) = mesh.devices.flat
    is_cpu = not others and device.platform == "cpu"
    return 2 if is_cpu and processes.usable_cores() > 1 else 1


def finish(engines: Sequence[Engine], check_stop: Callable[[], None]) -> None:
    """Advance all engines until none has a task left.

    The first engine runs in this thread, each other one in a thread of its own.
    `check_stop` is called in this thread, between two programs, and may raise: then the
    others end too.
    """
    is_over = threading.Event()

    def advance(engine: Engine, check: Callable[[], None] = lambda: None) -> None:
        try:
            while not is_over.is_set() and engine.advance():
                check()
        except BaseException:
            is_over.set()
            raise

    first, *others = engines
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        running = {pool.submit(advance, engine) for engine in others}
        advance(first, check_stop)
        try:
            while running:
                done, running = wait(running, timeout=POLL)
                for each in done:
                    each.result()
                check_stop()
        finally:
            is_over.set()
