"""Kill a training run again and again, and check that nothing is lost.

    python benchmarks/faults.py [--kills=50] [--seed=0] [--processes=1] [--workdir=NEW]

Trains a small model once undisturbed and once with kills: SIGKILL at any moment,
SIGTERM while it trains, SIGKILL inside a save; after each kill the same command
resumes. Prints what every kind of kill cost. The exit code is 0 only if no kill cost
more steps than MOST_LOST allows, all processes ended with the right exit codes, and
both runs end with the same parameters, optimiser state, averaged model, final scores
and lines of metrics.jsonl, bit for bit. --workdir is a new folder, which is kept.
"""

import argparse
import functools
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from benchmarks import harness
from benchmarks.lives import (
    CLOCK,
    CONFIG,
    PHASES,
    SAVE_EVERY,
    SAVING,
    START,
    FaultError,
    Life,
)
from jaxformer.system.errors import EXIT_LOST, InputError
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import read_metrics
from jaxformer.training.step import TrainState

KILL, TERM, SAVE = "SIGKILL", "SIGTERM", "SIGKILL in a save"
# Steps since the last save; one save may be in flight, and lost as well.
MOST_LOST = {KILL: 2 * SAVE_EVERY, TERM: 0, SAVE: 2 * SAVE_EVERY}
SPACING = 8  # steps from kill to kill, on average
RESERVE = 3 * SPACING  # steps after the last kill, which may be late


def remains(workdir: Path) -> dict[str, object]:
    """Read the newest checkpoint, the average and all metrics of a run, by value.

    A leaf of the checkpoint is its type, shape and bytes. Metrics that depend on the
    clock are left out.
    """
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        step = checkpoints.latest_step()
        state = {
            field: checkpoints.restore_parameters(step, field=field)
            for field in TrainState._fields
            if field != "ema"  # which the config leaves out
        }
        state["average"] = checkpoints.average(CONFIG["training.average"])
        saved = checkpoints.steps()
    lines = read_metrics(workdir)
    order = [(line["step"], line["kind"]) for line in lines]  # shows a repeated step
    found: dict[str, object] = {"lines of metrics": str(order), "steps": str(saved)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        found[name] = (str(leaf.dtype), np.shape(leaf), np.asarray(leaf).tobytes())
    for values in lines:
        for name in values.keys() - CLOCK:
            found[f"{values['kind']} {values['step']} {name}"] = values[name]
    return found


def differences(left: dict[str, object], right: dict[str, object]) -> list[str]:
    """Name the values that differ, or that one side lacks."""
    return sorted({name for name, _ in left.items() ^ right.items()})


@dataclass
class Kill:
    """One kill and what it cost."""

    kind: str
    phase: str
    made: int  # the last step made before
    resumed: int | None = None  # the step that the next life which trained began with

    @property
    def lost(self) -> int:
        """Count the logged steps to repeat; 0 if it was killed before training."""
        return 0 if self.phase == START else max(0, self.made - self.resumed)


def await_moment(
    life: Life, kind: str, goal: int, start: float, draw: random.Random
) -> None:
    """Return at a random moment for a kill, not much later than step `goal`.

    `start` is about how many seconds a life takes to announce its first step.
    """
    which, moment, steps = draw.randrange(3), draw.random(), draw.randint(0, SAVE_EVERY)
    until = life.began + moment * start
    if kind != KILL or which != 0:  # else while it starts
        life.wait_until("training", lambda: life.begin() is not None)
        until, goal = float("inf"), max(goal, life.begin() + steps)
        if kind != SAVE and which == 1:  # while it compiles, or soon after
            until, goal = time.time() + moment, life.begin() + 1
    life.wait_until("a moment", lambda: time.time() > until or life.made() >= goal)
    if kind == SAVE:
        life.wait_until("a save", lambda: life.phase() == SAVING)
        moment = max(0.0, 2 * moment - 1)  # half of them at once
    if until == float("inf"):
        time.sleep(0.2 * moment)


def strike(life: Life, kind: str, draw: random.Random) -> Kill:
    """Kill one process; check the exit codes of all."""
    victim = draw.randrange(len(life.processes))
    number = signal.SIGTERM if kind == TERM else signal.SIGKILL
    codes, result = life.kill(victim, number)
    kill = Kill(kind, life.phase(), result.get("step", life.made()))
    expected = [0 if kind == TERM else EXIT_LOST] * len(codes)
    if kind != TERM:
        expected[victim] = -signal.SIGKILL
    elif not result.get("stopped"):
        raise life.error(f"was stopped and ended with {result}")
    if codes != expected:
        raise life.error(f"should have ended with {expected} by {kind} of {victim}")
    return kill


def train_with_kills(
    options: argparse.Namespace, workdir: Path, start: float
) -> tuple[list[Kill], int, dict]:
    """Train with kills; return them, the number of damaged checkpoints, the result."""
    draw, kills, damaged = random.Random(options.seed), [], 0
    kinds = [(*MOST_LOST,)[number % 3] for number in range(options.kills)]
    draw.shuffle(kinds)
    for number, kind in enumerate([*kinds, None], 1):
        with Life(options, workdir, str(number)) as life:
            if kind is None:
                result = life.finish(options.steps)
            else:
                goal = number * SPACING - draw.randrange(SPACING)
                await_moment(life, kind, goal, start, draw)
                kill = strike(life, kind, draw)
        if life.begin() is not None:
            start = life.start
            for each in kills:
                if each.resumed is None:
                    each.resumed = life.begin()
        damaged += life.output("err").count(" is damaged ")
        if kind is not None:
            kills.append(kill)
            print(f"{number}, began with step {life.begin()}: {kill}", file=sys.stderr)
    return kills, damaged, result


def summary(kills: list[Kill]) -> dict[str, dict]:
    """Summarise the cost of each kind of kill, and how far the run was."""
    found = {}
    for kind, bound in MOST_LOST.items():
        mine = [kill for kill in kills if kill.kind == kind]
        lost = [kill.lost for kill in mine] or [0]
        found[kind] = {
            "kills": len(mine), "resumes": sum(k.resumed is not None for k in mine),
            "lost_min": min(lost), "lost_median": statistics.median(lost),
            "lost_max": max(lost), "lost_allowed": bound,
            **{phase: sum(kill.phase == phase for kill in mine) for phase in PHASES},
        }  # fmt: skip
    return found


def experiment(options: argparse.Namespace) -> dict:
    began = time.monotonic()
    quiet, killed = options.workdir / "undisturbed", options.workdir / "disturbed"
    with Life(options, quiet, "1") as life:
        expected = {"result": str(sorted(life.finish(options.steps).items()))}
    kills, damaged, result = train_with_kills(options, killed, life.start)
    found = {"result": str(sorted(result.items())), **remains(killed)}
    different, kinds = differences(remains(quiet) | expected, found), summary(kills)
    rows = [" | ".join(map(str, (kind, *kinds[kind].values()))) for kind in kinds]
    harness.print_table(" | ".join(["kind", *kinds[KILL]]), rows)
    within = all(0 <= kill.lost <= MOST_LOST[kill.kind] for kill in kills)
    return {
        "kinds": kinds, "steps": options.steps, "damaged_checkpoints": damaged,
        "within_bounds": within, "bit_equal": not different,
        "different": different[:10], "holds": within and not different,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def measure(options: argparse.Namespace) -> dict:
    """Run the experiment in a folder that is deleted if everything holds."""
    options.steps = options.kills * SPACING + RESERVE
    is_kept = options.workdir is not None
    if is_kept and options.workdir.exists():
        raise InputError(f"{options.workdir} exists; name a new folder")
    options.workdir = (options.workdir or Path(tempfile.mkdtemp())).absolute()
    try:
        outcome = experiment(options)
    except FaultError as error:
        outcome = {"holds": False, "error": str(error)}
    if outcome["holds"] and not is_kept:
        shutil.rmtree(options.workdir)
    return outcome


main = functools.partial(
    harness.run, __doc__, measure, kills=50, seed=0, processes=1, workdir=None
)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children are killed
    sys.exit(main())
