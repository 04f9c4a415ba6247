"""Memory that is freed and taken again is not faulted in again."""

import os
import subprocess
import sys

import pytest

from jaxformer.system import allocator

FAULTS = """
import ctypes, resource, threading
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # without huge pages
{begin}

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():  # as XLA's threads do
    for _ in range(3):
        before = faults()
        b"." * 2**25  # 8,192 pages
        found.append(faults() - before)

found = []
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(found[-1])
"""
KEEP = "from jaxformer.system.allocator import keep_memory; keep_memory()"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """No setting of the C library comes from the environment."""
    for name in [*os.environ]:
        if name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.delenv(name)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's option")
@pytest.mark.parametrize(("begin", "are_few"), [("", False), (KEEP, True)])
def test_freed_memory_stays_with_the_process(begin, are_few, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(begin=begin)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert (int(done.stdout) < 100) == are_few


@pytest.mark.parametrize(
    ("environment", "device", "plugin", "is_kept"),
    [
        ({}, False, True, True), ({"JAX_PLATFORMS": "cpu"}, True, True, True),
        ({}, True, True, False), ({}, True, False, True),
        ({"JAX_PLATFORMS": "cuda,cpu"}, False, False, False),
        ({"MALLOC_ARENA_MAX": "4"}, False, False, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, False, False, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, False, False, True),
    ],
)  # fmt: skip
def test_only_programs_on_cpus_keep_it(
    monkeypatch, environment, device, plugin, is_kept
):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    there = lambda pattern: [pattern] * (device and "nvidia" in pattern)  # noqa: E731
    monkeypatch.setattr(allocator.glob, "glob", there)
    found = lambda name: name if plugin and "cuda" in name else None  # noqa: E731
    monkeypatch.setattr(allocator.importlib.util, "find_spec", found)
    calls = []
    library = type("Library", (), {"mallopt": lambda _, *option: calls.append(option)})
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: library())
    allocator.keep_memory()
    assert bool(calls) == is_kept
