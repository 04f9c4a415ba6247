"""One process alone: every way of speaking to others is trivial, and quick.

Several real processes are in tests/commands/test_processes.py.
"""

import os
import signal
import subprocess
import sys

import pytest

from jaxformer import processes
from jaxformer.errors import InputError
from jaxformer.processes import Cluster, StoppedError, stop_requests


def cluster(**flags):
    nothing = dict.fromkeys(("coordinator_address", "num_processes", "process_id"))
    return Cluster(**{**nothing, "join_timeout": 1, "peer_timeout": 10, **flags})


def test_alone_it_is_the_first_of_one_and_hears_itself():
    assert (processes.count(), processes.index()) == (1, 0)
    assert processes.is_first()
    assert not processes.are_several()
    value = {"text": "süß", "numbers": [1, 2.5, None]}
    assert processes.gather(value) == [value]
    assert processes.from_first(value) == value
    processes.wait_for_all("nobody")


def test_one_process_meets_nobody():
    """JAX has been used here already, so finding others would be an error."""
    processes.join(cluster(num_processes=1))
    processes.join(cluster())
    assert not processes.are_several()


def test_alone_an_abort_is_not_taken_for_a_lost_peer():
    """What `join` prepares for peers goes when there are none."""
    script = (
        "import os, jax; jax.devices();"
        "from jaxformer.processes import Cluster, join;"
        "join(Cluster(coordinator_address=None, num_processes=None, process_id=None,"
        " join_timeout=1, peer_timeout=10));"
        "assert not jax.config.jax_enable_recoverability; os.abort()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGABRT
    assert b"jaxformer" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"num_processes": 2, "process_id": 2}, "numbered from 0 to 1"),
        ({"num_processes": 2, "process_id": -1}, "--process_id=-1 is not one of"),
        ({"coordinator_address": "here"}, "--coordinator_address=here has no port"),
        ({"coordinator_address": "here:"}, "write HOST:PORT"),
    ],
)
def test_flags_that_describe_no_processes_are_refused(flags, said):
    with pytest.raises(InputError, match=said):
        processes.join(cluster(**flags))


def test_the_topology_counts_devices():
    assert processes.topology() == ("processes: 1, each with 8 x cpu; 8 devices in all")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_while_it_is_listened_to(number, caplog):
    before = signal.getsignal(number)
    with stop_requests() as stop:
        assert not stop.reached()
        stop.check()
        os.kill(os.getpid(), number)
        assert stop.reached()
        with pytest.raises(StoppedError):
            stop.check()
    assert signal.getsignal(number) is before
    assert [record.getMessage() for record in caplog.records] == [
        f"{number.name}: stopping at the next step"
    ]


def test_a_second_interrupt_does_not_wait():
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.reached()


def test_a_second_request_of_a_scheduler_changes_nothing():
    """Kubernetes and systemd may send SIGTERM twice, the second during the save."""
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reached()


def test_what_was_saved_is_said_and_what_was_not():
    assert str(StoppedError(1200)).startswith("stopped at step 1,200, which is saved")
    assert str(StoppedError()).startswith("stopped before the first update")
