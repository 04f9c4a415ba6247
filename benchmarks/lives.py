"""Lives of a training run: each from the start of its processes to their end."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import start_command
from jaxformer.training.log import read_metrics

PHASES = START, COMPILE, TRAIN, SAVING = "start-up", "compiling", "training", "saving"
SAVE_EVERY, LOG_EVERY = 4, 3  # steps; neither divides the other
ROWS, ROW = 4, 48  # of a microbatch; tokens of a packed row
PEER_TIMEOUT, JOIN_TIMEOUT, GRACE = 10, 60, 15  # seconds
PATIENCE = 300  # seconds without progress, after which a run counts as hanging
CLOCK = {"time", "seconds", "tokens_per_second"}  # values that depend on the clock
XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=1"
)
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
    """A process broke a promise; the message names its output."""


def process_flags(processes: int) -> list[list[str]]:
    """Return the flags of each process that let it find the others."""
    if processes == 1:
        return [[]]
    with socket.create_server(("127.0.0.1", 0)) as free:
        flags = [f"--coordinator_address=127.0.0.1:{free.getsockname()[1]}"]
    flags += [f"--num_processes={processes}"]
    flags += [f"--peer_timeout={PEER_TIMEOUT}", f"--join_timeout={JOIN_TIMEOUT}"]
    return [[*flags, f"--process_id={each}"] for each in range(processes)]


class Life:
    """One start of the command until its end; a context manager that ends it."""

    def __init__(self, options: argparse.Namespace, workdir: Path, name: str) -> None:
        self.workdir, self.logs = workdir, options.workdir / "logs"
        self.name, self.processes = f"{workdir.name}-{name}", []
        self.began, self.start = time.time(), 0.0  # seconds until `begin` is known
        self._begin: int | None = None
        self.logs.mkdir(parents=True, exist_ok=True)
        config = {**CONFIG, "training.steps": options.steps}
        environment = {
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}",
            "XDG_CACHE_HOME": str(options.workdir),
        }
        for index, flags in enumerate(process_flags(options.processes)):
            file = self.logs / f"{self.name}.{index}"
            flags = [f"--workdir={workdir}", *flags]
            with open(f"{file}.out", "wb") as out, open(f"{file}.err", "wb") as err:
                self.processes.append(start_command(
                    flags, config, environment, stdout=out, stderr=err
                ))  # fmt: skip

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait(GRACE)

    def output(self, stream: str) -> str:
        """Read what process 0 has written, to "err" or "out"."""
        return (self.logs / f"{self.name}.0.{stream}").read_text(errors="replace")

    def begin(self) -> int | None:
        """Return the step at which it begins; None if not yet logged."""
        log = r"^[a-z ]+: .* parameters, step ([\d,]+) of"
        if self._begin is None and (found := re.search(log, self.output("err"), re.M)):
            self._begin = int(found[1].replace(",", ""))
            self.start = time.time() - self.began
        return self._begin

    def made(self) -> int:
        """Return the last step that is logged, at most LOG_EVERY steps ago."""
        updates = [
            each for each in read_metrics(self.workdir) if each["kind"] == "train"
        ]
        if updates and updates[-1]["time"] >= self.began:  # else of an earlier life
            return updates[-1]["step"]
        return self.begin() or 0

    def phase(self) -> str:
        """Return how far it is, or was when it ended."""
        begin = self.begin()
        if begin is None:
            return START
        unfinished = self.workdir.glob("checkpoints/*.orbax-checkpoint-tmp*")
        # Those of earlier lives were deleted before `begin` was logged; those of an
        # earlier step are being removed.
        if any(int(path.name.partition(".")[0]) > begin for path in unfinished):
            return SAVING
        return COMPILE if self.made() == begin else TRAIN

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
        """Return exit codes and result once all processes end, within this time."""
        deadline = time.monotonic() + seconds
        try:
            for process in self.processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self.error(f"did not end within {seconds} s") from None
        lines = self.output("out").splitlines()
        codes = [process.returncode for process in self.processes]
        return codes, json.loads(lines[-1]) if lines else {}

    def kill(self, victim: int, number: signal.Signals) -> tuple[list[int], dict]:
        """Send a signal to one process; return as `end` when all have ended."""
        timeout = JOIN_TIMEOUT if self.begin() is None else PEER_TIMEOUT
        self.processes[victim].send_signal(number)
        return self.end(timeout + GRACE)

    def finish(self, steps: int) -> dict:
        """Wait for the end; return the result but for what depends on the clock."""
        self.wait_until("the last step", lambda: self.made() == steps)
        codes, result = self.end(PATIENCE)
        if any(codes) or "stopped" in result:
            raise self.error(f"finished with {result}")
        return {key: result[key] for key in result.keys() - CLOCK}

    def error(self, what: str) -> FaultError:
        """Return an error with the exit codes and the folder of the output."""
        codes = [process.poll() for process in self.processes]
        return FaultError(f"{self.name} {what}; exit codes {codes}; see {self.logs}")
