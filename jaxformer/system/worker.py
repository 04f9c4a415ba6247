"""Run functions in other Python processes, which end with this one.

A function is given by name, such as "jaxformer.text.cleaning:clean_chunk", so that only
the other process imports its module. Values are pickled. As a program this module is
such a process.
"""

import os
import pickle
import queue
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pkgutil import resolve_name
from subprocess import PIPE, Popen
from typing import Any

from jaxformer.system.errors import InputError


class Worker:
    """A process that computes `function(*state, item)` for one item after the other.

    As a context manager, it kills the process at the end of the block.
    """

    def __init__(self, function: str, *state: object) -> None:
        command = [sys.executable, "-P", "-m", "jaxformer.system.worker"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._function = function
        self._waiting: list[object] = [(function, state)]
        self._process = Popen(command, env=environment, stdin=PIPE, stdout=PIPE)

    def __enter__(self) -> "Worker":
        return self

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def __exit__(self, *_: object) -> None:
        self.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def send(self, item: object) -> None:
        """Send an item. If the process has ended, `receive` raises."""
        self._waiting.append(item)
        with suppress(BrokenPipeError):
            while self._waiting:
                value = self._waiting.pop(0)
                pickle.dump(value, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()

    def receive(self) -> Any:
        """Wait for the result of the oldest item that has none.

        Raises what the function raised, and InputError if the process was killed.
        """
        try:
            result, error = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise InputError(
                f"the process of {self._function} ended with code "
                f"{self._process.wait()} (-9 may be for lack of memory); see the "
                "messages above"
            ) from None
        if error is not None:
            raise error
        return result


def ordered_map(
    function: str, state: tuple, items: Iterable, *, processes: int
) -> Iterator[Any]:
    """Yield `function(*state, item)` for each item, in order.

    At most 2 `processes` + 1 items are read ahead. One process is this one. Raises as
    `Worker.receive` does.
    """
    if processes == 1:
        compute = resolve_name(function)
        yield from (compute(*state, item) for item in items)
        return
    workers: list[Worker] = []
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def compute_elsewhere(item: object) -> object:
        worker = idle.get()
        try:
            worker.send(item)
            return worker.receive()
        finally:
            idle.put(worker)

    pool, pending = ThreadPoolExecutor(processes), deque[Future]()
    try:
        for _ in range(processes):
            workers.append(Worker(function, *state))
            idle.put(workers[-1])
        for item in items:
            pending.append(pool.submit(compute_elsewhere, item))
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for worker in workers:
            worker.kill()
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.__exit__()


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    given, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints is no answer
    name, state = pickle.load(given)
    function = resolve_name(name)
    while True:
        try:
            item = pickle.load(given)
        except (EOFError, pickle.UnpicklingError):  # the parent has ended
            return
        try:
            answer = function(*state, item), None
        except MemoryError:
            answer = None, InputError(f"a process of {name} has too little memory")
        except Exception as error:
            error.add_note(traceback.format_exc())  # of this process
            answer = None, error
        with suppress(BrokenPipeError):
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()


if __name__ == "__main__":
    _serve()
