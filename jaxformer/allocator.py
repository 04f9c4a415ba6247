"""Keep freed memory in the process, for programs on CPUs.

XLA allocates the arrays of a program each time it runs. The C library of Linux gets
large blocks from the kernel and gives them back when they are freed, so every run
faults in its pages again: a fifth to a third of the time of an update.
"""

import ctypes
import glob
import os

# By tunable: the parameter of mallopt, from glibc's malloc.h, and its value.
_OPTIONS = {
    "trim_threshold": (-1, -1),  # give nothing back
    "mmap_max": (-4, 0),  # take all blocks from the heap
    "arena_max": (-8, 1),  # one heap for all threads; others hold no large block
}
_ACCELERATORS = (
    "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg",
)  # fmt: skip


def keep_memory() -> None:
    """Keep freed memory, if JAX will probably use CPUs and the C library is glibc.

    Call it before JAX starts its threads. It changes nothing if the environment sets
    any option by MALLOC_*, or one of these by GLIBC_TUNABLES.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms != "cpu" and (platforms or any(map(glob.glob, _ACCELERATORS))):
        return
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if any(f"glibc.malloc.{name}=" in tunables for name in _OPTIONS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for option in _OPTIONS.values() if mallopt else ():
        mallopt(*option)
