"""Connect, synchronise and end the processes of one run.

With one process every function returns at once, so callers need no special case.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.system.errors import InputError, LostConnectionError
from jaxformer.system.lost_peers import LAST_SECONDS, PEERS
from jaxformer.system.supervisor import explain_abort, silent_aborts

JOIN_TIMEOUT = 300  # seconds; machines of one job may start minutes apart
PORT_TIMEOUT = 10  # seconds to wait for the port of process 0
Value = TypeVar("Value")
_RESUME = "start all processes again to resume from the newest checkpoint"


def join(
    *,
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    peer_timeout: int,
) -> None:
    """Connect to the other processes, if there are any, and watch them from then on.

    The arguments are the flags of those names. On Cloud TPU, Slurm and Open MPI, JAX
    reads those that are None from the environment. Call it before any other use of JAX.
    Raises InputError for flags that contradict each other; ends the process with code 3
    if not all are connected within JOIN_TIMEOUT seconds.
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
    explain_abort(
        f"not all processes connected within {JOIN_TIMEOUT} s; start "
        "all of them with the same address of process 0"
    )
    try:
        with silent_aborts():
            jax.distributed.initialize(
                *flags,
                cluster_detection_method="deactivate" if is_single else None,
                local_device_ids=[] if _is_alone_on_machine() else None,
                initialization_timeout=JOIN_TIMEOUT,
                heartbeat_timeout_seconds=peer_timeout,
            )
    except (ValueError, RuntimeError) as error:
        _check_alone(flags, error)
        jax.config.update("jax_enable_recoverability", False)
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
    name = "--coordinator_address"
    if address is None:  # as JAX does
        name = "JAX_COORDINATOR_ADDRESS"
        address = os.environ.get(name)
    if address is None or (not address and count is mine is None):
        return
    port = address.rpartition(":")[2] if address.isprintable() else ""
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:9]) < 2**16):
        raise InputError(
            f"{name}={address} has no port from 1 to 65535; write "
            "HOST:PORT of process 0"
        )
    if mine == 0:
        _require_free(int(port))


def _require_free(port: int) -> None:
    """Raise InputError if process 0 cannot listen on a port; XLA would abort.

    Waits up to PORT_TIMEOUT seconds for another process to free the port.
    """
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    end = time.monotonic() + PORT_TIMEOUT
    while True:
        try:
            socket.create_server(
                ("", port), family=family, dualstack_ipv6=has_both
            ).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise InputError(
                    f"process 0 cannot listen on port {port} ({error.strerror}); "
                    "choose another port of --coordinator_address"
                ) from error
        time.sleep(0.5)


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
    PEERS.leave()
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


def gather(value: object) -> list[Any]:
    """The `value` of each process, in their order; JSON must be able to hold it."""
    if not are_several():
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    longest = int(multihost_utils.process_allgather(np.int32(len(text))).max())
    padded = np.pad(text, (0, longest - len(text)), constant_values=ord(" "))
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(row.tobytes()) for row in rows]


def from_first(value: Value | None) -> Value:
    """The `value` of process 0, for all; JSON must be able to hold it."""
    return gather(value if is_first() else None)[0]


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
