"""Interleaved timing, its statistics and tables, and the entry point of the scripts.

Contestants take turns (A B A B), and a ratio compares two turns of the same round, so
that a slow machine slows both.
"""

import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import traceback
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jaxformer.system.allocator import keep_memory
from jaxformer.system.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
# The packages whose versions figures depend on.
MODULES = (
    "jax", "jaxlib", "flax", "optax", "orbax", "sentencepiece", "tensorflow",
    "ctranslate2", "torch", "transformers", "pymarian",
)  # fmt: skip
# Kinds of x86 processors, which differ in their products: Linux's flag, newest first.
KINDS = {
    "AMX": "amx_bf16", "AVX512-BF16": "avx512_bf16", "AVX512": "avx512f",
    "AVX2": "avx2",
}  # fmt: skip
PAUSE = 0.3  # seconds between turns, in which the threads of the last turn go to sleep

Figures = dict[str, Any]  # see `figures`
Rounds = list[dict[str, float]]  # of each round: seconds by contestant


def has(*packages: str) -> bool:
    """Whether all these packages are installed; the missing ones are logged."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    for name in missing:
        print(f"{name} is not installed and left out", file=sys.stderr)
    return not missing


def kind_of(cpuinfo: str) -> str:
    """Name the newest of KINDS that a processor has, by the text of /proc/cpuinfo."""
    flags = set(" ".join(re.findall(r"^flags\s*: (.*)", cpuinfo, re.M)).split())
    found = (kind for kind, flag in KINDS.items() if flag in flags)
    return next(found, platform.machine())


def machine() -> dict[str, Any]:
    """Describe the machine: processor, its kind, cores, load, versions."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    packages = importlib.metadata.packages_distributions()
    versions = {
        name: importlib.metadata.version(packages[name][0])
        for name in MODULES
        if name in packages
    }
    cpu = next(iter(re.findall(r"model name\s*: (.*)", text)), platform.machine())
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    found = {"cpu": cpu, "kind": kind_of(text), "cores": cores, "load": load}
    return found | {"python": platform.python_version(), **versions}


def start_command(
    flags: Sequence[str], config: Mapping, environment: Mapping, **streams: Any
) -> subprocess.Popen:
    """Start jaxformer with flags and values of its config.

    Compiled programs are kept below XDG_CACHE_HOME of `environment` alone. `streams`
    are arguments of `Popen`.
    """
    command = [sys.executable, "-m", "jaxformer.main", *flags]
    command += [f"--config.{key}={value}" for key, value in config.items()]
    environment = {**os.environ, **environment}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **streams)


class Apart:
    """A function in a process of its own.

    Contestants of one process would fill its heap with holes for each other.
    """

    def __init__(
        self, make: Callable, *arguments: Any, keeps_memory: bool = False
    ) -> None:
        """Start the process; it calls make(*arguments), which returns the function.

        `keeps_memory` as our commands do.
        """
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        work = theirs, make, arguments, keeps_memory
        self._process = context.Process(target=_answer, args=work, daemon=True)
        self._process.start()
        theirs.close()
        self._name = f"{make.__name__}{arguments[:1]}"

    def __call__(self, *arguments: Any) -> Any:
        self._end.send(arguments)
        try:
            found, error = self._end.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            error = f"the process of {self._name} ended with code {code}"
        if error is not None:
            raise RuntimeError(error)
        return found


def _answer(end: Any, make: Callable, arguments: tuple, keeps_memory: bool) -> None:
    """Answer the calls of an `Apart` until it is gone."""
    if keeps_memory:
        keep_memory()
    function = None
    while True:
        try:
            given = end.recv()
        except EOFError:
            return
        try:
            function = function or make(*arguments)
            end.send((function(*given), None))
        except Exception:
            end.send((None, traceback.format_exc()))


def at_once(calls: Mapping[str, Callable]) -> tuple[dict[str, Any], dict[str, str]]:
    """Call functions that work in processes of their own, all at the same time.

    Returns what they return, and the message of each that failed, by name.
    """
    found, failed = {}, {}
    with ThreadPoolExecutor(len(calls) or 1) as pool:
        pending = {name: pool.submit(call) for name, call in calls.items()}
    for name, each in pending.items():
        if each.exception() is None:
            found[name] = each.result()
        else:
            failed[name] = str(each.exception())
            print(f"{name} failed: {failed[name]}", file=sys.stderr)
    return found, failed


def take_turns(
    turns: Mapping[str, Callable[[], Any]], repeats: int, pause: float = PAUSE
) -> Rounds:
    """Time every contestant `repeats` times, interleaved."""
    rounds: Rounds = [{} for _ in range(repeats)]
    for seconds in rounds:
        for name, turn in turns.items():
            time.sleep(pause)
            start = time.perf_counter()
            turn()
            seconds[name] = time.perf_counter() - start
    return rounds


def figures(rounds: Rounds, amounts: Mapping[str, float], beside: str) -> Figures:
    """Summarise rounds by contestant, each of which did its amount of work in a turn.

    Median seconds; their spread, (most - least) / median; amount a second; and, if
    `beside` took part, the ratio of this rate to its rate, round by round.
    """
    found: Figures = {}
    for name in rounds[0]:
        seconds = [each[name] for each in rounds]
        median = statistics.median(seconds)
        spread = (max(seconds) - min(seconds)) / median
        rate = amounts[name] / median
        found[name] = {"seconds": median, "spread": spread, "per_second": rate}
        if beside in rounds[0]:
            share = amounts[name] / amounts[beside]
            ratios = [share * each[beside] / each[name] for each in rounds]
            found[name]["ratio"] = statistics.median(ratios)
            found[name] |= {"ratio_least": min(ratios), "ratio_most": max(ratios)}
    return found


def print_table(header: str, rows: Sequence[str]) -> None:
    """Print a table in Markdown and a blank line; " | " separates cells."""
    print(f"| {header} |\n|{'---|' * len(header.split(' | '))}")
    print(*(f"| {row} |" for row in rows), "", sep="\n", flush=True)


def print_figures(
    tables: Mapping[str, Figures], unit: str, beside: str, extra: Mapping[str, str]
) -> None:
    """Print `figures` by label, one line a contestant.

    `extra` are further columns: a heading and a format string of the figures.
    """
    formats = "{seconds:.3f}", "{spread:.0%}", "{per_second:,.1f}", *extra.values()
    ratio, rows = "{ratio:.2f} ({ratio_least:.2f} - {ratio_most:.2f})", []
    for label, found in tables.items():
        for name, each in found.items():
            texts = *formats, ratio if "ratio" in each else "-"
            cells = [text.format(**each).replace("%", " %") for text in texts]
            rows.append(" | ".join([label, name, *cells]))
    columns = "seconds, median", "spread", f"{unit}/s", *extra, f"times {beside}"
    print_table(" | ".join(["what", "who", *columns]), rows)


def parse(doc: str, argv: Sequence[str] | None, flags: Mapping[str, Any]) -> Namespace:
    """Parse a command line; the script's docstring is the help.

    Each flag has its default: a value; False, for a switch; a tuple of choices, the
    default first; a list, given with commas; None, for an optional path.
    """
    parser = ArgumentParser(
        description=doc, formatter_class=RawDescriptionHelpFormatter
    )
    for name, value in flags.items():
        settings: dict[str, Any] = {"type": type(value), "default": value}
        if value is False:
            settings = {"action": "store_true"}
        elif isinstance(value, tuple):
            settings = {"choices": value, "default": value[0]}
        elif isinstance(value, list):
            settings["type"] = lambda text: text.split(",")
        elif value is None:
            settings["type"] = Path
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args(argv)


def run(
    doc: str,
    measure: Callable[[Namespace], dict],
    argv: Sequence[str] | None = None,
    *,
    repeats: tuple[int, int] | None = None,
    **flags: Any,
) -> int:
    """Parse, measure, print the outcome as a last line of JSON; return the exit code.

    `repeats` are the rounds by default and with --quick, `flags` as in `parse`. The
    code is 1 if the outcome has a false "holds", and 2 for an InputError.
    """
    if repeats is not None:
        flags = {"quick": False, "repeats": 0, **flags}
    options, outcome = parse(doc, argv, flags), {"machine": machine()}
    if repeats is not None:
        options.repeats = options.repeats or repeats[options.quick]
        outcome["repeats"] = options.repeats
    print(json.dumps(outcome["machine"]), file=sys.stderr)
    try:
        outcome |= measure(options)
    except InputError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(outcome))
    return 0 if outcome.get("holds", True) else 1
