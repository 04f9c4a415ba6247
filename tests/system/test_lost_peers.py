"""What is printed when a library aborts a process because another one was lost."""

import subprocess
import sys

import pytest

ABORTED = """
import os, sys, threading, time
from jaxformer.system.supervisor import explain_abort, supervised

def run():
    for message in {messages}:
        explain_abort(message)
    threading.Thread(target=os.abort).start()
    time.sleep(30)

sys.exit(supervised(run))
"""
LOST = "process 1: the connection was lost; start again"


@pytest.mark.parametrize(
    ("messages", "said", "code"),
    [
        (["not all connected", LOST], f"jaxformer: {LOST}\n", 3),
        ([LOST, ""], "", 0),  # a normal end, in which process 0 was faster
        ([], "", 128 + 6),  # no peer was lost
    ],
)
def test_an_abort_means_what_was_said_last(messages, said, code):
    ended = subprocess.run(
        [sys.executable, "-c", ABORTED.format(messages=messages)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.stderr, ended.returncode) == (said, code)


KILLED = """
import os, sys, time
from jaxformer.system.supervisor import supervised

def run():
    print(os.getpid(), flush=True)
    time.sleep(60)
    return 0

sys.exit(supervised(run))
"""


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_the_child_ends_with_its_parent(how):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert int(parent.stdout.readline()) != parent.pid
        getattr(parent, how)()
        assert parent.stdout.read() == ""  # the child has closed it
        code = parent.wait(10)
    assert code == (-9 if how == "kill" else 128 + 15)
