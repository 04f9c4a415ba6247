"""SIGTERM and Ctrl-C lose no update, and end a process that is in C++ at once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from jaxformer.stops import StoppedError, stop_requests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_to_stop(number, caplog):
    """A second SIGTERM, as Kubernetes may send during the save, changes nothing."""
    before = signal.getsignal(number)
    with stop_requests() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reached()
        with pytest.raises(StoppedError):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) is before
    assert caplog.messages[0] == f"{number.name}: stopping at the next step"


@pytest.mark.parametrize(
    ("step", "said"),
    [(1200, "stopped at step 1,200, which is saved"), (0, "stopped before the first")],
)
def test_a_stop_that_loses_nothing_is_not_delayed(step, said, caplog):
    caplog.set_level("INFO", "jaxformer")
    with stop_requests(row="demo") as stop:
        with pytest.raises(StoppedError), stop.losing_nothing():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # nothing is raised while it is saved
        assert stop.result(step) == {"row": "demo", "step": step, "stopped": True}
    assert caplog.messages[-1].startswith(said)


# Computes in C for minutes, in which Python calls no handler of a signal.
PROGRAM = """
import hashlib, pathlib, sys, types
from contextlib import nullcontext
from jaxformer import files, main, stops

def run(**_):
    with {block}, files.new_folder(pathlib.Path("new")) as folder:
        (folder / "part").touch()
        print("ready", file=sys.stderr, flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000_000)

main.command = lambda mode: types.SimpleNamespace(run=run)
main.run_process()
"""
SAVED = "stops.stop_requests(lambda: 60)"
UNSAVED = "stops.stop_requests()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "signals", "code", "said"),
    [
        (SAVED, [signal.SIGTERM], 0, "stopped at step 60"),
        (UNSAVED, [signal.SIGINT, signal.SIGINT], 130, "jaxformer: interrupted"),
        ("nullcontext()", [signal.SIGINT], 130, "jaxformer: interrupted"),
    ],
)
def test_a_process_in_cpp_ends_at_once_and_leaves_nothing(
    tmp_path, block, signals, code, said
):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(block=block), "--workdir=x"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert process.stderr.readline() == "ready\n"
    start = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.2)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - start < 5
    assert process.returncode == code
    assert err.startswith(said)
    assert len(err.splitlines()) == 1
    if code == 0:
        result = json.loads(out)
        assert (result["step"], result["stopped"]) == (60, True)
    assert not list(tmp_path.iterdir())
