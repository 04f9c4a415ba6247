"""Run commands, and measure the processor time that other processes use meanwhile."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.harness import ROOT

BUSY = 0.3  # cores that others may use during a measurement
IDLE_SECONDS = 5.0  # in which others are watched before it
SUBREAPER = 36  # of prctl: orphans of our children become ours, and count as ours


class Unusable(Exception):
    """A measurement was not made, or is thrown away; the message is one line."""


def seconds_of_others() -> float:
    """Return processor seconds since boot of all but this process and ended children.

    Idle time, time of waiting for disks and time of other virtual machines are left
    out.
    """
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    return busy - sum(os.times()[:4])


def start_watching() -> tuple[float, float]:
    """Return what `cores_of_others` begins with: the time and the others' seconds."""
    return time.monotonic(), seconds_of_others()


def cores_of_others(since: tuple[float, float]) -> float:
    """Return the cores that others have used since `start_watching()`."""
    start, used = since
    return (seconds_of_others() - used) / (time.monotonic() - start)


def wait_until_idle(limit: float) -> None:
    """Wait until others leave the machine alone; raises Unusable after the limit."""
    end, said = time.monotonic() + limit, False
    while True:
        since = start_watching()
        time.sleep(IDLE_SECONDS)
        if (used := cores_of_others(since)) <= BUSY:
            return
        if time.monotonic() >= end:
            raise Unusable(f"other processes use {used:.1f} cores")
        if not said:
            print(f"waiting: other processes use {used:.1f} cores", file=sys.stderr)
        said = True


def run(command: str, log: Path) -> str:
    """Run a command of the shell on the CPU; return its stdout, and append all to log.

    Processes that it leaves behind are killed. Raises Unusable if it fails.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    known = set(psutil.Process().children())
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    try:
        with log.open("a+", encoding="utf-8") as file:
            start = file.tell()
            done = subprocess.run(
                command, shell=True, cwd=ROOT, env=environment, check=False,
                stdout=subprocess.PIPE, stderr=file, text=True,
            )  # fmt: skip
            file.seek(start)
            errors = file.read()
            file.write(done.stdout)
    finally:
        while left := set(psutil.Process().children()) - known:
            for child in left:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
        ctypes.CDLL(None).prctl(SUBREAPER, 0)
    if done.returncode:
        lines = (errors.strip() or done.stdout.strip()).splitlines() or [""]
        raise Unusable(f"{command}: exit code {done.returncode}, {lines[-1]} ({log})")
    return done.stdout
