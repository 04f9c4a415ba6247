"""Functions in other processes: results in order, mistakes, and processes that end."""

import os
import signal
import subprocess
import sys
import time

import pytest

from jaxformer.system.errors import InputError
from jaxformer.system.worker import Worker, ordered_map


@pytest.mark.parametrize("processes", [1, 3])
def test_results_have_the_order_of_the_items(processes):
    """Items are read shortly before they are needed."""
    read = 0

    def items():
        nonlocal read
        for read in range(1, 41):
            yield read % 7

    found = ordered_map("builtins:pow", (3,), items(), processes=processes)
    for number in range(1, 41):
        assert next(found) == 3 ** (number % 7)
        assert read <= number + 2 * processes + 1
    assert next(found, None) is None


@pytest.mark.parametrize("processes", [1, 2])
def test_what_the_function_raises_is_raised(processes):
    found = ordered_map("builtins:int", (), ["1", "2", "x", "4"], processes=processes)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(ValueError, match=r"invalid literal for int.*'x'"):
        next(found)


def test_a_process_that_ends_early_is_reported():
    with Worker("os:_exit") as worker:
        worker.send(7)
        with pytest.raises(InputError, match="process of os:_exit ended with code 7"):
            worker.receive()
        worker.send(7)  # to nobody
    found = ordered_map("os:_exit", (), [5] * 9, processes=2)
    with pytest.raises(InputError, match="ended with code 5"):
        next(found)


def test_what_a_function_prints_is_no_result():
    with Worker("builtins:print", "printed by the test of worker") as worker:
        worker.send("to stderr")
        assert worker.receive() is None


def test_the_processes_end_with_their_user():
    program = """
from jaxformer.system.worker import ordered_map
items = iter(lambda: (), None)
found = ordered_map("tests.system.test_worker:own_number", (), items, processes=2)
print(next(found), flush=True)
input()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    number = int(parent.stdout.readline())
    assert is_running(number)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    end = time.monotonic() + 30
    while is_running(number) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(number)


def own_number(_) -> int:
    return os.getpid()


def is_running(number: int) -> bool:
    command = ["ps", "-o", "stat=", "-p", str(number)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")  # Z: nobody waited for it
