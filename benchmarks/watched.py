"""Run a command and watch the memory and the time of its processes."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_PAUSE = 0.1  # seconds between two samples
_TICKS = os.sysconf("SC_CLK_TCK")  # a second


class Process:
    """A command, with the most memory that each of its processes had.

    Files that are mapped count as far as they are in memory.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._start = time.perf_counter()
        self._memory: dict[int, int] = {}  # kibibytes by process id
        self._cores: dict[int, float] = {}  # seconds of a core by process id
        self._process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL
        )

    def _sample(self) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                pid = int(folder.name)
                if os.getsid(pid) == self._process.pid:
                    lines = (folder / "status").read_text().splitlines()
                    (most,) = (line for line in lines if line.startswith("VmHWM"))
                    self._memory[pid] = int(most.split()[1])
                    times = (folder / "stat").read_text().rpartition(")")[2].split()
                    self._cores[pid] = sum(map(int, times[11:13])) / _TICKS
            except (OSError, ValueError):  # it has ended
                continue

    def wait(self, until: Callable[[], bool] = lambda: False) -> float:
        """Wait for the end, or kill the command when `until()` is true; the seconds."""
        while self._process.poll() is None:
            self._sample()
            if until():
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                break
            time.sleep(_PAUSE)
        else:
            if self._process.returncode:
                raise SystemExit(f"a command ended with {self._process.returncode}")
        return time.perf_counter() - self._start

    def gigabytes(self) -> dict[str, float]:
        """The most memory of the first process, and of any other."""
        others = self._memory | {self._process.pid: 0}
        main = self._memory.get(self._process.pid, 0)
        return {"main": main / 1e6, "largest other": max(others.values()) / 1e6}

    def core_seconds(self) -> dict[str, float]:
        """The processor time of the first process, and of all others."""
        main = self._cores.get(self._process.pid, 0)
        return {"main": main, "others": sum(self._cores.values()) - main}
