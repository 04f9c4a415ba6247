"""Keep freed memory in the process, for programs on CPUs.

XLA allocates the arrays of a program each time it runs. The C library of Linux gets
large blocks from the kernel and gives them back when they are freed, so every run
faults in its pages again: a fifth to a third of the time of an update.
"""

import ctypes
import glob
import importlib.util
import os

# By tunable: the parameter of mallopt, from glibc's malloc.h, and its value.
_OPTIONS = {
    "trim_threshold": (-1, -1),  # give nothing back
    "mmap_max": (-4, 0),  # take all blocks from the heap
    "arena_max": (-8, 1),  # one heap for all threads; others hold no large block
}
_CUDA = "jax_cuda12_plugin", "jax_cuda13_plugin"
# By pattern of device files: packages with which JAX uses them; (): not known.
_ACCELERATORS = {
    "/dev/accel*": ("libtpu",), "/dev/vfio/[0-9]*": ("libtpu",),
    "/dev/nvidia[0-9]*": _CUDA, "/dev/dxg": _CUDA, "/dev/kfd": (),
}  # fmt: skip


def keep_memory() -> None:
    """Keep freed memory, if JAX will probably use CPUs and the C library is glibc.

    Call it before JAX starts its threads. It changes nothing if the environment sets
    any option by MALLOC_*, or one of these by GLIBC_TUNABLES.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms != "cpu" and (platforms or _has_accelerator()):
        return
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if any(f"glibc.malloc.{name}=" in tunables for name in _OPTIONS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for option in _OPTIONS.values() if mallopt else ():
        mallopt(*option)


def trim() -> None:
    """Give freed memory back once, such as what compiling needed."""
    if release := getattr(ctypes.CDLL(None), "malloc_trim", None):
        release(0)


def _has_accelerator() -> bool:
    """Whether there is an accelerator with a package by which JAX would use it."""
    return any(
        not packages or any(map(importlib.util.find_spec, packages))
        for pattern, packages in _ACCELERATORS.items()
        if glob.glob(pattern)
    )
