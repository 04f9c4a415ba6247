"""Requests to stop, by SIGTERM, SIGHUP or Ctrl-C, which all follow at one place."""

import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jax.experimental import multihost_utils

from jaxformer.system import processes, progress
from jaxformer.system.errors import EXIT_INTERRUPTED, StoppedError

logger = logging.getLogger(__name__)
_HANGUP = getattr(signal, "SIGHUP", None)  # which Windows lacks


class StopRequests:
    """Whether a signal has asked to stop; all processes get the same answer.

    A second Ctrl-C interrupts at once. While all updates are on disk (`all_saved`) and
    there is one process, whatever reports its progress stops, by StoppedError.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self.all_saved = False
        self._calls = 0  # of `reached`; JAX agrees on the call at which all stop

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
    def stopping_at_once(self) -> Iterator[None]:
        """Let a stop within the block, or already asked for, raise StoppedError."""
        before, self.all_saved = self.all_saved, True
        try:
            self._check_progress()
            yield
            self._check_progress()
        finally:
            self.all_saved = before

    def _check_progress(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if self.all_saved and is_main and not processes.are_several():
            self.check()

    def _note(self, number: int, _: object) -> None:
        if number == _HANGUP:  # writing to the terminal would fail
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                if stat.S_ISCHR(os.fstat(stream).st_mode):
                    os.dup2(nowhere, stream)
        first = self.signal is None
        self.signal = self.signal or signal.Signals(number).name
        if number == signal.SIGINT and not first:
            raise KeyboardInterrupt
        again = "; Ctrl-C again ends at once, unsaved" * (number == signal.SIGINT)
        logger.warning("%s: stopping at the next step%s", self.signal, again)
        if processes.are_several():  # tell JAX, which waits for SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)

    def _end_at_second(self, signals: int) -> None:
        """End the process at a second Ctrl-C within one program of a CPU.

        Python calls its handlers between programs. `signals` is a pipe of their
        numbers; returns when it is closed.
        """
        count = 0
        with open(signals, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                count += number[0] == signal.SIGINT
                if count > 1 and self.signal is None:
                    print("\njaxformer: interrupted", file=sys.stderr, flush=True)
                    os._exit(EXIT_INTERRUPTED)


@contextmanager
def interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within the block, or else at its end.

    Python drops an exception that a handler raises in a callback, such as those of JAX
    while it compiles. It is then raised where work advances.
    """
    is_asked = False

    def note(*_: object) -> None:
        nonlocal is_asked
        is_asked = True
        raise KeyboardInterrupt

    def check() -> None:
        if is_asked and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        with progress.checked(check):
            yield
        check()
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Take SIGTERM, Ctrl-C and SIGHUP as requests to stop within the block."""
    requests = StopRequests()
    # With several processes JAX handles SIGTERM and informs all of them.
    numbers = [signal.SIGINT]
    if _HANGUP and signal.getsignal(_HANGUP) != signal.SIG_IGN:  # `nohup` sets it
        numbers.append(_HANGUP)
    if not processes.are_several():
        numbers.append(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # Python handles signals in the main thread alone
    before = {number: signal.signal(number, requests._note) for number in numbers}
    pipe = os.pipe()
    os.set_blocking(pipe[1], False)
    earlier_pipe = signal.set_wakeup_fd(pipe[1]) if numbers else None
    watch = threading.Thread(target=requests._end_at_second, args=pipe[:1], daemon=True)
    watch.start()
    try:
        with progress.checked(requests._check_progress):
            yield requests
    finally:
        if numbers:
            signal.set_wakeup_fd(earlier_pipe)
        os.close(pipe[1])
        for number, earlier in before.items():
            signal.signal(number, earlier)
