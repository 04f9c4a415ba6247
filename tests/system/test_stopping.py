"""Requests to stop, by signals."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from jaxformer.system import stopping
from jaxformer.system.errors import StoppedError
from jaxformer.system.progress import progress
from jaxformer.system.stopping import stop_requests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_a_request_to_stop(number, caplog, request):
    """A second SIGTERM, as Kubernetes may send during the save, changes nothing."""
    before = signal.default_int_handler  # under nohup SIGHUP is ignored
    request.addfinalizer(partial(signal.signal, number, signal.signal(number, before)))
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
    assert caplog.messages[0].startswith(f"{number.name}: stopping at the next step")


def test_a_system_without_sighup_has_the_other_signals(monkeypatch):
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr(stopping, "_HANGUP", None)
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reached()


LONG = """
import numpy as np
from jaxformer.system.stopping import stop_requests
with stop_requests():
    print("ready", flush=True)
    np.ones((9000, 9000)) @ np.ones((9000, 9000))  # Python calls no handler meanwhile
"""


def test_a_second_interrupt_ends_a_program_that_runs():
    process = subprocess.Popen(
        [sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    time.sleep(0.5)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"\njaxformer: interrupted\n")


def test_another_thread_takes_no_signals():
    def stops():
        with stop_requests() as stop:
            return stop.reached()

    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(stops).result()


def test_work_in_progress_stops_while_all_updates_are_saved(caplog):
    with stop_requests() as stop, progress("work", unit="items") as work:
        os.kill(os.getpid(), signal.SIGTERM)
        work.update()  # updates are unsaved
        with pytest.raises(StoppedError), stop.stopping_at_once():
            pytest.fail("the stop was asked for before")
        stop.signal = None
        with stop.stopping_at_once():
            os.kill(os.getpid(), signal.SIGTERM)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(work.update).result()  # the main thread alone stops
            with pytest.raises(StoppedError):
                work.update()
            stop.signal = None
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StoppedError), stop.stopping_at_once(), progress("more"):
            pytest.fail("it was asked for before this began")


IN_A_TERMINAL = """
import fcntl, pathlib, signal, sys, termios, time

fcntl.ioctl(0, termios.TIOCSCTTY)
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
from jaxformer.system.stopping import stop_requests

with stop_requests() as stop:
    print("ready", flush=True)
    end = time.monotonic() + float(sys.argv[2])
    while not stop.reached() and time.monotonic() < end:
        time.sleep(0.01)
    if stop.signal:
        print("what nobody can read", flush=True)
pathlib.Path(sys.argv[3]).write_text(str(stop.signal))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "seconds", "found"), [("SIG_DFL", 60, "SIGHUP"), ("SIG_IGN", 1, "None")]
)
def test_a_closed_terminal_is_a_request_to_stop(tmp_path, before, seconds, found):
    """Not with `nohup`, which ignores it."""
    screen, keyboard = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, before, str(seconds), tmp_path / "x"],
        stdin=keyboard, stdout=keyboard, stderr=keyboard, start_new_session=True,
    )  # fmt: skip
    shown = b""
    while not shown.endswith(b"ready\r\n"):
        shown += os.read(screen, 100)
    os.close(keyboard)
    os.close(screen)
    assert process.wait(100) == 0
    assert (tmp_path / "x").read_text() == found


# Compiles for several seconds. Not every jaxlib stops at a signal.
COMPILE = """
import sys, types
import jax
import jax.numpy as jnp
from jaxformer import main
from jaxformer.system import stopping
from jaxformer.system.errors import StoppedError
from jaxformer.system.stopping import stop_requests

jax.config.update("jax_enable_compilation_cache", False)

def long(x):
    for _ in range(1000):
        x = jnp.sin(x) @ x
    return x

def run(**_):
    lowered = jax.jit(long).lower(jnp.ones((3, 3)))
    print("ready", file=sys.stderr, flush=True)
    if "{}" == "SIGINT":
        lowered.compile()
    with stop_requests() as stop:
        try:
            with stop.stopping_at_once():
                lowered.compile()
        except StoppedError:
            return {{"stopped": True}}

main.command = lambda mode: types.SimpleNamespace(run=run)
main.run_process()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 0, "SIGTERM: stopping at the next step"),
        (signal.SIGINT, 130, "jaxformer: interrupted"),
    ],
)
def test_a_signal_while_jax_compiles_has_an_effect(number, code, said):
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILE.format(number.name), "reproduce"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr.readline() == "ready\n"
    assert process.stderr.readline() == "compiling long ...\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    lines = [line for line in err.splitlines() if not line.startswith("compiling")]
    assert (process.returncode, lines) == (code, [said])
    assert ('"stopped": true' in out) == (code == 0)
