"""Detect lost processes; end this one with a one-line message and exit code 3.

When a process is lost, JAX blocks the others for ever, or aborts them: see
`jaxformer.system.supervisor`.
"""

import os
import sys
import threading
import time
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

from jaxformer.system.errors import EXIT_LOST, broken, printable
from jaxformer.system.supervisor import explain_abort

WATCH_SECONDS = 1.0  # between two checks of which processes are alive
# Process 0 ends so much later: its end aborts the others before they report anything.
LAST_SECONDS = 3.0


class Peers:
    """The state of watching other processes; there is one object, PEERS."""

    def __init__(self) -> None:
        self.name = ""  # put before messages: "process 1: "
        self.timeout = 0  # seconds after which a silent process counts as lost
        self._is_ending = threading.Event()  # this process is about to end normally

    def await_news(self) -> None:
        """Wait, after a failure, until `watch` would have reported a lost process."""
        time.sleep(self.timeout and self.timeout + 5 * WATCH_SECONDS)

    def complain(self, what: object) -> None:
        """Print in one line what went wrong, and in which of several processes."""
        line = printable(f"jaxformer: {self.name}{what}")
        print(broken(line), file=sys.stderr, flush=True)

    def end(self, what: str, seconds: float = 0.0) -> NoReturn:
        """Complain and end this process after `seconds`, even in a blocking call."""
        explain_abort("")
        self.complain(what)
        sys.stdout.flush()
        time.sleep(seconds)
        os._exit(EXIT_LOST)

    def leave(self) -> None:
        """Note that this process ends normally; an abort then has no meaning."""
        self._is_ending.set()
        explain_abort("")

    def watch(self, timeout: int, advice: str) -> None:
        """Start a thread that ends this process when another one is lost."""
        self.timeout = timeout

        def check_regularly() -> None:
            while not self._is_ending.wait(WATCH_SECONDS):
                lost = ", ".join(map(str, sorted(_lost_processes())))
                if lost and not self._is_ending.is_set():
                    self.end(
                        f"process {lost} was lost (silent for up to {timeout} s, "
                        f"--peer_timeout); {advice}",
                        seconds=0.0 if jax.process_index() else LAST_SECONDS,
                    )

        explain_abort(
            f"{self.name}the connection to other processes was lost; {advice}"
        )
        threading.Thread(target=check_regularly, name="peers", daemon=True).start()


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
