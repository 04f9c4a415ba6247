"""One process alone: every function returns at once.

Several real processes are in tests/commands/test_processes.py.
"""

import signal
import subprocess
import sys

import pytest

from jaxformer import processes
from jaxformer.errors import InputError


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
    processes.wait_for_all("end")
    assert processes.topology() == "processes: 1, each with 8 x cpu; 8 devices in all"


def test_an_abort_of_one_process_is_not_taken_for_a_lost_peer():
    """`join` undoes its preparations when there are no peers."""
    script = (
        "import os, jax; jax.devices();"
        "from jaxformer.processes import join;"
        "join(coordinator_address=None, num_processes=None, process_id=None,"
        " join_timeout=1, peer_timeout=10);"
        "assert not jax.config.jax_enable_recoverability; os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE)
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
def test_contradicting_flags_are_refused(flags, said):
    with pytest.raises(InputError, match=said):
        processes.join(**cluster(**flags))
