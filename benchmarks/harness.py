"""Fair timing of contestants on a machine that others use too.

Contestants take turns (A B A B), and a ratio compares two of the same round, so that a
machine that slows down slows both. Used by every benchmark that compares.
"""

import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "tensorflow_cpu", "ctranslate2", "torch",
    "transformers",
)  # fmt: skip
PAUSE = 0.3  # seconds, for the threads of the one before to fall asleep

Rounds = list[dict[str, float]]  # seconds by contestant, of each round


def has(*packages: str) -> bool:
    """Whether these are installed; says so if not."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    for name in missing:
        print(f"{name} is not installed and left out", file=sys.stderr)
    return not missing


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, load, versions installed."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    versions = {"python": platform.python_version()}
    installed = {
        name for names in importlib.metadata.packages_distributions().values()
        for name in names
    }  # fmt: skip
    for package in PACKAGES:
        if package in installed:
            versions[package] = importlib.metadata.version(package)
    cores = len(os.sched_getaffinity(0))
    return {"cpu": cpu, "cores": cores, "load": os.getloadavg()[0], **versions}


def take_turns(turns: dict[str, Callable[[], Any]], repeats: int) -> Rounds:
    """Time each of them `repeats` times, by turns."""
    rounds: Rounds = []
    for _ in range(repeats):
        rounds.append({})
        for name, turn in turns.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            turn()
            rounds[-1][name] = time.perf_counter() - start
    return rounds


def figures(
    rounds: Rounds, name: str, amount: float, *, beside: str
) -> dict[str, float | None]:
    """Of one contestant that did `amount` of something in each round.

    Median seconds, their spread (most less least, by the median), amount a second, and
    the ratio to the contestant `beside`: how many times as fast, by round.
    """
    seconds = [each[name] for each in rounds]
    median = statistics.median(seconds)
    ratios = sorted(each[beside] / each[name] for each in rounds if beside in each)
    return {
        "seconds": median,
        "spread": (max(seconds) - min(seconds)) / median,
        "per_second": amount / median,
        "ratio": statistics.median(ratios) if ratios else None,
        "ratio_least": ratios[0] if ratios else None,
        "ratio_most": ratios[-1] if ratios else None,
    }


def row(label: str, name: str, found: dict[str, float | None]) -> str:
    """A line of a table in Markdown."""
    ratio = "-"
    if found["ratio"] is not None:
        ratio = "{ratio:.2f} ({ratio_least:.2f} - {ratio_most:.2f})".format(**found)
    return (
        f"| {label} | {name} | {found['seconds']:.2f} | {100 * found['spread']:.0f} % "
        f"| {found['per_second']:,.1f} | {ratio} |"
    )


def print_table(header: Sequence[str], rows: Sequence[str]) -> None:
    """Print a table in Markdown as soon as it is known."""
    rule = "|".join(["---"] * len(header))
    print(f"| {' | '.join(header)} |", f"|{rule}|", *rows, "", sep="\n", flush=True)
