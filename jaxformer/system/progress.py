"""Progress of long work: a bar on a terminal, elsewhere a log line every few seconds.

Work of a few seconds is not reported.
"""

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TypeVar

import jax
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from jaxformer.system import processes
from jaxformer.system.errors import printable

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
DELAY = 1.0  # seconds before a bar or "compiling ..." appears
INTERVAL = 8.0  # seconds between two lines
POLL = 0.2  # seconds
# Names of compiled functions in the log. Others are reported by their own names.
PROGRAMS = {
    **dict.fromkeys(
        ("update", "differentiate", "accumulate", "apply_gradients"),
        "the training step",
    ),
    **dict.fromkeys(
        ("weights", "encode", "begin", "insert", "advance", "resize"), "the search"
    ),
    "evaluate_batch": "the evaluation",
}
_COMPILE = "/jax/core/compile/backend_compile_duration"  # an event of JAX
_STAGES = "/jax/core/compile/"  # tracing and lowering are such events, too


class _LastLine(logging.Filter):
    """Notes when the last line was logged; a filter of a handler."""

    time = 0.0  # seconds since 1970

    def filter(self, record: logging.LogRecord) -> bool:
        self.time = time.time()
        return True


LAST_LINE = _LastLine()


def quieten_tensorflow() -> None:
    """Let TensorFlow log nothing; call it before anything imports it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # it would log that it is on


_checks: list[Callable[[], None]] = []  # called whenever work advances


@contextmanager
def checked(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` in the block whenever work begins or advances; it may raise."""
    _checks.append(check)
    try:
        yield
    finally:
        _checks.remove(check)


def _check() -> None:
    for check in _checks:
        check()


_active: list[object] = []  # work and bars; the last, within the others, is reported


@contextmanager
def _within_others(shown: object) -> Iterator[None]:
    _active.append(shown)
    try:
        yield
    finally:
        _active.remove(shown)


class _Work:
    """Work in progress; its string is the line to log."""

    def __init__(self, what: str, total: int | None, unit: str, initial: int) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.n = self.initial = initial
        self.start, self._worked = time.time(), None  # the first items take longer

    def update(self, n: int = 1) -> None:
        self.n += n
        _check()

    def __str__(self) -> str:
        taken = time.time() - self.start
        if not self.unit:
            return f"{self.what}: {taken:.0f} s so far"
        if self.total is None:
            return f"{self.what}: {self.n:,} {self.unit}"
        if self._worked is None or self.n == self.initial:
            return f"{self.what}: {self.n:,} of {self.total:,} {self.unit}"
        each = (working_time() - self._worked) / (self.n - self.initial)
        left = timedelta(seconds=round(each * (self.total - self.n)))
        return f"{self.what}: {self.n:,} of {self.total:,} {self.unit}, ETA {left}"

    def report(self, done: threading.Event, is_announced: bool) -> None:
        """Log a line when nothing else is logged, until `done`."""
        last = LAST_LINE.time or self.start
        if is_announced and not done.wait(DELAY):
            logger.info("%s ...", self.what)
        while not done.wait(POLL):
            last = max(last, LAST_LINE.time)
            if time.time() - last >= INTERVAL and _active[-1:] == [self]:
                last = time.time()
                logger.info("%s", str(self))
                if self._worked is None and self.n > self.initial:
                    self.initial, self._worked = self.n, working_time()


class _Bar(tqdm):
    def refresh(self, *given: object, **named: object) -> None:
        """Draw it, but not before `delay`: it would not be cleared in the end."""
        if not self.delay or time.time() >= self.start_t + self.delay:
            super().refresh(*given, **named)

    def update(self, n: float = 1) -> bool | None:
        _check()
        return super().update(n)


Progress = _Work | _Bar  # `update(n)` counts items, `n` are those counted


def draws_bars() -> bool:
    """Whether this process draws bars: on a terminal, for all processes of a run."""
    # On a terminal of unknown size tqdm draws nothing at all.
    is_terminal = processes.is_first() and sys.stderr.isatty()
    return is_terminal and all(os.get_terminal_size(sys.stderr.fileno()))


@contextmanager
def progress(
    what: str,
    total: int | None = None,
    *,
    unit: str = "",
    initial: int = 0,
    is_announced: bool = False,
    **bar: object,
) -> Iterator[Progress]:
    """Report the work of the block; `update(n)` says that n more items are done.

    Logs a line when no other line is logged for INTERVAL seconds, with the time left if
    there is a `total`; with `is_announced` also after a second. On a terminal a bar
    shows the items, if they have a `unit`; `bar` are options of tqdm for it.
    """
    _check()
    if unit and draws_bars():
        options = {"delay": DELAY, "leave": False, "dynamic_ncols": True, **bar}
        name = printable(what)
        with (
            logging_redirect_tqdm(),
            _Bar(
                desc=name, total=total, unit=f" {unit}", initial=initial, **options
            ) as drawn,
            _within_others(object()),
        ):
            yield drawn
        return
    work, done = _Work(what, total, unit, initial), threading.Event()
    arguments = done, is_announced
    threading.Thread(target=work.report, args=arguments, daemon=True).start()
    try:
        with _within_others(work):
            yield work
    finally:
        done.set()


def track(
    items: Iterable[Item], what: str, total: int | None = None, *, unit: str
) -> Iterator[Item]:
    """Yield the items; report their progress as `progress` does."""
    with progress(what, total, unit=unit) as work:
        for item in items:
            yield item
            work.update()


class _Compiles:
    """Counts programs by what they are for, and the seconds in which any compiles."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.wanted: dict[str, int] = {}
        self._running, self._since, self._seconds = 0, 0.0, 0.0
        self._lock = threading.Lock()

    def next(self, what: str) -> str:
        """Say which program for `what` begins, of how many if that is known."""
        self.made[what] += 1
        if what in self.wanted:
            return f"compiling {what}: {self.made[what]} of {self.wanted[what]}"
        number = f", program {self.made[what]}" if self.made[what] > 1 else ""
        return f"compiling {what}{number}"

    def change(self, by: int) -> None:
        """Note that `by` more stages run; they nest, and threads overlap."""
        with self._lock:
            now = time.monotonic()
            self._seconds += (now - self._since) * (self._running > 0)
            self._running, self._since = max(0, self._running + by), now

    def seconds(self) -> float:
        """The seconds until now in which a program was traced or compiled."""
        self.change(0)
        return self._seconds


COMPILES = _Compiles()


def working_time() -> float:
    """Return the seconds since any moment, without those of compiling."""
    return time.monotonic() - COMPILES.seconds()


@contextmanager
def compiles_reported() -> Iterator[None]:
    """Log each compile within the block that takes over a second, while it runs.

    `working_time` leaves out the tracing and compiling within the block.
    """
    running: dict[int, ExitStack] = {}  # by thread
    COMPILES.made.clear()  # those of an earlier command of the process
    COMPILES.wanted.clear()

    def begin(event: str, _: float, *, fun_name: str = "", **__: object) -> None:
        if event.startswith(_STAGES):
            COMPILES.change(1)
        if event == _COMPILE and threading.get_ident() not in running:
            name = fun_name.removeprefix("jit(").removesuffix(")").strip("_")
            what = COMPILES.next(PROGRAMS.get(name, name.replace("_", " ")))
            running[threading.get_ident()] = stack = ExitStack()
            stack.enter_context(progress(what, is_announced=True))

    def end(event: str, _: float, **__: object) -> None:
        if event.startswith(_STAGES):
            COMPILES.change(-1)
        if event == _COMPILE:
            running.pop(threading.get_ident(), ExitStack()).close()

    jax.monitoring.register_scalar_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)
    try:
        yield
    finally:
        jax.monitoring.unregister_scalar_listener(begin)
        jax.monitoring.unregister_event_duration_listener(end)
