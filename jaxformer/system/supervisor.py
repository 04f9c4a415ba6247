"""Run this process as the child of one that says why a library aborted it.

JAX and Gloo abort a process whose peers are lost, from a thread of C++ that no Python
code can catch. The parent then prints one line, and ends with EXIT_LOST.
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from jaxformer.system.errors import EXIT_LOST

# Variables by which JAX finds other processes; TPUs have their library instead.
VARIABLES = (
    "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "JAX_COORDINATOR_ADDRESS",
    "KUBERNETES_SERVICE_HOST", "MEGASCALE_COORDINATOR_ADDRESS",
)  # fmt: skip
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl
_pipe: int | None = None  # to the parent


def may_have_peers(cluster: Mapping[str, object]) -> bool:
    """Whether a process with these flags may find others to join."""
    names = "coordinator_address", "num_processes", "process_id"
    given = [cluster[name] for name in names]
    if cluster["num_processes"] == 1:
        return False
    is_found = not {*VARIABLES}.isdisjoint(os.environ)
    return is_found or given != [None] * 3 or bool(importlib.util.find_spec("libtpu"))


def supervised(run: Callable[[], int]) -> int:
    """Call `run` in a child process, and return the exit code of the parent.

    Call it before any thread is started.
    """
    global _pipe
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _pipe = writing
        _die_with_parent()
        return run()
    os.close(writing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:  # as `nohup` has it
            signal.signal(each, lambda number, _: os.kill(child, number))
    with os.fdopen(reading, encoding="utf-8") as messages:
        *_, why = ["", *messages]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == -signal.SIGABRT and why:
        if why == "\n":
            return 0
        print(f"jaxformer: {why}", end="", file=sys.stderr, flush=True)
        return EXIT_LOST
    return code if code >= 0 else 128 - code


def explain_abort(message: str) -> None:
    """Let an abort from now on mean this; "": it is part of a normal end."""
    if _pipe is not None:
        os.write(_pipe, f"{message}\n".encode())


@contextmanager
def silent_aborts() -> Iterator[None]:
    """Drop what is printed to stderr in the block, such as C++'s stack at an abort.

    The parent explains the abort. Without a parent nothing is dropped.
    """
    if _pipe is None:
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
