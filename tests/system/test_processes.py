"""One process alone: every function returns at once.

Several real processes are in tests/commands/test_processes.py.
"""

import os
import signal
import subprocess
import sys
import time
from unittest import mock

import jax
import pytest

from jaxformer.system import processes
from jaxformer.system.processes import StoppedError, stop_requests


def cluster(**flags):
    nothing = dict.fromkeys(("coordinator_address", "num_processes", "process_id"))
    return {**nothing, "join_timeout": 1, "peer_timeout": 10, **flags}


def test_one_process_is_the_first_of_one():
    """JAX has been used here already, so connecting to others would be an error."""
    processes.join(**cluster(num_processes=1))
    processes.join(**cluster())
    assert (processes.count(), processes.index()) == (1, 0)
    assert (processes.is_first(), processes.are_several()) == (True, False)
    value = {"text": "süß", "numbers": [1, 2.5, None]}
    assert processes.gather(value) == [value]
    assert processes.from_first(value) == value
    processes.leave()
    assert processes.topology() == "processes: 1, each with 8 x cpu; 8 devices in all"


@pytest.fixture
def start(monkeypatch):
    """Stand in for the function that connects processes; `join` then ends with 3."""
    start = mock.Mock(side_effect=[RuntimeError("enough")])
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(jax.distributed, "initialize", start)
    monkeypatch.setattr(processes.PEERS, "end", lambda _: sys.exit(3))
    return start


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"])
def test_a_single_task_of_a_scheduler_has_all_gpus(monkeypatch, start, name):
    """JAX would give it the GPU of its number on the machine."""
    monkeypatch.setenv(name, "1")
    processes.join(**cluster())
    start.assert_not_called()
    flags = cluster(coordinator_address="a:1", num_processes=2, process_id=0)
    with pytest.raises(SystemExit, match="3"):
        processes.join(**flags)
    assert start.call_args.args == ("a:1", 2, 0)
    assert start.call_args.kwargs["cluster_detection_method"] == "deactivate"


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2"}, []),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_NODES": "2"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, []),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, None),
        ({"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, None),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "JAX_LOCAL_DEVICE_IDS": "0,1"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_one_task_a_machine_has_all_its_gpus(monkeypatch, start, variables, devices):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="3"):
        processes.join(**cluster())
    assert start.call_args.kwargs["local_device_ids"] == devices


def test_no_devices_are_chosen_for_one_task_a_machine():
    """JAX takes an empty list as no choice, also where it finds Slurm."""
    script = (
        "import jax;"
        "from jax._src import clusters;"
        "found = clusters.ClusterEnv.auto_detect_unset_distributed_params;"
        "print(found('a:1', 1, 0, [], None, 1))"
    )
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "a", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"}
    command = [sys.executable, "-c", script]
    found = subprocess.check_output(command, env=os.environ | slurm, text=True)
    assert found == "('a:1', 1, 0, [])\n"


def test_an_abort_of_one_process_is_not_taken_for_a_lost_peer():
    """`join` undoes its preparations when there are no peers."""
    script = (
        "import os, jax; jax.devices();"
        "from jaxformer.system.processes import join;"
        "join(coordinator_address=None, num_processes=None, process_id=None,"
        " join_timeout=1, peer_timeout=10);"
        "assert not jax.config.jax_enable_recoverability; os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE)
    assert done.returncode == -signal.SIGABRT
    assert b"jaxformer" not in done.stderr


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


def test_a_stop_at_once_is_raised_until_it_has_an_effect():
    """Python drops the exceptions of callbacks; what a stop does is not disturbed."""

    class Dropped:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def stop_within(stop):
        with stop.stopping_at_once():
            Dropped()
            try:
                time.sleep(60)
            finally:
                time.sleep(3 * processes.RAISE_AGAIN_SECONDS)
                os.kill(os.getpid(), signal.SIGTERM)

    with stop_requests() as stop:
        with pytest.raises(StoppedError):
            stop_within(stop)
        # No exception: updates are unsaved.
        time.sleep(2 * processes.RAISE_AGAIN_SECONDS)
        with pytest.raises(StoppedError), stop.stopping_at_once():
            pytest.fail("the stop was asked for before")


# Compiles for several seconds. At a signal jaxlib 0.10 stops; later ones finish first.
COMPILE = """
import sys, types
import jax
import jax.numpy as jnp
from jaxformer import main
from jaxformer.system import processes

jax.config.update("jax_enable_compilation_cache", False)

def long(x):
    for _ in range(1500):
        x = jnp.sin(x) @ x
    return x

def run(**_):
    lowered = jax.jit(long).lower(jnp.ones((3, 3)))
    print("ready", file=sys.stderr, flush=True)
    if "{}" == "SIGINT":
        lowered.compile()
    with processes.stop_requests() as stop:
        try:
            with stop.stopping_at_once():
                lowered.compile()
        except processes.StoppedError:
            return {{"stopped": True}}

main.command = lambda mode: types.SimpleNamespace(run=run)
main.run_process()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 0, ""), (signal.SIGINT, 130, "jaxformer: interrupted\n")],
)
def test_a_signal_interrupts_a_compile(number, code, said):
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILE.format(number.name), "--workdir=x"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr.readline() == "ready\n"
    assert process.stderr.readline() == "compiling long ...\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (code, said)
    assert ('"stopped": true' in out) == (code == 0)
