"""Lives of a training run: each from the start of its processes to their end.

Used by benchmarks/faults.py, which ends most of them early.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import ROOT
from jaxformer.training.log import METRICS_FILE

PHASES = START, COMPILE, TRAIN, SAVING = "start-up", "compiling", "training", "saving"
SAVE_EVERY = 4  # steps
ROWS, ROW = 4, 48  # of a microbatch; tokens of a packed row
PEER_TIMEOUT, JOIN_TIMEOUT, GRACE = 10, 60, 15  # seconds
PATIENCE = 300  # seconds without progress, after which a run counts as hanging
CONFIG = {
    "data.builtin_pairs": 1000, "data.builtin_eval_pairs": 2, "data.vocab_size": 200,
    "data.max_length": ROW, "batches.row_length": ROW, "batches.executor": "python",
    "batches.row_multiple": ROWS, "training.tokens_per_microbatch": ROWS * ROW,
    "training.tokens_per_update": 2 * ROWS * ROW, "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 2, "model.d_k": 16,
    "model.d_v": 16, "model.dropout": 0.1, "training.log_every": 1,
    "training.save_every": SAVE_EVERY, "training.keep": 3, "training.average": 2,
    "training.eval_every": SAVE_EVERY * 10**6,  # only the end is evaluated
    "training.ema_decay": 0.9, "decoding.beam_size": 1,
}  # fmt: skip


class FaultError(Exception):
    """A process did not do what was promised; the message says where to look."""


def read_metrics(workdir: Path) -> list[dict]:
    """Read the whole lines of metrics.jsonl."""
    file = workdir / METRICS_FILE
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]


def newest_step(workdir: Path, since: float) -> int | None:
    """Give the newest update of the metrics; None if it was before the time `since`."""
    updates = [each for each in read_metrics(workdir) if each["kind"] == "train"]
    is_new = updates and updates[-1]["time"] >= since
    return updates[-1]["step"] if is_new else None


def announced_step(stderr: str) -> int | None:
    """Read the step that a run says it begins with; None before it says so."""
    found = re.search(r"^[a-z ]+: .* parameters, step ([\d,]+) of", stderr, re.M)
    return int(found[1].replace(",", "")) if found else None


def commands(options: argparse.Namespace, workdir: Path) -> list[list[str]]:
    """Give the command of each process."""
    command = [sys.executable, "-m", "jaxformer.main", f"--workdir={workdir}"]
    command += ["--config=configs/demo.py", f"--config.training.steps={options.steps}"]
    command += [f"--config.{key}={value}" for key, value in CONFIG.items()]
    if options.processes == 1:
        return [command]
    with socket.create_server(("127.0.0.1", 0)) as free:
        command += [f"--coordinator_address=127.0.0.1:{free.getsockname()[1]}"]
    command += [f"--num_processes={options.processes}"]
    command += [f"--peer_timeout={PEER_TIMEOUT}", f"--join_timeout={JOIN_TIMEOUT}"]
    return [[*command, f"--process_id={each}"] for each in range(options.processes)]


class Life:
    """One start of the command until its end; a context manager that ends it."""

    def __init__(self, options: argparse.Namespace, workdir: Path, name: str) -> None:
        """Start all processes; their output goes into files."""
        self.workdir, self.logs = workdir, options.workdir / "logs"
        self.name, self.processes = f"{workdir.name}-{name}", []
        self.began, self.start = time.time(), 0.0  # seconds until `begin` is known
        self._begin: int | None = None
        flags = os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=0"
        environment = os.environ | {
            "XLA_FLAGS": " ".join([*flags, "--xla_force_host_platform_device_count=1"]),
            "XDG_CACHE_HOME": str(options.workdir),  # of compiled programs
        }
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.logs.mkdir(parents=True, exist_ok=True)
        for index, command in enumerate(commands(options, workdir)):
            file = self.logs / f"{self.name}.{index}"
            with open(f"{file}.out", "wb") as out, open(f"{file}.err", "wb") as err:
                self.processes.append(subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=out, stderr=err
                ))  # fmt: skip

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait(GRACE)

    def said(self, end: str) -> str:
        """Read what process 0 has written, to "err" or "out"."""
        return (self.logs / f"{self.name}.0.{end}").read_text(errors="replace")

    def begin(self) -> int | None:
        """Give the step it begins with; None before it says so."""
        if self._begin is None:
            self._begin = announced_step(self.said("err"))
            self.start = time.time() - self.began
        return self._begin

    def made(self) -> int:
        """Give the last step that is known to be made."""
        newest = newest_step(self.workdir, self.began)
        return (self.begin() or 0) if newest is None else newest

    def phase(self) -> str:
        """Say how far it is, or was when it ended."""
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
        """Give exit codes and result when it has ended by itself in that time."""
        deadline = time.monotonic() + seconds
        try:
            for process in self.processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self.error(f"did not end within {seconds} s") from None
        lines = self.said("out").splitlines()
        codes = [process.returncode for process in self.processes]
        return codes, json.loads(lines[-1]) if lines else {}

    def kill(self, victim: int, number: signal.Signals) -> tuple[list[int], dict]:
        """Send a signal to one process; give what `end` does when all have ended."""
        timeout = JOIN_TIMEOUT if self.begin() is None else PEER_TIMEOUT
        self.processes[victim].send_signal(number)
        return self.end(timeout + GRACE)

    def finish(self, steps: int) -> None:
        """Let it reach the end of the run."""
        self.wait_until("the last step", lambda: self.made() == steps)
        codes, result = self.end(PATIENCE)
        if any(codes) or "seconds" not in result:
            raise self.error(f"finished with {result}")

    def error(self, what: str) -> FaultError:
        """Say what is wrong, and where its output is."""
        codes = [process.poll() for process in self.processes]
        return FaultError(f"{self.name} {what}; exit codes {codes}; see {self.logs}")
