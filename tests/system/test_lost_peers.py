"""What a process prints when a library aborts it because another process was lost."""

import subprocess
import sys

import pytest

ABORTED = """
import os, threading, time
from jaxformer.system import lost_peers
found = {found}
lost_peers.WATCH_SECONDS = 0.1
lost_peers._lost_processes = lambda: found if time.monotonic() > start + 0.5 else set()
start = time.monotonic()
lost_peers.PEERS.watch(1, "start again")
threading.Thread(target=os.abort).start()
time.sleep(30)
"""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("{2}", "process 2 was lost (silent for up to 1 s, --peer_timeout)"),
        ("set()", "the connection to other processes was lost"),
    ],
)
def test_an_abort_names_the_process_that_the_watch_finds(found, said):
    """Gloo aborts at once; JAX reports a lost process only after the timeout."""
    ended = subprocess.run(
        [sys.executable, "-c", ABORTED.format(found=found)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.stderr == f"jaxformer: {said}; start again\n"
    assert ended.returncode == 3
