"""Connect, synchronise and end the processes of one run.

With one process every function returns at once, so callers need no special case.
"""

import functools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.system.errors import InputError, LostConnectionError
from jaxformer.system.lost_peers import LAST_SECONDS, PEERS

logger = logging.getLogger(__name__)

RAISE_AGAIN_SECONDS = 0.1  # until an exception is raised again that Python dropped
_RESUME = "start all processes again to resume from the newest checkpoint"


class StoppedError(BaseException):
    """The run was asked to stop, and all processes agreed to stop.

    Like KeyboardInterrupt it is no Exception, so that libraries do not catch it.
    """


def join(
    *,
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    join_timeout: int,
    peer_timeout: int,
) -> None:
    """Connect to the other processes, if there are any, and watch them from then on.

    The arguments are the flags of those names. On Cloud TPU, Slurm and Open MPI, JAX
    reads those that are None from the environment. Call it before any other use of JAX.
    Raises InputError for flags that contradict each other; ends the process with code 3
    if not all are connected within `join_timeout` seconds.
    """
    flags = (coordinator_address, num_processes, process_id)
    if num_processes == 1 or jax.distributed.is_initialized():
        return
    # Slurm and Open MPI number the tasks of a machine, and JAX gives a process the GPU
    # of its number. A single task gets all GPUs of the machine.
    is_single = "1" in map(os.environ.get, ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"))
    if is_single and flags == (None, None, None):
        return
    _check(*flags)
    # A lost peer is reported to the others instead of aborting them: see `Peers.watch`.
    jax.config.update("jax_enable_recoverability", True)
    PEERS.explain_abort(
        f"not all processes connected within {join_timeout} s (--join_timeout); start "
        "all of them with the same address of process 0"
    )
    try:
        jax.distributed.initialize(
            *flags,
            cluster_detection_method="deactivate" if is_single else None,
            local_device_ids=[] if _is_alone_on_machine() else None,
            initialization_timeout=join_timeout,
            heartbeat_timeout_seconds=peer_timeout,
        )
    except (ValueError, RuntimeError) as error:
        _check_alone(flags, error)
        jax.config.update("jax_enable_recoverability", False)
        PEERS.explain_abort(None)
        return
    PEERS.name = f"process {jax.process_index()}: "
    PEERS.watch(peer_timeout, _RESUME)
    # Stdout is for results, but libraries that communicate between processes print
    # there. File descriptor 1 becomes stderr, and only Python writes to stdout.
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def _is_alone_on_machine() -> bool:
    """Whether Slurm or Open MPI has given this task a machine of its own.

    It then gets all GPUs, unless JAX_LOCAL_DEVICE_IDS chooses some.
    """
    get = os.environ.get
    if local := get("OMPI_COMM_WORLD_LOCAL_SIZE"):  # perhaps within a job of Slurm
        is_alone = local == "1"
    else:
        is_alone = get("SLURM_NTASKS", "") == get("SLURM_STEP_NUM_NODES")
    return is_alone and "JAX_LOCAL_DEVICE_IDS" not in os.environ


def _check(address: str | None, count: int | None, mine: int | None) -> None:
    if count is not None and mine is not None and not 0 <= mine < count:
        raise InputError(
            f"--process_id={mine} is not one of --num_processes={count}; they are "
            f"numbered from 0 to {count - 1}"
        )
    if address is not None and not address.rpartition(":")[2].isdecimal():
        raise InputError(
            f"--coordinator_address={address} has no port; write HOST:PORT of process 0"
        )


def _check_alone(flags: tuple, error: Exception) -> None:
    """Return if JAX failed to connect because there is only this process."""
    has_flags = any(flag is not None for flag in flags)
    if isinstance(error, ValueError) and has_flags:
        raise InputError(
            f"the processes cannot find each other ({error}); give "
            "--coordinator_address=HOST:PORT, --num_processes and --process_id"
        ) from error
    if isinstance(error, RuntimeError) and (
        has_flags or "must be called before" not in str(error)
    ):
        line = str(error).partition("\n")[0]
        PEERS.end(f"the processes could not connect ({line})")


def leave() -> None:
    """Return when all processes have finished: none of them counts as lost."""
    PEERS.is_ending.set()
    if are_several():
        multihost_utils.sync_global_devices("leave")


complain = PEERS.complain
await_news_of_peers = PEERS.await_news


def end_last() -> None:
    """Let process 0 end after the others, which report the same mistake."""
    if are_several() and is_first():
        time.sleep(LAST_SECONDS)


def topology() -> str:
    """Processes and devices, in one line."""
    return (
        f"processes: {jax.process_count()}, each with {jax.local_device_count()} x "
        f"{jax.devices()[0].device_kind}; {jax.device_count()} devices in all"
    )


def count() -> int:
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    return jax.process_index() if jax.distributed.is_initialized() else 0


def are_several() -> bool:
    return count() > 1


def is_first() -> bool:
    """Whether this is the process that writes and logs for all."""
    return index() == 0


def usable_cores() -> int:
    """Return how many cores this process may use."""
    can_tell = hasattr(os, "sched_getaffinity")  # macOS cannot
    return len(os.sched_getaffinity(0)) if can_tell else os.cpu_count()


def gather(value: Any) -> list[Any]:
    """The `value` of each process, in their order; JSON must be able to hold it."""
    if not are_several():
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    longest = int(multihost_utils.process_allgather(np.int32(len(text))).max())
    padded = np.pad(text, (0, longest - len(text)), constant_values=ord(" "))
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(row.tobytes()) for row in rows]


def from_first(value: Any) -> Any:
    """The `value` of process 0, for all; JSON must be able to hold it."""
    return gather(value if is_first() else None)[0]


def in_shares(function: Callable[[list], list], items: Sequence) -> list:
    """Apply a function to each process's share of the items; return all its results.

    It gets a list and returns one of the same length, which JSON must be able to hold.
    """
    results = [None] * len(items)
    for number, found in enumerate(gather(function(list(items[index() :: count()])))):
        results[number :: count()] = found
    return results


@contextmanager
def sharing_mistakes() -> Iterator[None]:
    """Raise what goes wrong in the block in all processes; all of them enter it.

    Of several processes all raise InputError, also for an OSError in one of them.
    """
    if not are_several():
        yield
        return
    fault = None
    try:
        yield
    except (InputError, OSError) as error:
        fault = [isinstance(error, LostConnectionError), str(error)]
    for is_lost, each in filter(None, gather(fault)):
        raise LostConnectionError(each) if is_lost else InputError(each)


class StopRequests:
    """Whether SIGTERM or Ctrl-C has asked to stop; all processes get the same answer.

    A second Ctrl-C interrupts at once. While all updates are on disk (`all_saved`) and
    there is one process, a signal raises StoppedError as soon as Python handles it.
    While XLA compiles, that is at once with jaxlib 0.10, and after the compile of that
    program with later versions.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self.all_saved = False
        self._calls = 0  # of `reached`; JAX agrees on the call at which all stop

    def reached(self) -> bool:
        """Whether to stop here. All processes call this equally often."""
        self._calls += 1
        if not are_several():
            return self.signal is not None
        return multihost_utils.reached_preemption_sync_point(self._calls)

    def check(self) -> None:
        """Raise StoppedError if all processes stop here."""
        if self.reached():
            raise StoppedError

    @contextmanager
    def stopping_at_once(self) -> Iterator[None]:
        """Let a stop within the block, or already asked for, raise StoppedError."""
        if not are_several():
            self.check()
        before, self.all_saved = self.all_saved, True
        try:
            yield
        finally:
            self.all_saved = before

    def _note(self, number: int, _: object) -> None:
        first = self.signal is None
        self.signal = self.signal or signal.Signals(number).name
        if number == signal.SIGINT and not first:
            raise KeyboardInterrupt
        if self.all_saved and not are_several():
            _raise_until_handled(StoppedError)
        elif number != signal.SIGALRM:
            logger.warning("%s: stopping at the next step", self.signal)
        if are_several():  # tell JAX, which waits for SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Take SIGTERM and Ctrl-C as requests to stop within the block."""
    requests = StopRequests()
    # With several processes JAX handles SIGTERM and informs all of them.
    numbers = [] if are_several() else [signal.SIGTERM]
    with _handling(requests._note, *numbers):
        yield requests


@contextmanager
def interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within the block until it has an effect."""
    with _handling(lambda *_: _raise_until_handled(KeyboardInterrupt)):
        yield


@contextmanager
def _handling(
    handler: Callable[[int, object], None], *numbers: signal.Signals
) -> Iterator[None]:
    """Handle signals, and the alarm of `_raise_until_handled`, within the block."""
    _silence()
    numbers += (signal.SIGINT, signal.SIGALRM)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _raise_until_handled(error: type[BaseException]) -> None:
    """Raise `error` in a handler; again, if the handler interrupted a callback.

    Python drops exceptions of callbacks, such as that of JAX in garbage collection.
    """
    if not isinstance(sys.exc_info()[1], error):
        signal.setitimer(signal.ITIMER_REAL, RAISE_AGAIN_SECONDS)
        raise error


@functools.cache
def _silence() -> None:
    """Drop Python's report of an exception that `_raise_until_handled` raises again."""
    report, dropped = sys.unraisablehook, (StoppedError, KeyboardInterrupt)
    sys.unraisablehook = lambda failed: (
        isinstance(failed.exc_value, dropped) or report(failed)
    )
