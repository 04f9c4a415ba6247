"""Kill a training run again and again, and check that nothing is lost.

    python benchmarks/faults.py [--kills=50] [--seed=0] [--workdir=NEW]

Trains a small model once undisturbed and once with kills: SIGKILL at any moment,
SIGTERM while it trains, SIGKILL inside a save; after each kill the same command
resumes. Prints what every kind of kill cost. The exit code is 0 only if no kill cost
more steps than MOST_LOST allows, the command always ended with the right exit code, and
both runs end with the same parameters, optimiser state, averaged model, final scores
and lines of metrics.jsonl, bit for bit. --workdir is a new folder, which is kept.
"""

import argparse
import functools
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from benchmarks import harness
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.training.log import read_metrics
from jaxformer.training.step import TrainState

PHASES = START, COMPILE, TRAIN, SAVING = "start-up", "compiling", "training", "saving"
SAVE_EVERY, LOG_EVERY = 4, 3  # steps; neither divides the other
KILL, TERM, SAVE = "SIGKILL", "SIGTERM", "SIGKILL in a save"
# Steps since the last save; one save may be in flight, and lost as well.
MOST_LOST = {KILL: 2 * SAVE_EVERY, TERM: 0, SAVE: 2 * SAVE_EVERY}
SPACING = 8  # steps from kill to kill, on average
RESERVE = 3 * SPACING  # steps after the last kill, which may be late
PATIENCE = 300  # seconds without progress, after which a run counts as hanging
CLOCK = {"time", "seconds", "tokens_per_second", "run"}  # values that may differ
XLA_FLAGS = "--xla_backend_optimization_level=0"
ROWS, ROW = 4, 48  # of a microbatch; tokens of a packed row
CONFIG = {
    "data.train": 1000, "data.dev": 2, "data.test": 2, "data.vocab_size": 200,
    "data.max_length": ROW, "batches.row_length": ROW, "batches.executor": "python",
    "batches.row_multiple": ROWS, "training.tokens_per_microbatch": ROWS * ROW,
    "training.tokens_per_update": 2 * ROWS * ROW, "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 2, "model.d_k": 16,
    "model.d_v": 16, "model.dropout": 0.1, "training.log_every": LOG_EVERY,
    "training.save_every": SAVE_EVERY, "training.keep": 3, "training.average": 2,
    "training.eval_every": 4 * SAVE_EVERY, "decoding.beam_size": 1,
}  # fmt: skip


class FaultError(Exception):
    """The command broke a promise; the message names its output."""


class Life:
    """One start of the command until its end; a context manager that ends it."""

    def __init__(self, options: argparse.Namespace, workdir: Path, name: str) -> None:
        self.workdir, self.began = workdir, time.time()
        self._log, self._begin = options.workdir / f"{workdir.name}-{name}.err", None
        flags = ["--config=configs/demo.py", f"--workdir={workdir}"]
        config = {**CONFIG, "training.steps": options.steps}
        environment = {"XLA_FLAGS": XLA_FLAGS, "XDG_CACHE_HOME": str(options.workdir)}
        with self._log.open("w") as log:
            self.process = harness.start_command(
                flags, config, environment, stdout=subprocess.PIPE, stderr=log
            )

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def begin(self) -> int | None:
        """Return the step at which it begins; None if not yet logged."""
        line = r"^[a-z ]+: .* parameters, step ([\d,]+) of"
        if self._begin is None and (found := re.search(line, self.log(), re.M)):
            self._begin = int(found[1].replace(",", ""))
        return self._begin

    def made(self) -> int:
        """Return the last step that is logged, at most LOG_EVERY steps ago."""
        lines = read_metrics(self.workdir)
        updates = [each for each in lines if each["kind"] == "train"]
        if updates and updates[-1]["time"] >= self.began:  # else of an earlier life
            return updates[-1]["step"]
        return self.begin() or 0

    def phase(self) -> str:
        """Return how far it is, or was when it ended."""
        if self.begin() is None:
            return START
        unfinished = self.workdir.glob("checkpoints/*.orbax-checkpoint-tmp*")
        # Those of earlier lives were deleted before `begin` was logged; those of an
        # earlier step are being removed.
        steps = [int(path.name.partition(".")[0]) for path in unfinished]
        if max(steps, default=0) > self.begin():
            return SAVING
        return COMPILE if self.made() == self.begin() else TRAIN

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Return when it is so; FaultError if it ends or hangs before `what`."""
        progress, deadline = None, 0.0
        while not is_so():
            if self.made() != progress:
                progress, deadline = self.made(), time.monotonic() + PATIENCE
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise self.error(f"ended or hangs before {what}")
            time.sleep(0.005)

    def end(self, expected: int) -> dict:
        """Wait for the end and this exit code; return the result but for the clock."""
        try:
            printed, _ = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise self.error("does not end") from None
        if self.process.returncode != expected:
            raise self.error(f"should have ended with {expected}")
        result = json.loads(printed.splitlines()[-1]) if printed else {}
        return {key: result[key] for key in result.keys() - CLOCK}

    def error(self, what: str) -> FaultError:
        """Return an error with the exit code and the file of the output."""
        return FaultError(f"{what}; exit code {self.process.poll()}; see {self._log}")


@dataclass
class Kill:
    """One kill and what it cost."""

    kind: str
    phase: str
    made: int  # the last step made before
    lost: int = 0  # logged steps that the next life which trained had to repeat


def await_moment(life: Life, kind: str, goal: int, draw: random.Random) -> None:
    """Return at a random moment for a kill, not much later than step `goal`.

    Of three kills at any moment, one is while it starts, and one while it compiles or
    soon after.
    """
    place = draw.randrange(3) if kind == KILL else 2
    if place == 0:
        seconds = draw.uniform(0, 10)
    else:
        life.wait_until("training", lambda: life.begin() is not None)
        seconds = draw.random() if place == 1 else PATIENCE
    until = time.time() + seconds
    life.wait_until("a moment", lambda: time.time() > until or life.made() >= goal)
    if kind == SAVE:
        life.wait_until("a save", lambda: life.phase() == SAVING)
        time.sleep(max(0.0, draw.uniform(-0.2, 0.2)))  # half of them at once


def strike(life: Life, kind: str) -> Kill:
    """Kill it; check how it ends."""
    is_term = kind == TERM
    life.process.send_signal(signal.SIGTERM if is_term else signal.SIGKILL)
    found = life.end(0 if is_term else -signal.SIGKILL)
    if is_term and not found.get("stopped"):
        raise life.error(f"was stopped and ended with {found}")
    return Kill(kind, life.phase(), found.get("step", life.made()))


def train_with_kills(
    options: argparse.Namespace, workdir: Path
) -> tuple[list[Kill], dict]:
    """Train with kills; return them and the result."""
    draw, kills, open_kills = random.Random(options.seed), [], []
    kinds = [(*MOST_LOST,)[number % 3] for number in range(options.kills)]
    draw.shuffle(kinds)
    for number, kind in enumerate([*kinds, None], 1):
        with Life(options, workdir, str(number)) as life:
            if kind is None:
                result = life.end(0)
            else:
                await_moment(
                    life, kind, number * SPACING - draw.randrange(SPACING), draw
                )
                kills.append(strike(life, kind))
        if " is damaged " in life.log():
            raise life.error("found a damaged checkpoint")
        if life.begin() is not None:
            for each in open_kills:
                each.lost = max(0, each.made - life.begin())
            open_kills.clear()
        if kind is not None:
            open_kills += [] if kills[-1].phase == START else kills[-1:]
            print(f"{number}, from step {life.begin()}: {kills[-1]}", file=sys.stderr)
    return kills, result


def remains(workdir: Path, result: dict) -> dict[str, object]:
    """Read the newest checkpoint, the average and all metrics of a run, by value.

    A leaf of the checkpoint is its type, shape and bytes. Metrics that depend on the
    clock are left out.
    """
    folder = Workdir(workdir)
    with folder.open_checkpoints(folder.recorded()) as checkpoints:
        step = checkpoints.latest_step()
        state = {
            field: checkpoints.restore_parameters(step, field=field)
            for field in TrainState._fields
            if field not in ("ema", "baseline")  # which the config leaves out
        }
        state["average"] = checkpoints.average(CONFIG["training.average"])
        saved = checkpoints.steps()
    lines = read_metrics(workdir)
    order = [(line["step"], line["kind"]) for line in lines]  # shows a repeated step
    found: dict[str, object] = {"lines of metrics": str(order), "steps": str(saved)}
    found["result"] = str(sorted(result.items()))
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


def summary(kills: list[Kill]) -> dict[str, dict]:
    """Summarise the cost of each kind of kill, and how far the run was."""
    found = {}
    for kind, bound in MOST_LOST.items():
        mine = [kill for kill in kills if kill.kind == kind]
        lost = [kill.lost for kill in mine] or [0]
        found[kind] = {
            "kills": len(mine), "lost_min": min(lost),
            "lost_median": statistics.median(lost), "lost_max": max(lost),
            "lost_allowed": bound,
            **{phase: sum(kill.phase == phase for kill in mine) for phase in PHASES},
        }  # fmt: skip
    return found


def experiment(options: argparse.Namespace) -> dict:
    quiet, killed = options.workdir / "undisturbed", options.workdir / "disturbed"
    with Life(options, quiet, "1") as life:
        expected = remains(quiet, life.end(0))
    kills, result = train_with_kills(options, killed)
    different, kinds = differences(expected, remains(killed, result)), summary(kills)
    rows = [" | ".join(map(str, (kind, *kinds[kind].values()))) for kind in kinds]
    harness.print_table(" | ".join(["kind", *kinds[KILL]]), rows)
    within = all(kill.lost <= MOST_LOST[kill.kind] for kill in kills)
    found = {"kinds": kinds, "within_bounds": within, "different": different[:10]}
    return found | {"holds": within and not different}


def measure(options: argparse.Namespace) -> dict:
    """Run the experiment in a folder that is deleted if everything holds."""
    options.steps = options.kills * SPACING + RESERVE
    is_kept = options.workdir is not None
    if is_kept and options.workdir.exists():
        raise InputError(f"{options.workdir} exists; name a new folder")
    options.workdir = (options.workdir or Path(tempfile.mkdtemp())).absolute()
    options.workdir.mkdir(parents=True, exist_ok=True)
    try:
        outcome = experiment(options)
    except FaultError as error:
        outcome = {"holds": False, "error": str(error)}
    if outcome["holds"] and not is_kept:
        shutil.rmtree(options.workdir)
    return outcome


main = functools.partial(harness.run, __doc__, measure, kills=50, seed=0, workdir=None)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children are killed
    sys.exit(main())
