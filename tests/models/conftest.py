"""Tests of decoding compile many small programs and run each of them a few times."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compilation():
    """Most of the time would go into optimising."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
