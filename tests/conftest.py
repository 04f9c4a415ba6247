"""Every test has eight simulated devices; silent rank promotion is an error."""

import contextlib
import importlib.util
import logging
import os
from importlib.metadata import version
from pathlib import Path
from unittest import mock

# With its old emitters XLA compiles three times as fast. jaxlib 0.11 lacks them.
IS_OLD = version("jaxlib").startswith("0.10.")
OLD_EMITTERS = " --xla_cpu_use_fusion_emitters=false" if IS_OLD else ""
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    # Tests compile much and compute little.
    + " --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + OLD_EMITTERS
    # XLA aborts the process if one of the devices is late by more than 40 s.
    + " --xla_cpu_collective_call_terminate_timeout_seconds=300"
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# All tests and the processes they start share compiled programs, also between runs.
COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ["XDG_CACHE_HOME"] = str(COMPILED.with_name("user"))  # not the user's own

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

import tests.checked  # noqa: E402

# Before anything imports these modules.
jaxtyping.install_import_hook(tests.checked.MODULES, "tests.checked.check")

from jaxformer.system.worker import Worker  # noqa: E402
from tests.comet_package import write_stand_in  # noqa: E402

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")


@contextlib.contextmanager
def _own_logging():
    """Let a command set up logging, and undo it."""
    room = logging.getLogger("jaxformer")
    levels = logging.root.level, room.level
    try:
        with mock.patch.object(logging.root, "handlers", []):
            yield
    finally:
        logging.root.setLevel(levels[0])
        room.setLevel(levels[1])


@pytest.fixture(scope="session")
def own_logging():
    return _own_logging


@pytest.fixture
def branches_of(monkeypatch):
    """Trace the operations that `platform_dependent` has for a platform, on the CPU."""

    def trace(platform):
        def choose(*args, **branches):
            return branches.get(platform, branches.get("default"))(*args)

        monkeypatch.setattr(jax.lax, "platform_dependent", choose)

    return trace


@pytest.fixture
def branches_of_tpu(branches_of):
    branches_of("tpu")


@pytest.fixture(scope="session")
def transformers():
    """Call a function of tests/huggingface.py in a process of its own.

    Takes its name and arguments. Skips the test without Hugging Face's package.
    """
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: extra `torch`")
    with Worker("tests.huggingface:call") as worker:

        def call(name, *arguments, **named):
            worker.send((name, arguments, named))
            return worker.receive()

        yield call


@pytest.fixture
def stand_in_comet(tmp_path, monkeypatch):
    """Install a stand-in for COMET's package for the processes that a test starts."""
    found = write_stand_in(tmp_path / "comet")
    monkeypatch.setenv("PYTHONPATH", str(found.packages))
    return found
