"""Importing has no effect but definitions."""

import subprocess
import sys

import pytest

from tests.test_architecture import IMPORTS, ROOT, SOURCES, is_within

WITHOUT_EFFECT = """
import importlib, logging, os, signal, sys, threading

import jax


def effects():
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "streams": (sys.stdout, sys.stderr),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.Signals],
        "jax": dict(jax.config.values),
        "loggers": {
            name: (logger.level, logger.filters[:], logger.handlers[:])
            for name, logger in loggers.items()
            if isinstance(logger, logging.Logger)
            and (logger.level or logger.filters or logger.handlers)
        },
    }


libraries, modules = (names.split() for names in sys.argv[1:])
for name in libraries:  # may have effects of their own
    importlib.import_module(name)
before = effects()
for name in modules:
    importlib.import_module(name)
after = effects()
for name in before:
    assert after[name] == before[name], (name, before[name], after[name])
print(len(modules), "imported")
"""


@pytest.mark.slow
def test_importing_any_module_changes_nothing_of_the_process():
    """Hooks, streams, environment, signals, JAX's config and loggers stay the same."""
    libraries = {
        each.name
        for each in IMPORTS
        if not each.inside_function and not is_within(each.name, "jaxformer")
    }
    modules = sorted(SOURCES.keys() - {"jaxformer.__main__"})
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EFFECT, " ".join(libraries), " ".join(modules)],
        cwd=ROOT,
        env={"JAX_PLATFORMS": "cpu", "PATH": "", "HOME": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout == f"{len(modules)} imported\n", done.stderr
