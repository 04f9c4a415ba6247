"""A checkout with only the launch scripts, and stubs that record their calls."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEPARATOR = "\x1f"
STUB = """#!/usr/bin/env bash
printf -v call '%s{separator}' {name} "$@"
echo "$call" >> {calls}
{body}
"""


@dataclass
class Checkout:
    """A folder with launch/ in it, whose commands are stubs."""

    root: Path
    environment: dict[str, str]
    started: list[subprocess.Popen] = field(default_factory=list)

    def stub(self, name: str, body: str = "") -> Path:
        """Put a command on PATH that records its arguments, then does `body`."""
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            STUB.format(
                separator=SEPARATOR, name=name, calls=self.root / "calls", body=body
            )
        )
        path.chmod(0o755)
        return path

    def calls(self) -> list[list[str]]:
        """What the stubs were called with, in order, their names first."""
        record = self.root / "calls"
        lines = record.read_text().splitlines() if record.exists() else []
        return [line.split(SEPARATOR)[:-1] for line in lines]

    def start(
        self, script: str, *arguments: str, **environment: str
    ) -> subprocess.Popen:
        """Start a script of launch/."""
        process = subprocess.Popen(
            [self.root / "launch" / script, *arguments],
            cwd=self.root,
            env=self.environment | environment,
            text=True,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, script: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run a script of launch/ to its end: exit code and stderr."""
        process = self.start(script, *arguments, **environment)
        _, stderr = process.communicate(timeout=20)
        return process.returncode, stderr

    def terminate(self, process: subprocess.Popen) -> int:
        """Send SIGTERM; returns the exit code."""
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        return process.returncode


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    """The launch scripts in a folder of their own, `.venv/bin/python` being a stub."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    made = Checkout(tmp_path, environment)
    python = made.stub("python")
    venv = tmp_path / ".venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(python)
    yield made
    for process in made.started:  # those that a failed test left behind
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is true."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it never became true"
            time.sleep(0.01)

    return wait
