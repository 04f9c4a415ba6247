"""The user's cache of compiled programs, with checksums that JAX does not have.

XLA runs what it reads: a damaged program ends the process by a signal. So each file has
its checksum beside it, and is removed before JAX can read it if that differs. A file
gets its checksum as soon as it is written. Without one it may be half of a program, and
is removed by the next process that opens the cache.
"""

import contextlib
import math
import os
from pathlib import Path

import jax

from jaxformer.system.files import cache_folder, digest, entries, write_atomically

_ENDING = ".xxh128"  # of the name of a checksum's file
_SHORTEST = 0.2  # seconds of a compile that is kept


def open_cache() -> None:
    """Let JAX use the cache, unless it has one already or there is no folder."""
    if jax.config.jax_compilation_cache_dir:
        return
    with contextlib.suppress(OSError):  # else every process compiles
        folder = cache_folder("")
        folder.mkdir(parents=True, exist_ok=True)
        remove_damaged(folder)
        is_writable = os.access(folder, os.W_OK)
        shortest = _SHORTEST if is_writable else math.inf
        jax.config.update("jax_persistent_cache_min_compile_time_secs", shortest)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        if is_writable:

            def seal_next(event: str, seconds: float, **_: object) -> None:
                if event.endswith("/backend_compile_duration") and seconds >= _SHORTEST:
                    seal(folder)  # JAX has written the program before this event

            jax.monitoring.register_event_duration_secs_listener(seal_next)


def remove_damaged(folder: Path) -> None:
    """Remove the programs that do not have their checksum. Raises OSError."""
    for program in entries(folder, "*-cache"):
        sums = _sums(program)
        if not (sums.exists() and sums.read_bytes() == digest(program).encode()):
            program.unlink(missing_ok=True)
            sums.unlink(missing_ok=True)


def seal(folder: Path) -> None:
    """Write the checksums of new programs."""
    with contextlib.suppress(OSError):  # a full disk, or another process removed one
        sealed = {*entries(folder, f"*{_ENDING}")}
        for program in entries(folder, "*-cache"):
            if _sums(program) not in sealed:
                write_atomically(_sums(program), digest(program))


def _sums(program: Path) -> Path:
    return program.with_name(f"{program.name}{_ENDING}")
