"""Kill a training run again and again, and show that nothing of it is lost.

    python benchmarks/faults.py [--kills=50] [--seed=0] [--devices=1] [--processes=1]

trains a small model once in peace and once under fire: SIGKILL at any moment, SIGTERM
while it trains, SIGKILL inside a save; after each kill the same command goes on. Prints
what every kind of kill cost, then the same as a line of JSON. The exit code is 0 only
if no kill cost more steps than MOST_LOST allows, all processes ended as they should,
and both runs end with the same bits.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
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

from jaxformer.processes import EXIT_PEER_LOST
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import METRICS_FILE
from jaxformer.training.step import TrainState

ROOT = Path(__file__).resolve().parents[1]
KILL, TERM, SAVE = "SIGKILL", "SIGTERM", "SIGKILL in a save"
PHASES = START, COMPILE, TRAIN, SAVING = "start-up", "compiling", "training", "saving"
SAVE_EVERY = 4  # steps
# Steps since the last save; one save may be in flight, and lost as well.
MOST_LOST = {KILL: 2 * SAVE_EVERY, TERM: 0, SAVE: 2 * SAVE_EVERY}
SPACING = 8  # steps from kill to kill, on average
RESERVE = 3 * SPACING  # steps after the last one, which may come late
ROW = 48  # places of a packed row
PEER_TIMEOUT, JOIN_TIMEOUT, GRACE = 10, 60, 15  # seconds
PATIENCE = 300  # seconds without progress: it hangs
CONFIG = {
    "data.builtin_pairs": 1000, "data.builtin_eval_pairs": 2, "data.vocab_size": 200,
    "data.max_length": ROW, "batches.row_length": ROW, "batches.executor": "python",
    "model.encoder_layers": 1, "model.decoder_layers": 1, "model.d_model": 32,
    "model.d_ff": 64, "model.num_heads": 2, "model.d_k": 16, "model.d_v": 16,
    "model.dropout": 0.1,
    "training.log_every": 1, "training.save_every": SAVE_EVERY, "training.keep": 3,
    "training.eval_every": SAVE_EVERY * 10**6,  # never: only the end is evaluated
    "training.average": 2, "training.ema_decay": 0.9, "decoding.beam_size": 1,
}  # fmt: skip


class FaultError(Exception):
    """A process did not do what was promised; the message says where to look."""


def announced_step(stderr: str) -> int | None:
    """The step that a run says it begins with; None before it says so."""
    found = re.search(r"^(?:training|going on): .*, step ([\d,]+) of", stderr, re.M)
    return int(found[1].replace(",", "")) if found else None


def newest_step(metrics: Path, since: float) -> int | None:
    """The last update in metrics.jsonl; None if it is from before the time `since`."""
    if not metrics.exists():
        return None
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - 4096))
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # a torn line
            if (values := json.loads(line))["kind"] == "train":
                return values["step"] if values["time"] >= since else None
    return None


def remains(workdir: Path) -> dict[str, object]:
    """What a run leaves, value by value: the newest checkpoint and all metrics.

    A leaf of the checkpoint is its type, shape and bytes. The clock's metrics are
    left out.
    """
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        step = checkpoints.latest_step()
        state = {
            field: checkpoints.restore_parameters(step, field=field)
            for field in TrainState._fields
        }
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        found[name] = (str(leaf.dtype), np.shape(leaf), np.asarray(leaf).tobytes())
    lines = (workdir / METRICS_FILE).read_text().splitlines()
    for values in map(json.loads, lines):
        for name in values.keys() - {"time", "tokens_per_second"}:
            found[f"{values['kind']} {values['step']} {name}"] = values[name]
    return {**found, "lines of metrics": len(lines)}  # no step is there twice


def differences(left: dict[str, object], right: dict[str, object]) -> list[str]:
    """Names of what only one side has, or what is not the same."""
    return sorted({name for name, _ in left.items() ^ right.items()})


def commands(options: argparse.Namespace, workdir: Path) -> list[list[str]]:
    """The command of each process."""
    rows = max(4, options.devices * options.processes)
    config = CONFIG | {
        "training.steps": options.steps,
        "batches.row_multiple": rows,
        "training.tokens_per_microbatch": rows * ROW,
        "training.tokens_per_update": 2 * rows * ROW,
    }
    command = [sys.executable, "-m", "jaxformer.main", f"--workdir={workdir}"]
    command += ["--config=configs/demo.py"]
    command += [f"--config.{key}={value}" for key, value in config.items()]
    if options.processes == 1:
        return [command]
    with socket.create_server(("127.0.0.1", 0)) as free:
        command += [f"--coordinator_address=127.0.0.1:{free.getsockname()[1]}"]
    command += [f"--num_processes={options.processes}"]
    command += [f"--peer_timeout={PEER_TIMEOUT}", f"--join_timeout={JOIN_TIMEOUT}"]
    return [[*command, f"--process_id={each}"] for each in range(options.processes)]


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    """Simulated devices, and programs that compile fast or only once."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count"
    flags += f"={options.devices}"
    if options.processes > 1:
        # Process 0 alone would find its programs in a cache, and then wait in vain for
        # the others to compile: the CPU's collectives give up after 30 seconds.
        return {"XLA_FLAGS": f"{flags} --xla_backend_optimization_level=0"}
    return {
        "XLA_FLAGS": flags,
        "JAX_COMPILATION_CACHE_DIR": str(options.workdir / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


class Life:
    """One start of the command until its end; a context manager that ends it."""

    def __init__(self, options: argparse.Namespace, workdir: Path, name: str) -> None:
        """Start all processes; what they say goes into files."""
        self.workdir, self.logs = workdir, options.workdir / "logs"
        self.name, self.processes = f"{workdir.name}-{name}", []
        self.began, self.start = time.time(), 0.0  # seconds to where it begins
        self._begin: int | None = None
        environment = os.environ | environment_of(options)
        self.logs.mkdir(parents=True, exist_ok=True)
        for index, command in enumerate(commands(options, workdir)):
            file = self.logs / f"{self.name}.{index}"
            with open(f"{file}.out", "wb") as out, open(f"{file}.err", "wb") as err:
                process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=out, stderr=err
                )
            self.processes.append(process)

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait(GRACE)

    def said(self, end: str) -> str:
        """What process 0 has written: to stderr if `end` is "err", to stdout: "out"."""
        return (self.logs / f"{self.name}.0.{end}").read_text(errors="replace")

    def begin(self) -> int | None:
        """The step it begins with; None before it says so."""
        if self._begin is None:
            self._begin = announced_step(self.said("err"))
            self.start = time.time() - self.began
        return self._begin

    def made(self) -> int:
        """The last step that is known to be made."""
        newest = newest_step(self.workdir / METRICS_FILE, self.began)
        return (self.begin() or 0) if newest is None else newest

    def phase(self) -> str:
        """How far it is, or was when it ended."""
        begin, made = self.begin(), self.made()
        if begin is None:
            return START
        unfinished = self.workdir.glob("checkpoints/*.orbax-checkpoint-tmp*")
        steps = [int(path.name.partition(".")[0]) for path in unfinished]
        # What an earlier life left is of a later step, or gone before this one saves.
        if any(begin < step <= made for step in steps):
            return SAVING
        return COMPILE if made == begin else TRAIN

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Return when it is so; FaultError if it ends or hangs before `what`."""
        progress, deadline = None, 0.0
        while not is_so():
            if self.made() != progress:
                progress, deadline = self.made(), time.monotonic() + PATIENCE
            if any(process.poll() is not None for process in self.processes):
                raise self.error(f"ended before {what}")
            if time.monotonic() > deadline:
                raise self.error(f"hangs before {what}")
            time.sleep(0.005)

    def end(self, seconds: float) -> tuple[list[int], dict]:
        """Exit codes and result, when it has ended by itself in that time."""
        deadline = time.monotonic() + seconds
        try:
            for process in self.processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self.error(f"did not end within {seconds} s") from None
        lines = self.said("out").splitlines()
        codes = [process.returncode for process in self.processes]
        return codes, json.loads(lines[-1]) if lines else {}

    def finish(self, steps: int) -> None:
        """Let it come to the end of the run."""
        self.wait_until("the last step", lambda: self.made() == steps)
        codes, result = self.end(PATIENCE)
        if any(codes) or "seconds" not in result:
            raise self.error(f"finished with {result}")

    def error(self, what: str) -> FaultError:
        """Say what is wrong, and where its words are."""
        codes = [process.poll() for process in self.processes]
        return FaultError(f"{self.name} {what}; exit codes {codes}; see {self.logs}")


@dataclass
class Kill:
    """One kill and what it cost."""

    kind: str
    phase: str
    made: int  # the last step made before
    resumed: int | None = None  # what the next life that got so far began with

    @property
    def lost(self) -> int:
        """Steps to be made again: none if it had not come to make any."""
        return 0 if self.phase == START else self.made - self.resumed


def await_moment(
    life: Life, kind: str, goal: int, start: float, draw: random.Random
) -> None:
    """Return at a random moment for a kill, not much later than step `goal`.

    `start` is about how many seconds a life takes until it knows where to begin.
    """
    which, moment, more = draw.randrange(3), draw.random(), draw.randint(0, SAVE_EVERY)
    if kind == KILL and which == 0:  # while it starts
        until = life.began + moment * start
        life.wait_until("a moment", lambda: time.time() > until or life.made() >= goal)
        return
    life.wait_until("training", lambda: life.begin() is not None)
    if kind != SAVE and which == 1:  # while it compiles, or soon after
        until, goal = time.time() + moment, life.begin() + 1
        life.wait_until("a moment", lambda: time.time() > until or life.made() >= goal)
        return
    goal = max(goal, life.begin() + more)
    life.wait_until(f"step {goal}", lambda: life.made() >= goal)
    if kind == SAVE:  # half of them at once
        life.wait_until("a save", lambda: life.phase() == SAVING)
        moment = max(0.0, 2 * moment - 1)
    time.sleep(0.2 * moment)


def strike(life: Life, kind: str, draw: random.Random) -> Kill:
    """Kill one process, and see that all of them end as they should."""
    victim, have_met = draw.randrange(len(life.processes)), life.begin() is not None
    number = signal.SIGTERM if kind == TERM else signal.SIGKILL
    life.processes[victim].send_signal(number)
    codes, result = life.end((PEER_TIMEOUT if have_met else JOIN_TIMEOUT) + GRACE)
    kill = Kill(kind, life.phase(), life.made())
    wanted = [0 if kind == TERM else EXIT_PEER_LOST] * len(codes)
    if kind != TERM:
        wanted[victim] = -signal.SIGKILL
    elif result != {"step": kill.made, "stopped": True}:
        raise life.error(f"stopped after step {kill.made} with {result}")
    if codes != wanted:
        raise life.error(f"should have ended with {wanted} by {kind} of {victim}")
    return kill


def train_under_fire(
    options: argparse.Namespace, workdir: Path, start: float
) -> tuple[list[Kill], int]:
    """Train with kills; returns them, and how many damaged checkpoints were found."""
    draw, kills, damaged = random.Random(options.seed), [], 0
    kinds = [(*MOST_LOST,)[number % 3] for number in range(options.kills)]
    draw.shuffle(kinds)
    for number, kind in enumerate([*kinds, None], 1):
        with Life(options, workdir, str(number)) as life:
            if kind is None:
                life.finish(options.steps)
            else:
                goal = number * SPACING - draw.randrange(SPACING)
                await_moment(life, kind, goal, start, draw)
                kill = strike(life, kind, draw)
        if life.begin() is not None:
            start = life.start
            for each in kills:
                each.resumed = life.begin() if each.resumed is None else each.resumed
        damaged += life.said("err").count(" is damaged ")
        if kind is not None:
            kills.append(kill)
            steps = f"began with step {life.begin()}, made {kill.made}"
            print(f"kill {number}: {kind}, {kill.phase}; {steps}", file=sys.stderr)
    return kills, damaged


def summary(kills: list[Kill]) -> dict[str, dict]:
    """What each kind of kill cost, and how far the run was."""
    found = {}
    for kind, bound in MOST_LOST.items():
        mine = [kill for kill in kills if kill.kind == kind]
        lost = [kill.lost for kill in mine] or [0]
        found[kind] = {
            "kills": len(mine),
            "resumes": sum(kill.resumed is not None for kill in mine),
            "lost_min": min(lost),
            "lost_median": statistics.median(lost),
            "lost_max": max(lost),
            "lost_allowed": bound,
            **{phase: sum(kill.phase == phase for kill in mine) for phase in PHASES},
        }
    return found


def experiment(options: argparse.Namespace) -> dict:
    """Train in peace and under fire, compare what is left, and print the table."""
    began = time.monotonic()
    peace, fire = options.workdir / "undisturbed", options.workdir / "disturbed"
    with Life(options, peace, "1") as life:
        life.finish(options.steps)
    kills, damaged = train_under_fire(options, fire, life.start)
    different = differences(remains(peace), remains(fire))
    kinds = summary(kills)
    rows = [["kind", *kinds[KILL]], ["---"] * (1 + len(kinds[KILL]))]
    rows += [[kind, *map(str, values.values())] for kind, values in kinds.items()]
    print(*(f"| {' | '.join(row)} |" for row in rows), sep="\n")
    return {
        "kinds": kinds,
        "steps": options.steps,
        "damaged_checkpoints": damaged,
        "within_bounds": all(0 <= kill.lost <= MOST_LOST[kill.kind] for kill in kills),
        "bit_equal": not different,
        "different": different[:10],
        "seconds": round(time.monotonic() - began, 1),
    }


def main(argv: list[str] | None = None) -> int:
    """Run the experiment and print its outcome; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("kills", 50), ("seed", 0), ("devices", 1), ("processes", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--workdir", type=Path, help="new folder to work in, and keep")
    options = parser.parse_args(argv)
    options.steps = options.kills * SPACING + RESERVE
    is_kept = options.workdir is not None
    if is_kept and options.workdir.exists():
        parser.error(f"{options.workdir} exists already")
    options.workdir = (options.workdir or Path(tempfile.mkdtemp())).absolute()
    try:
        outcome = experiment(options)
    except FaultError as error:
        print(f"faults: {error}", file=sys.stderr)
        return 1
    print(json.dumps(outcome))
    if not (outcome["bit_equal"] and outcome["within_bounds"]):
        return 1
    if not is_kept:
        shutil.rmtree(options.workdir)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children are killed
    sys.exit(main())
