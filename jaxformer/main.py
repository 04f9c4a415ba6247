"""Run a command: parse, log, join other processes, report what went wrong.

    jaxformer train --config=configs/wmt_base.py runs/wmt
    jaxformer translate runs/wmt < text > translation

Most commands end standard output with one line of JSON; on a terminal train, evaluate,
check and new print none, because their log has the same values. Everything else goes to
standard error. A mistake of the user is one line there, and exit code 2.
"""

import contextlib
import copy
import errno
import gc
import importlib
import json
import keyword
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from jaxformer.commands import command_line
from jaxformer.commands.flags import COMMANDS
from jaxformer.system.allocator import keep_memory
from jaxformer.system.errors import (
    EXIT_INTERRUPTED,
    EXIT_LOST,
    InputError,
    LostConnectionError,
    broken,
    printable,
)
from jaxformer.system.supervisor import may_have_peers, supervised

logger = logging.getLogger("jaxformer")

EXIT_MISTAKE = 2  # of the user
# Commands that run a model for a limited time; a server would hold its largest memory.
KEEPING_MEMORY = (
    "train", "reproduce", "translate", "translate_corpus", "evaluate", "score",
)  # fmt: skip
# Objects between two collections. With Python's 700, imports and tracing, whose objects
# stay, take a tenth longer (docs/speed.md).
GARBAGE_THRESHOLD = 50_000
_NO_MEMORY = "RESOURCE_EXHAUSTED"  # in the message of XLA's RuntimeError
# A full disk or quota, a read-only disk, a limit on file size, and a lack of rights.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES)
# A broken disk, a lost network file system, and too many open files.
_FAILURES = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EBUSY)
_FAILURES += (errno.EMFILE, errno.ENFILE)


def run_process() -> NoReturn:
    """Run the command line of this process and end it."""
    for name in ("stdin", "stdout", "stderr"):  # None if the shell has closed it
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+"))
    try:
        code = main(sys.argv, run=_run_supervised)
    except KeyboardInterrupt:  # before the command
        print("jaxformer: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    with contextlib.suppress(BrokenPipeError):  # the reader of a library's output
        sys.stdout.flush()
        sys.stderr.flush()
    # An ordinary exit waits seconds for threads of JAX and TensorFlow, and for peers.
    os._exit(code)


def _run_supervised(arguments: command_line.Arguments) -> int:
    """Run a command, in a child process if it may have peers that can be lost."""
    if may_have_peers(arguments.cluster):
        return supervised(lambda: run(arguments))
    return run(arguments)


def run(arguments: command_line.Arguments) -> int:
    """Run a command; return the exit code."""
    if arguments.mode in KEEPING_MEMORY:
        keep_memory()
    from jaxformer.system import processes  # imports JAX

    code = 1
    try:
        code = _run(arguments, processes)
    except Exception as error:
        if not processes.are_several():
            raise
        # As soon as a process is lost, a collective raises RuntimeError or ValueError.
        # The watch then reports that process and ends this one without a traceback.
        may_be_lost_peer = isinstance(error, RuntimeError | ValueError)
        if not may_be_lost_peer:
            traceback.print_exc()
        processes.await_news_of_peers()
        if may_be_lost_peer:
            traceback.print_exc()
    if code in (EXIT_MISTAKE, EXIT_LOST):
        processes.end_last()
    return code


def main(
    argv: Sequence[str], run: Callable[[command_line.Arguments], int] = run
) -> int:
    """Run a command line, program name first; return the exit code."""
    gc.set_threshold(GARBAGE_THRESHOLD)

    def complain(what: object) -> None:
        print(broken(f"jaxformer: {what}"), file=sys.stderr, flush=True)

    try:
        try:
            arguments = command_line.parse(argv[1:])
            if not may_have_peers(arguments.cluster):
                command_line.refuse_early(arguments)
        except SystemExit as finished:  # help or the version was printed
            sys.stdout.flush()
            return int(finished.code or 0)
    except InputError as error:
        complain(error)
        return EXIT_MISTAKE
    except OSError as error:
        return _explain(error, complain)
    return run(arguments)


def _run(arguments: command_line.Arguments, processes: ModuleType) -> int:
    from jaxformer.remote.copy import with_urls
    from jaxformer.system import progress, stopping

    def complain(what: object) -> None:
        processes.complain(with_urls(str(what)))

    try:
        processes.join(**arguments.cluster)
        _start_logging(processes, progress.LAST_LINE)
        progress.quieten_tensorflow()
        start = time.monotonic()
        mode, reported = arguments.mode, contextlib.ExitStack()
        if processes.are_several() and (why := COMMANDS[mode].alone):
            raise InputError(f"jaxformer {mode} runs in one process; {why}")
        reads = mode in ("translate", "visualize") and arguments.flags["source"] is None
        if reads and sys.stdin.isatty():
            several = " (several: --split_sentences)" * (mode == "translate")
            logger.info("Type a sentence%s and press Enter; Ctrl-D ends.", several)
        if mode != "serve":  # which counts its compiles itself
            reported.enter_context(progress.compiles_reported())
        if mode not in ("serve", "translate", "visualize"):  # may wait for input
            reported.enter_context(progress.progress(mode))
        with stopping.interrupts(), reported:
            result = command(mode).run(**arguments.flags)
        is_read = sys.stdout.isatty() and not arguments.flags.get("json")
        is_said = mode in ("train", "evaluate", "check", "new") and sys.stderr.isatty()
        if result is not None and processes.is_first() and not (is_read and is_said):
            result["seconds"] = round(time.monotonic() - start, 1)
            # JSON has no NaN and no infinity: null.
            finite = json.loads(json.dumps(result), parse_constant=lambda _: None)
            text = with_urls(json.dumps(finite), lambda name: json.dumps(name)[1:-1])
            if is_read:
                lines = (f"{key}: {value}" for key, value in finite.items())
                text = with_urls("\n".join(map(printable, lines)))
            print(text, flush=True)
        processes.leave()
    except InputError as error:
        complain(error)
        is_lost = isinstance(error, LostConnectionError)
        return EXIT_LOST if is_lost else EXIT_MISTAKE
    except OSError as error:
        return _explain(error, complain)
    except (MemoryError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        if not isinstance(error, MemoryError) and _NO_MEMORY not in reason:
            raise
        complain(
            f"there is not enough memory ({reason}); lower decoding.beam_size, "
            "decoding.batch_tokens, training.tokens_per_microbatch or the model's sizes"
        )
        return EXIT_MISTAKE
    except KeyboardInterrupt:
        complain("interrupted")
        return EXIT_INTERRUPTED
    return 0


def _explain(error: OSError, complain: Callable[[object], None]) -> int:
    """Say what cannot be read or written; return the exit code."""
    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    path = error.filename2 or error.filename
    if error.errno in _DISK_ERRORS:
        remedy = "free disk space or correct the permissions, then retry"
    elif error.errno in _FAILURES:
        remedy = "repair what the system reports, then retry"
    elif path is None:
        raise error
    else:
        remedy = "use another path"
    where = f"{path}: " if path else ""
    complain(InputError(f"{where}{error.strerror}; {remedy}"))
    return EXIT_MISTAKE


def command(mode: str) -> ModuleType:
    """The module of a command, which has a function `run`."""
    name = f"{mode}_" if keyword.iskeyword(mode) else mode
    return importlib.import_module(f"jaxformer.commands.{name}")


def _report_thread(failed: threading.ExceptHookArgs) -> None:
    """Log the end of a library's background thread as one line."""
    name = failed.thread and failed.thread.name
    logger.warning("the thread %s ended with %r", name, failed.exc_value)


class _Formatter(logging.Formatter):
    """Names runs on object stores by their URLs, and escapes what does not print.

    Line ends of the message itself stay. Those of its arguments, such as paths, are
    escaped. On a terminal, lines break between words.
    """

    def format(self, record: logging.LogRecord) -> str:
        from jaxformer.remote.copy import with_urls

        shown = copy.copy(record)
        if isinstance(record.args, tuple):
            shown.args = tuple(
                printable(str(each)) if isinstance(each, str | Path) else each
                for each in record.args
            )
        lines = with_urls(super().format(shown)).split("\n")
        return "\n".join(map(broken, map(printable, lines)))


def _start_logging(processes: ModuleType, last_line: logging.Filter) -> None:
    """Log one line each to standard error; libraries and other processes only warn."""
    threading.excepthook = _report_thread
    is_first = processes.is_first()
    prefix = "" if is_first else f"process {processes.index()}: "
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    logging.root.handlers[0].setFormatter(_Formatter(f"{prefix}%(message)s"))
    logging.root.handlers[0].addFilter(last_line)
    logger.setLevel(logging.INFO if is_first else logging.WARNING)
    if processes.are_several():
        logger.info("%s", processes.topology())


if __name__ == "__main__":
    run_process()
