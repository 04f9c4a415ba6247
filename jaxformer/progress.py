"""Progress of long work: a bar on a terminal, elsewhere a log line every few seconds.

Work of a few seconds is not reported.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from jaxformer import processes

logger = logging.getLogger(__name__)

DELAY = 1.0  # seconds before a bar or "compiling ..." appears
INTERVAL = 8.0  # seconds between two lines
# What people call the compiled functions. Others are reported by their own names.
PROGRAMS = {
    **dict.fromkeys(("update", "gradients", "accumulate"), "the training step"),
    **dict.fromkeys(("begin", "insert", "advance", "resize"), "the search"),
    "evaluate_batch": "the evaluation",
}
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class _LastLine(logging.Filter):
    """Notes when the last line was logged; a filter of a handler."""

    time = 0.0  # seconds since 1970

    def filter(self, record: logging.LogRecord) -> bool:
        self.time = time.time()
        return True

    def log(self, line: str) -> None:
        logger.info("%s", line)
        self.time = time.time()


LAST_LINE = _LastLine()


class _LogFile:
    """A file for tqdm whose lines are log messages."""

    def write(self, text: str) -> None:
        if line := text.strip():  # tqdm erases a bar with spaces
            LAST_LINE.log(line)

    def flush(self) -> None:
        pass


class _Lines(tqdm):
    """Log a line when nothing was logged for INTERVAL seconds."""

    def update(self, n: float = 1) -> bool | None:
        self.last_print_t = LAST_LINE.time or self.last_print_t
        return super().update(n)


def draws_bars() -> bool:
    """Whether this process draws bars: on a terminal, for all processes of a run."""
    # On a terminal of unknown size tqdm draws nothing at all.
    is_terminal = processes.is_first() and sys.stderr.isatty()
    return is_terminal and all(os.get_terminal_size(sys.stderr.fileno()))


@contextmanager
def progress(
    what: str, total: int | None, *, unit: str, initial: int = 0, **bar: Any
) -> Iterator[tqdm]:
    """Yield a bar whose `update(n)` reports that n more of `total` items are done.

    The time left is estimated unless `total` is None. `bar` are options of tqdm for a
    terminal. Of several processes the first one reports.
    """
    shared = {"desc": what, "total": total, "initial": initial, "unit": f" {unit}"}
    with ExitStack() as stack:
        if draws_bars():
            stack.enter_context(logging_redirect_tqdm())
            options = {"delay": DELAY, "leave": False, "dynamic_ncols": True, **bar}
            yield stack.enter_context(tqdm(**shared, **options))
            return
        of_total = "" if total is None else " of {total:,}"
        left = "" if total is None else ", ETA {remaining}"
        lines = _Lines(
            **shared, file=_LogFile(), disable=not processes.is_first(), delay=DELAY,
            mininterval=INTERVAL, miniters=1, leave=False, position=0,
            bar_format=f"{{desc}}: {{n:,}}{of_total}{{unit}}{left}",
        )  # fmt: skip
        yield stack.enter_context(lines)


def track(
    items: Iterable, what: str, total: int | None = None, *, unit: str
) -> Iterator[Any]:
    """Yield the items; report their progress as `progress` does."""
    with progress(what, total, unit=unit) as bar:
        for item in items:
            yield item
            bar.update()


@contextmanager
def heartbeat(what: str, *, delay: float | None = None) -> Iterator[None]:
    """Log what the block does, and for how long, when nothing else is logged.

    With `delay` log it first after so many seconds, whatever else is logged.
    """
    done, start = threading.Event(), time.time()

    def report() -> None:
        if delay is not None:
            if done.wait(delay):
                return
            LAST_LINE.log(f"{what} ...")
        while not done.wait(DELAY):
            now = time.time()
            if now - (LAST_LINE.time or start) >= INTERVAL:
                LAST_LINE.log(f"{what}: {now - start:.0f} s so far")

    threading.Thread(target=report, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def compiles_reported() -> Iterator[None]:
    """Log each compile within the block that takes over a second, while it runs."""
    running: dict[int, ExitStack] = {}  # by thread

    def begin(event: str, _: float, *, fun_name: str = "", **__: Any) -> None:
        if event == _COMPILE_EVENT:
            name = fun_name.removeprefix("jit(").removesuffix(")").strip("_")
            program = PROGRAMS.get(name, name.replace("_", " "))
            stack = running[threading.get_ident()] = ExitStack()
            stack.enter_context(heartbeat(f"compiling {program}", delay=DELAY))

    def end(event: str, _: float, **__: Any) -> None:
        if event == _COMPILE_EVENT:
            running.pop(threading.get_ident(), ExitStack()).close()

    jax.monitoring.register_scalar_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)
    try:
        yield
    finally:
        jax.monitoring.unregister_scalar_listener(begin)
        jax.monitoring.unregister_event_duration_listener(end)
