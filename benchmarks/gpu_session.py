"""The commands of benchmarks/gpu.py: ended in time, logged, and the card sampled."""

import contextlib
import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness

COMMIT = harness.ROOT / "commit"  # of a pack, which has no repository
SAMPLED = "clocks.sm", "power.draw", "memory.used", "utilization.gpu"
MOST_LOG = 2000  # characters of standard error that an error has

Part = tuple[str, dict[str, Any]]  # of a step: its name, and what was found


class Failed(Exception):
    """A command failed or did not end in time."""


@dataclass
class Session:
    """What the steps share: where they write, and how long they may take."""

    output: Path
    scratch: Path
    large: Path  # for what is written often, if possible in memory
    environment: dict[str, str]
    until: float = 0.0  # by time.monotonic(), when the step that runs must have ended
    running: list["Command"] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Seconds that the step has."""
        return self.until - time.monotonic()

    @property
    def log(self) -> Path:
        return self.output / "gpu.log"

    def write_log(self, text: str) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def start(self, *words: str) -> "Command":
        """Start Python with these arguments."""
        self.write_log(f"+ python {' '.join(words)}")
        self.running.append(Command(self, words))
        return self.running[-1]

    def run(self, *words: str) -> dict[str, Any]:
        """Run Python with these arguments and return the JSON that it prints."""
        return self.start(*words).result()

    def end_all(self) -> None:
        """Kill what a step has left running."""
        for command in self.running:
            command.kill()
        self.running.clear()


class Command:
    """A Python process with children; its last line of output is JSON."""

    def __init__(self, session: Session, words: Sequence[str]) -> None:
        self._session, self._name = session, " ".join(words[:3])
        self._printed, self._said = (
            tempfile.TemporaryFile(mode, encoding="utf-8", errors="replace")  # noqa: SIM115
            for mode in ("w+", "w+")
        )
        # The kernel kills the process when this program is killed.
        setpriv = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []
        self._process = subprocess.Popen(
            [*setpriv, sys.executable, *words], cwd=harness.ROOT,
            env=session.environment, stdout=self._printed, stderr=self._said,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask the process to end by itself."""
        self._process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait for the end for some seconds at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.1, seconds))

    def kill(self) -> None:
        """Kill the process and its children, and log what it said."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._read()

    def _read(self) -> tuple[str, str]:
        """Log what was printed and said, and return it; once."""
        texts = []
        for file in (self._printed, self._said):
            if file.closed:
                return "", ""
            file.seek(0)
            texts.append(file.read())
            file.close()
        self._session.write_log(f"{self._name}:\n{texts[1]}{texts[0]}")
        return texts[0], texts[1]

    def result(self, spare: float = 0.0) -> dict[str, Any]:
        """Wait for the end, `spare` seconds less than the step has; return the JSON.

        Raises Failed, after which the process is gone. A benchmark whose outcome does
        not hold has the code 1, and no error.
        """
        self.wait(self._session.left - spare)
        if self.is_running:
            self.kill()
            raise Failed(f"{self._name}: not ended in time")
        printed, said = self._read()
        last, code = printed.rstrip().rpartition("\n")[2], self._process.returncode
        if code not in (0, 1) or not last.startswith("{"):
            raise Failed(f"{self._name}: exit code {code}: {said[-MOST_LOG:]}")
        found = json.loads(last)
        found.pop("machine", None)
        return found


@contextlib.contextmanager
def sampled() -> Iterator[dict[str, Any]]:
    """Sample the card once a second; at the end fill a dict by the names in SAMPLED.

    Each value is the median and the greatest of the samples with work. It is empty
    without nvidia-smi.
    """
    found: dict[str, Any] = {}
    if shutil.which("nvidia-smi") is None:
        yield found
        return
    query = ["nvidia-smi", f"--query-gpu={','.join(SAMPLED)}", "-lms=1000"]
    query.append("--format=csv,noheader,nounits")
    if shutil.which("stdbuf"):
        query = ["stdbuf", "-oL", *query]  # a file would get whole blocks
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(query, stdout=printed, stderr=subprocess.DEVNULL)
        try:
            yield found
        finally:
            process.kill()
            process.wait()
            printed.seek(0)
            found |= summarise(printed.read().splitlines())


def summarise(lines: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return median and greatest value of each of SAMPLED, of the samples with work."""
    samples = []
    for row in csv.reader(lines):
        with contextlib.suppress(ValueError):  # a line that is cut, "[N/A]"
            samples.append(dict(zip(SAMPLED, map(float, row), strict=True)))
    samples = [each for each in samples if each[SAMPLED[-1]] > 0]
    found = {}
    for name in SAMPLED if samples else ():
        values = [each[name] for each in samples]
        found[name] = statistics.median(values), max(values)
    return found


def describe_commit() -> str:
    """Name the commit of this repository or pack; "unknown" without one."""
    if COMMIT.exists():
        return COMMIT.read_text().strip()
    git = ["git", "-C", str(harness.ROOT), "describe", "--always", "--dirty"]
    return _said_by(git) or "unknown"


def describe_machine() -> dict[str, Any]:
    """Describe card, driver, processor, versions and commit."""
    card = "name,driver_version,clocks.max.sm,power.limit"
    query = ["nvidia-smi", f"--query-gpu={card}", "--format=csv,noheader"]
    found = harness.machine() | {"commit": describe_commit()}
    return found | ({"card": said} if (said := _said_by(query)) else {})


def _said_by(command: Sequence[str]) -> str:
    """Return what a program prints; "" if it is not there or fails."""
    try:
        said = subprocess.check_output(command, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said.decode().strip()
