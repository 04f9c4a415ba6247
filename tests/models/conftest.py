"""Fixtures of tests that compile many small programs and run each a few times."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compilation():
    """Compile with little optimisation, which would take most of the time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
