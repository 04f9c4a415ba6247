"""Several processes as one: how they find each other, agree, and end together.

Everything between processes is JAX's: `jax.distributed` brings them together and
notices who is gone, `multihost_utils` carries what they tell each other. With one
process every function here is trivial, so callers need not ask.
"""

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.errors import InputError

logger = logging.getLogger(__name__)

EXIT_PEER_LOST = 3
_WATCH_SECONDS = 1.0  # between two looks at who is alive

_ending = threading.Event()  # set when this process is about to leave in peace


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The flags that say who takes part; None is found by JAX itself or is one."""

    coordinator_address: str | None  # host:port of process 0
    num_processes: int | None
    process_id: int | None
    join_timeout: int  # seconds to wait at the start until all are there
    peer_timeout: int  # seconds after which a silent peer counts as lost


class StoppedError(Exception):
    """The run was asked to stop, and all processes agreed on where: after `step`."""

    def __init__(self, step: int = 0) -> None:
        super().__init__(
            f"stopped at step {step:,}, which is saved; the same command goes on from "
            "there"
            if step
            else "stopped before the first update; the same command starts again"
        )
        self.step = step


# Together and apart -------------------------------------------------------------------


def join(cluster: Cluster) -> None:
    """Meet the other processes, if there are any, and watch over them from then on.

    Who they are is told by flags, or found by JAX on Cloud TPU, Slurm and Open MPI.
    Must come before anything else that JAX does. Raises InputError for flags that make
    no sense; ends the process with code 3 if not all come within `join_timeout`.
    """
    flags = (cluster.coordinator_address, cluster.num_processes, cluster.process_id)
    if cluster.num_processes == 1 or jax.distributed.is_initialized():
        return
    _require_sense(cluster)
    # A lost peer is reported to the others instead of aborting them: see `_watch`.
    jax.config.update("jax_enable_recoverability", True)
    _say_on_abort(
        f"not all processes came together within {cluster.join_timeout} s "
        "(--join_timeout); start all of them with the same address of process 0"
    )
    if not _have_met(cluster, flags):
        jax.config.update("jax_enable_recoverability", False)
        _say_on_abort(None)
        return
    _say_on_abort(
        f"process 0, which holds the processes together, was lost; {_GO_ON}"
        if jax.process_index()
        else f"JAX gave up on the connection between the processes; {_GO_ON}"
    )
    _remember(f"process {jax.process_index()}: ", cluster.peer_timeout)
    threading.Thread(
        target=_watch, args=(cluster.peer_timeout,), name="peers", daemon=True
    ).start()
    _keep_stdout_clean()


def leave() -> None:
    """Return when all processes have come to the end; then nobody misses anybody."""
    _ending.set()
    wait_for_all("leave")


def complain(what: object) -> None:
    """Say in one line what went wrong, and in which process if there are several."""
    print(f"jaxformer: {_name}{what}", file=sys.stderr, flush=True)


def end_with_lost_peer(what: str) -> NoReturn:
    """Say it in one line and end this process at once, whatever it is waiting for."""
    complain(what)
    end(EXIT_PEER_LOST)


def await_news_of_peers() -> None:
    """After a failure that a lost peer may have caused: give JAX time to notice."""
    time.sleep(_peer_timeout + 5 * _WATCH_SECONDS)


def end(code: int) -> NoReturn:
    """End now: in an ordinary exit JAX would wait for peers, which wait for this."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def topology() -> str:
    """What was found, in one line."""
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
    """Whether this process has met others."""
    return count() > 1


def is_first() -> bool:
    """Whether this process is the one that writes and speaks for all."""
    return index() == 0


def wait_for_all(name: str) -> None:
    """Return when every process has come to the point `name`."""
    if are_several():
        multihost_utils.sync_global_devices(name)


def gather(value: Any) -> list[Any]:
    """What each process holds, by process: of anything that JSON can carry."""
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
    """What process 0 holds, for all: of anything that JSON can carry."""
    return gather(value if is_first() else None)[0]


# Asked to stop ------------------------------------------------------------------------


class StopRequests:
    """Whether SIGTERM or Ctrl-C has asked to stop, the same answer for everybody.

    A second Ctrl-C does not wait for that answer.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self._asked = 0  # how often; JAX agrees on the count at which all stop

    def reached(self) -> bool:
        """Whether to stop here. All processes have to ask equally often."""
        self._asked += 1
        if not are_several():
            return self.signal is not None
        return multihost_utils.reached_preemption_sync_point(self._asked)

    def heed(self) -> None:
        """Raise StoppedError if all are to stop here."""
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
    """Take SIGTERM and Ctrl-C as requests to stop while this is entered."""
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
_GO_ON = "start all processes again to go on from the newest checkpoint"


# Behind the doors ---------------------------------------------------------------------


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
        end_with_lost_peer(f"the processes could not come together ({_line(error)})")
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


def _watch(peer_timeout: int) -> None:
    """End this process when another one is gone; a thread of every process.

    JAX knows who sent no heartbeat for `peer_timeout` seconds. Without this thread the
    main one would wait for ever for the part that the lost process had in a sum.
    """
    while not _ending.is_set():
        time.sleep(_WATCH_SECONDS)
        try:
            with multihost_utils.live_devices(jax.devices()) as live:
                gone = {device.process_index for device in set(jax.devices()) - {*live}}
        except multihost_utils.ProcessFailureError as error:
            gone = {device.process_index for device in error.failed_devices}
        except Exception:  # the coordinator cannot be reached: it is process 0
            gone = {0}
        if gone and not _ending.is_set():
            names = ", ".join(map(str, sorted(gone)))
            end_with_lost_peer(
                f"process {names} was lost (silent for up to {peer_timeout} s, "
                f"--peer_timeout); {_GO_ON}"
            )


def _say_on_abort(message: str | None) -> None:
    """Let a process that JAX aborts end with one clear line and code 3.

    Where the connection to process 0 breaks, JAX's own thread logs that and aborts the
    process, before Python hears of it. A signal handler of Python's would come too
    late, so this one is called straight from C. None: no such line any more.
    """
    global _on_abort  # kept alive: C holds no reference
    if message is None:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        return

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handler(_: int) -> None:
        if _ending.is_set():  # process 0 has already gone
            os._exit(0)
        os.write(2, f"jaxformer: {_name}{message}\n".encode())
        os._exit(EXIT_PEER_LOST)

    _on_abort = handler
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)


_on_abort: Any = None
_name = ""
_peer_timeout = 0


def _remember(name: str, peer_timeout: int) -> None:
    """What this process puts before its messages, and its patience."""
    global _name, _peer_timeout
    _name, _peer_timeout = name, peer_timeout


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
