"""Compare the engine of slots with static batches of sentences sorted by length.

    python benchmarks/engine.py --workdir=DIR --text=FILE [--quick] [--repeats=5]
        [--load=0.7] [--rows=64]

Both translate the same lines with the run's search options on one device. First the
whole file at once: sentences a second. Then under load: sentences arrive at random
times, --load times as many a second as the slower of both made of the file; latency is
from arrival to translation. A static batch takes what has arrived when the batch before
is done. Turns under load are not counted until one compiles nothing; the time that the
compiler takes nevertheless is left out of latencies, and "compiled" counts programs.
Lines longer than data.max_length are left out: the engine's translator splits them.
"""

import argparse
import os
import sys
import time
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from benchmarks import harness
from benchmarks.models import make_translator, open_trained
from benchmarks.peers.static_batches import StaticBatches
from jaxformer.data.sources import read_lines

ENGINE, STATIC = "engine of slots", "static batches"
WARM_UP = 8  # turns under load without a count, at most


class Clock:
    """A clock that stands still while XLA compiles, and counts the programs."""

    def __init__(self) -> None:
        self.programs, self._compiling = 0, 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, seconds: float, **_: object) -> None:
        if event.endswith(("/backend_compile_duration", "_mlir_module_duration")):
            self._compiling += seconds
            self.programs += "backend" in event

    def __call__(self) -> float:
        """Read the clock."""
        return time.perf_counter() - self._compiling


def latencies(who, lines: list[str], rate: float, seed: int, clock: Clock) -> list:
    """Submit lines at random times, `rate` a second; give each line's latency."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, len(lines))
    arrivals, found, start = gaps.cumsum(), [0.0] * len(lines), clock()
    waiting, busy = deque(range(len(lines))), False

    def done(i: int) -> None:
        found[i] = clock() - start - arrivals[i]

    while waiting or busy:
        if not busy:
            time.sleep(max(0, start + arrivals[waiting[0]] - clock()))
        while waiting and start + arrivals[waiting[0]] <= clock():
            i = waiting.popleft()
            who.submit(lines[i], lambda _, i=i: done(i))
        busy = who.advance()
    return found


def under_load(both: dict, lines: list[str], rate: float, repeats: int) -> dict:
    """Give percentiles of the latencies of all counted turns, in seconds."""
    clock, before, seed = Clock(), -1, 0
    while clock.programs != before and seed < WARM_UP:
        before, seed = clock.programs, seed + 1
        for who in both.values():
            latencies(who, lines, rate, seed, clock)
    found = {name: {"seconds": [], "compiled": 0} for name in both}
    for number in range(seed + 1, seed + 1 + repeats):
        for name, who in both.items():
            before = clock.programs
            found[name]["seconds"] += latencies(who, lines, rate, number, clock)
            found[name]["compiled"] += clock.programs - before
    rows = []
    for name, each in found.items():
        p50, p95 = np.percentile(each.pop("seconds"), (50, 95)).tolist()
        each |= {"p50": p50, "p95": p95}
        rows.append([name, f"{p50:.3f}", f"{p95:.3f}", f"{each['compiled']}"])
    harness.print_table(
        (f"{rate:.1f} sentences/s arrive", "p50, s", "p95, s", "compiled"), rows
    )
    return {"rate": rate, **found}


def measure(options: argparse.Namespace) -> dict:
    """Time the file, then the load."""
    run, params = open_trained(options.workdir)
    model = run.model, params, run.tokenizer, vars(run.config.decoding)
    lines = [line for line in read_lines(options.text) if line.strip()]
    lengths = map(len, run.tokenizer.encode(lines))
    longest = run.config.data.max_length
    lines = [line for line, n in zip(lines, lengths, strict=True) if n <= longest]
    static = StaticBatches(*model, options.rows)
    both = {ENGINE: make_translator(*model), STATIC: static}
    outputs = [who(lines) for who in both.values()]  # not counted
    turns = {name: (lambda who=who: who(lines)) for name, who in both.items()}
    rounds = harness.take_turns(turns, options.repeats)
    file = harness.figures(rounds, dict.fromkeys(both, len(lines)), STATIC)
    harness.print_figures({"file": file}, "sentences", STATIC, {})
    rate = options.load * min(each["per_second"] for each in file.values())
    load = under_load(both, lines, rate, options.repeats)
    same = sum(map(str.__eq__, *outputs))
    return {"sentences": len(lines), "same": same, "file": file, "load": load}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; give the exit code."""
    return harness.run(
        __doc__, measure, argv, repeats=(5, 1), workdir=Path, text=Path, load=0.7,
        rows=64,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
