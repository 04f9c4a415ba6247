"""Stop on SIGTERM and Ctrl-C without losing an update, also within a long compile.

Python calls a signal's handler when the main thread returns from C++. A second thread,
started by `watch_signals`, is told at once. It ends the process if the main thread is
late and nothing would be lost.
"""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from jax.experimental import multihost_utils

from jaxformer import processes
from jaxformer.files import remove_unfinished

logger = logging.getLogger(__name__)

PATIENCE = 1.0  # seconds that the main thread has to handle a signal


class StoppedError(BaseException):
    """The run was asked to stop, and all processes agreed to stop.

    Like KeyboardInterrupt it is no Exception, so that libraries do not catch it.
    """


class StopRequests:
    """Whether SIGTERM or Ctrl-C has asked to stop; all processes get the same answer.

    A second Ctrl-C interrupts at once. While a stop `loses_nothing`, since
    `saved_step()` is on disk, it raises StoppedError in the main thread of one process.
    """

    def __init__(self, saved_step: Callable[[], int] | None, labels: dict) -> None:
        self.signal: str | None = None
        self.saved_step, self._labels = saved_step, labels
        self.loses_nothing = saved_step is not None
        self._calls = 0  # of `reached`; JAX agrees on the call at which all stop
        self._interrupts = 0  # by Ctrl-C
        self._lock = threading.RLock()  # held by the thread that ends the process

    def reached(self) -> bool:
        """Whether to stop here. All processes call this equally often."""
        self._calls += 1
        if not processes.are_several():
            return self.signal is not None
        return multihost_utils.reached_preemption_sync_point(self._calls)

    def check(self) -> None:
        """Raise StoppedError if all processes stop here."""
        if self.reached():
            raise StoppedError

    @contextmanager
    def losing_nothing(self) -> Iterator[None]:
        """Let a stop within the block end the process at once."""
        before, self.loses_nothing = self.loses_nothing, True
        try:
            yield
        finally:
            self.loses_nothing = before

    def result(self, step: int) -> dict[str, Any]:
        """Log a stop after `step`; return the result of the command."""
        with self._lock:
            self.loses_nothing = False  # `end` has nothing left to do
        logger.info(
            f"stopped at step {step:,}, which is saved; the same command resumes there"
            if step
            else "stopped before the first update; the same command starts again"
        )
        return {**self._labels, "step": step, "stopped": True}

    def handle(self, number: int, _: object) -> None:
        """Handle a signal in the main thread."""
        with self._lock:
            is_first, self.signal = self.signal is None, signal.Signals(number).name
        if number == signal.SIGINT and not is_first:
            raise KeyboardInterrupt
        if self.loses_nothing and not processes.are_several():
            if is_first:  # another one does not disturb what a stop does
                raise StoppedError
            return
        logger.warning("%s: stopping at the next step", self.signal)
        if processes.are_several():  # tell JAX, which waits for SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self, number: int, print_result: Callable[[dict], object]) -> None:
        """End the process, if that loses nothing or by a second Ctrl-C.

        Called when the main thread is in C++, or a library caught `handle`'s exception.
        """
        with self._lock:  # from here on `handle` waits for the end
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                _interrupt()
            if self.loses_nothing and not processes.are_several():
                print_result(self.result(self.saved_step()))
                _end(0)


@contextmanager
def stop_requests(
    saved_step: Callable[[], int] | None = None, **labels: Any
) -> Iterator[StopRequests]:
    """Take SIGTERM and Ctrl-C as requests to stop within the block.

    `labels` are added to the result of a stopped command.
    """
    requests = StopRequests(saved_step, labels)
    # With several processes JAX handles SIGTERM and informs all of them.
    several = processes.are_several()
    numbers = [signal.SIGINT] if several else [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, requests.handle) for number in numbers}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch_signals(print_result: Callable[[dict], object]) -> None:
    """Start the thread that ends this process when the main thread is late.

    Within `stop_requests` it prints the result of the stop. Elsewhere Ctrl-C ends the
    process with code 130, unless another handler replaces Python's.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)

    def watch() -> None:
        while received := reader.recv(1):
            (number,) = received
            handler = signal.getsignal(number)
            requests = getattr(handler, "__self__", None)
            if isinstance(requests, StopRequests):
                arguments = number, print_result
                threading.Timer(PATIENCE, requests.end, arguments).start()
            elif handler is signal.default_int_handler:
                threading.Timer(PATIENCE, _interrupt).start()

    threading.Thread(target=watch, name="signals", daemon=True).start()


def _interrupt() -> NoReturn:
    processes.complain("interrupted")
    _end(130)


def _end(code: int) -> NoReturn:
    remove_unfinished()
    sys.stdout.flush()
    os._exit(code)
