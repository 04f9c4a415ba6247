"""Several processes on the loopback, with their output in files."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEVICES = "--xla_force_host_platform_device_count"  # the last one counts
PEER_TIMEOUT = 10  # seconds, the least that the flag takes
PROGRAM = """
from jaxformer import main
from jaxformer.system import processes

processes.JOIN_TIMEOUT = {}  # seconds
main.run_process()
"""


class Cluster:
    """`count` processes with `devices` each; `only` one of them if it is given.

    `found` gives variables of a cluster's environment, which replace the flags.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        *argv: str,
        devices: int = 1,
        stdin: str = "",
        join_timeout: int = 60,
        only: int | None = None,
        found: Callable[[int], dict[str, str]] | None = None,
    ) -> None:
        self.folder, self.processes = folder, []
        folder.mkdir()
        (folder / "in").write_text(stdin)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {DEVICES}={devices}",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_COORDINATOR_PORT": str(port),
            "LC_ALL": "C",
        }
        if count > 1 and not found:
            argv += (
                f"--coordinator_address=127.0.0.1:{port}",
                f"--num_processes={count}",
            )
            argv += (f"--peer_timeout={PEER_TIMEOUT}",)
        for index in range(count) if only is None else [only]:
            number = [f"--process_id={index}"] if count > 1 and not found else []
            with (
                (folder / "in" if index == 0 else Path(os.devnull)).open("rb") as given,
                (folder / f"{index}.out").open("wb") as out,
                (folder / f"{index}.err").open("wb") as err,
            ):
                program = PROGRAM.format(join_timeout)
                process = subprocess.Popen(
                    [sys.executable, "-c", program, *argv, *number],
                    cwd=ROOT, stdin=given, stdout=out, stderr=err,
                    env={**environment, **(found(index) if found else {})},
                )  # fmt: skip
            self.processes.append(process)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def stderr(self, index: int = 0) -> str:
        return (self.folder / f"{index}.err").read_text()

    def stdout(self, index: int = 0) -> str:
        return (self.folder / f"{index}.out").read_text()

    def complaint(self, index: int = 0) -> str:
        """The one line of ours about a failure; Gloo's thread may print after it."""
        lines = self.stderr(index).splitlines()
        (ours,) = [line for line in lines if line.startswith("jaxformer: ")]
        return ours

    def wait(self, seconds: float) -> list[int]:
        """Return exit codes; a process that has not ended by then is a failure."""
        end = time.monotonic() + seconds
        return [
            process.wait(max(0.1, end - time.monotonic())) for process in self.processes
        ]

    def until(self, happened: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not happened():
            codes = [process.poll() for process in self.processes]
            assert not any(codes), (codes, *map(self.stderr, range(len(codes))))
            assert time.monotonic() < end, self.stderr()
            time.sleep(0.05)

    def stop(self, index: int = 0) -> dict:
        """Ask one process to stop; the JSON of process 0."""
        self.processes[index].send_signal(signal.SIGTERM)
        return self.result()

    def result(self) -> dict:
        """The JSON of process 0; all must succeed, and only process 0 prints."""
        codes = self.wait(180)
        assert not any(codes), [*map(self.stderr, range(len(codes)))]
        assert not any(self.stdout(index) for index in range(1, len(codes)))
        return json.loads(self.stdout().splitlines()[-1])
