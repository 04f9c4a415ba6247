"""Detect lost processes; end this one with a one-line message and exit code 3.

JAX aborts a process when its connection to process 0 breaks, and blocks it for ever
when another process is lost.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from jaxformer.system.errors import EXIT_LOST

WATCH_SECONDS = 1.0  # between two checks of which processes are alive
# Process 0 ends so much later: its end aborts the others before they report anything.
LAST_SECONDS = 3.0


class Peers:
    """The state of watching other processes; there is one object, PEERS."""

    def __init__(self) -> None:
        self.name = ""  # put before messages: "process 1: "
        self.timeout = 0  # seconds after which a silent process counts as lost
        self.is_ending = threading.Event()  # this process is about to end normally
        self.has_complained = False  # a message about the failure is printed
        self.is_aborting = False  # the handler of SIGABRT runs, and ends this process
        self._handler: Any = None  # kept alive: C holds no reference

    @property
    def seconds_until_known(self) -> float:
        """The time after a failure in which `watch` reports a lost process, or 0."""
        return self.timeout and self.timeout + 5 * WATCH_SECONDS

    def await_news(self) -> None:
        """Wait, after a failure, until `watch` would have reported a lost process."""
        time.sleep(self.seconds_until_known)
        if self.is_aborting:
            time.sleep(self.seconds_until_known)

    def complain(self, what: object) -> None:
        """Print in one line what went wrong, and in which of several processes."""
        self.has_complained = True
        print(f"jaxformer: {self.name}{what}", file=sys.stderr, flush=True)

    def end(self, what: str, seconds: float = 0.0) -> NoReturn:
        """Complain and end this process after `seconds`, even in a blocking call."""
        self.complain(what)
        sys.stdout.flush()
        time.sleep(seconds)
        os._exit(EXIT_LOST)

    def watch(self, timeout: int, advice: str) -> None:
        """Start a thread that ends this process when another one is lost."""
        self.timeout = timeout

        def lost(names: str) -> str:
            return (
                f"process {names} was lost (silent for up to {timeout} s, "
                f"--peer_timeout); {advice}"
            )

        def check_regularly() -> None:
            while not self.is_ending.wait(WATCH_SECONDS):
                numbers = _lost_processes()
                if numbers and not self.is_ending.is_set():
                    self.end(
                        lost(", ".join(map(str, sorted(numbers)))),
                        seconds=0.0 if jax.process_index() else LAST_SECONDS,
                    )

        # Process 0 tells the others which process was lost, unless it was lost itself.
        self.explain_abort(
            lost("0")
            if jax.process_index()
            else f"the connection to other processes was lost; {advice}"
        )
        threading.Thread(target=check_regularly, name="peers", daemon=True).start()

    def explain_abort(self, message: str | None) -> None:
        """Let an abort by JAX or Gloo end the process with `message`; None: as usual.

        `watch` reports a lost process later than these libraries notice it, so the
        handler waits for that report and prints `message` only without one. A thread of
        C++ aborts the process before a Python handler can run, so C calls the handler.
        """
        if message is None:
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            return

        @ctypes.CFUNCTYPE(None, ctypes.c_int)
        def handler(_: int) -> None:
            self.is_aborting = True
            # During a normal end, process 0 may end first, which aborts the others.
            if self.is_ending.wait(self.seconds_until_known):
                os._exit(0)
            if self.has_complained:
                time.sleep(LAST_SECONDS)  # `end` exits first
            else:
                os.write(2, f"jaxformer: {self.name}{message}\n".encode())
            os._exit(EXIT_LOST)

        self._handler = handler
        ctypes.CDLL(None).signal(signal.SIGABRT, handler)


def _lost_processes() -> set[int]:
    """Ask JAX, which misses a process that sent no heartbeat for `timeout` seconds."""
    try:
        with multihost_utils.live_devices(jax.devices()) as live:
            lost = {*jax.devices()} - {*live}
    except multihost_utils.ProcessFailureError as error:
        lost = error.failed_devices
    except Exception:  # the coordinator, process 0, cannot be reached
        return {0}
    return {device.process_index for device in lost}


PEERS = Peers()
