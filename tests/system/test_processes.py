"""One process alone: every function returns at once.

Several real processes are in tests/commands/test_processes.py.
"""

import os
import subprocess
import sys
from unittest import mock

import jax
import pytest

from jaxformer.system import processes


def cluster(**flags):
    nothing = dict.fromkeys(("coordinator_address", "num_processes", "process_id"))
    return {**nothing, "peer_timeout": 10, **flags}


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
