"""Several processes as one: how they find each other, agree, and end together.

`jax.distributed` connects processes, `multihost_utils` carries their messages. With one
process every function here is trivial, so callers need no case of their own.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.errors import InputError
from jaxformer.lost_peers import PEERS, WATCH_SECONDS

logger = logging.getLogger(__name__)

EXIT_MISTAKE = 2
LAST_SECONDS = 3.0  # that process 0 waits for the others


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The flags that say which processes take part; JAX can find what is None."""

    coordinator_address: str | None  # host:port of process 0
    num_processes: int | None
    process_id: int | None
    join_timeout: int  # seconds to wait at the start until all are there
    peer_timeout: int  # seconds after which a silent peer counts as lost


class StoppedError(Exception):
    """The run was asked to stop, and all processes agreed on where: after `step`."""

    def __init__(self, step: int = 0) -> None:
        super().__init__(
            f"stopped at step {step:,}, which is saved; the same command resumes "
            "from there"
            if step
            else "stopped before the first update; the same command starts again"
        )
        self.step = step


# Connecting ---------------------------------------------------------------------------


def join(cluster: Cluster) -> None:
    """Connect to the other processes, if there are any, and watch them from then on.

    Flags name them, or JAX finds them on Cloud TPU, Slurm and Open MPI. Call it before
    any other use of JAX. Raises InputError for flags that contradict each other; ends
    the process with code 3 if not all are connected within `join_timeout` seconds.
    """
    flags = (cluster.coordinator_address, cluster.num_processes, cluster.process_id)
    if cluster.num_processes == 1 or jax.distributed.is_initialized():
        return
    _require_sense(cluster)
    # A lost peer is reported to the others instead of aborting them: see `_watch`.
    jax.config.update("jax_enable_recoverability", True)
    PEERS.explain_abort(
        f"not all processes came together within {cluster.join_timeout} s "
        "(--join_timeout); start all of them with the same address of process 0"
    )
    if not _have_met(cluster, flags):
        jax.config.update("jax_enable_recoverability", False)
        PEERS.explain_abort(None)
        return
    PEERS.explain_abort(
        f"process 0, which holds the processes together, was lost; {_RESUME}"
        if jax.process_index()
        else f"JAX gave up on the connection between the processes; {_RESUME}"
    )
    PEERS.name = f"process {jax.process_index()}: "
    PEERS.timeout = cluster.peer_timeout
    PEERS.watch(_RESUME)
    _keep_stdout_clean()


def leave() -> None:
    """Return when all processes have finished, so that none counts as lost."""
    PEERS.is_ending.set()
    wait_for_all("leave")


def complain(what: object) -> None:
    """Print in one line what went wrong, and in which process if there are several."""
    PEERS.complain(what)


def await_news_of_peers() -> None:
    """Wait after a failure that a lost process may have caused, until JAX notices."""
    time.sleep(PEERS.timeout + 5 * WATCH_SECONDS)


def end(code: int) -> NoReturn:
    """End now: in an ordinary exit JAX and its peers would wait for each other.

    After a mistake of the user process 0, which holds the connections, ends last, so
    that the others can report the mistake, too.
    """
    if code == EXIT_MISTAKE and is_first():
        time.sleep(LAST_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def topology() -> str:
    """Processes and devices, in one line."""
    by_process: dict[int, int] = {}
    for device in jax.devices():
        by_process[device.process_index] = by_process.get(device.process_index, 0) + 1
    counts = sorted(set(by_process.values()))
    return (
        f"processes: {jax.process_count()}, each with "
        f"{' or '.join(map(str, counts))} x {jax.devices()[0].device_kind}; "
        f"{jax.device_count()} devices in all"
    )


def count() -> int:
    """How many processes there are."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    """The number of this process, from 0."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def are_several() -> bool:
    """Whether there are other processes."""
    return count() > 1


def is_first() -> bool:
    """Whether this is the process that writes and logs for all."""
    return index() == 0


def wait_for_all(name: str) -> None:
    """Return when every process has reached the point `name`."""
    if are_several():
        multihost_utils.sync_global_devices(name)


def gather(value: Any) -> list[Any]:
    """The `value` of each process, in their order; anything that JSON can carry."""
    if not are_several():
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(text)] = text
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [
        json.loads(row[:length].tobytes())
        for row, length in zip(rows, lengths, strict=True)
    ]


def from_first(value: Any) -> Any:
    """The `value` of process 0, for all; anything that JSON can carry."""
    return gather(value if is_first() else None)[0]


# Requests to stop ---------------------------------------------------------------------


class StopRequests:
    """Whether SIGTERM or Ctrl-C has asked to stop; all processes get the same answer.

    A second Ctrl-C interrupts at once.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self._asked = 0  # how often; JAX agrees on the count at which all stop

    def reached(self) -> bool:
        """Whether to stop here. All processes call this equally often."""
        self._asked += 1
        if not are_several():
            return self.signal is not None
        return multihost_utils.reached_preemption_sync_point(self._asked)

    def check(self) -> None:
        """Raise StoppedError if all processes stop here."""
        if self.reached():
            raise StoppedError

    def _note(self, number: int, _: object) -> None:
        first = self.signal is None
        self.signal = signal.Signals(number).name
        if number == signal.SIGINT and not first:
            raise KeyboardInterrupt
        logger.warning("%s: stopping at the next step", self.signal)
        if are_several():  # tell JAX, which waits for SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Take SIGTERM and Ctrl-C as requests to stop within the block."""
    requests = StopRequests()
    # Between processes SIGTERM is taken by JAX, which tells all of them.
    numbers = [signal.SIGINT] if are_several() else _BOTH
    before = {number: signal.signal(number, requests._note) for number in numbers}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_BOTH = (signal.SIGINT, signal.SIGTERM)
_RESUME = "start all processes again to resume from the newest checkpoint"


# Details -----------------------------------------------------------------------------


def _have_met(cluster: Cluster, flags: tuple) -> bool:
    """Let JAX bring the processes together; False if there is only this one."""
    nobody_was_named = flags == (None, None, None)
    try:
        jax.distributed.initialize(
            *flags,
            initialization_timeout=cluster.join_timeout,
            heartbeat_timeout_seconds=cluster.peer_timeout,
        )
    except ValueError as error:
        if nobody_was_named:  # and JAX found no cluster either
            return False
        raise InputError(
            f"the processes cannot find each other ({error}); give "
            "--coordinator_address=HOST:PORT, --num_processes and --process_id"
        ) from error
    except RuntimeError as error:
        if nobody_was_named and "must be called before" in str(error):
            return False  # called from a program that has used JAX already
        PEERS.end(f"the processes could not come together ({_line(error)})")
    return True


def _keep_stdout_clean() -> None:
    """Keep stdout for results: libraries that carry sums between processes chat there.

    What they print goes to stderr, and Python alone to what was stdout.
    """
    sys.stdout.flush()
    results = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(results, "w", encoding="utf-8")


def _require_sense(cluster: Cluster) -> None:
    """Raise InputError for numbers that describe no set of processes."""
    count, mine = cluster.num_processes, cluster.process_id
    if count is not None and mine is not None and not 0 <= mine < count:
        raise InputError(
            f"--process_id={mine} is not one of --num_processes={count}; they are "
            f"numbered from 0 to {count - 1}"
        )
    address = cluster.coordinator_address
    if address is not None and not address.rpartition(":")[2].isdecimal():
        raise InputError(
            f"--coordinator_address={address} has no port; write HOST:PORT of process 0"
        )


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
