"""A checkout with only the launch scripts, and stubs that record their calls."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"
SEPARATOR = "\x1f"
STUB = """#!/usr/bin/env bash
printf -v call '%s{separator}' {name} "$@"
echo "$call" >> {calls}
{body}
"""
# Says that it runs, and on SIGTERM saves and ends with 0.
UNTIL_TERM = """
trap 'echo saved >> "$HOME/saved"; exit 0' TERM
echo >> "$HOME/running"
for ((i = 0; i < 500; i++)); do sleep 0.02; done  # not for ever
"""
TRAIN = ("configs/x.py", "gs://b/x", "--config.a.b=c d")
TRAINED = [
    "-m", "jaxformer.main", "train", "--config=configs/x.py", "gs://b/x",
    "--config.a.b=c d",
]  # fmt: skip


class Checkout:
    """A folder with launch/ in it, whose commands are stubs."""

    def __init__(self, root: Path) -> None:
        self.root, self.started = root, []
        (root / "calls").touch()
        path = f"{root / 'bin'}:{os.environ['PATH']}"
        self.environment = {"PATH": path, "HOME": str(root)}

    def stub(self, name: str, body: str = "") -> Path:
        """Put a command on PATH that records its arguments, then does `body`."""
        path, calls = self.root / "bin" / name, self.root / "calls"
        path.parent.mkdir(exist_ok=True)
        text = STUB.format(separator=SEPARATOR, name=name, calls=calls, body=body)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def calls(self) -> list[list[str]]:
        """Read what the stubs were called with, in order, their names first."""
        lines = (self.root / "calls").read_text().splitlines()
        return [line.split(SEPARATOR)[:-1] for line in lines]

    def start(self, script: str, *arguments: str, **variables: str):
        command = [self.root / "launch" / script, *arguments]
        started = {"env": self.environment | variables, "start_new_session": True}
        self.started.append(subprocess.Popen(
            command, cwd=self.root, text=True, stderr=subprocess.PIPE, **started
        ))  # fmt: skip
        return self.started[-1]

    def run(self, script: str, *arguments: str, **variables: str) -> tuple[int, str]:
        """Run a script of launch/ to its end: exit code and stderr."""
        process = self.start(script, *arguments, **variables)
        _, stderr = process.communicate(timeout=20)
        return process.returncode, stderr

    def bash(self, command: str, home: Path) -> int:
        """Run a command as a worker whose home is `home`: exit code."""
        environment = self.environment | {"HOME": str(home)}
        return subprocess.call(["bash", "-c", command], cwd=home, env=environment)

    def terminate(self, process: subprocess.Popen) -> int:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        return process.returncode

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it never became true"
            time.sleep(0.01)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    """The launch scripts in a folder of their own, `.venv/bin/python` being a stub."""
    shutil.copytree(LAUNCH, tmp_path / "launch")
    made = Checkout(tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(made.stub("python"))
    yield made
    for process in made.started:  # those that a failed test left behind
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
