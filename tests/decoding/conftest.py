"""Sizes of an engine that a few short sentences change."""

import pytest

from jaxformer.decoding import engine as engine_module
from jaxformer.decoding import shapes


@pytest.fixture(scope="module")
def small_sizes():
    """Make shapes grow and shrink with a few short sentences."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {"AHEAD": 3, "REFILL": 2}.items():
            patch.setattr(engine_module, name, size)
        sizes = {"SHORTEST_BUCKET": 8, "SHORTEST_LENGTH": 8, "MOST_SLOTS": 4}
        for name, size in (sizes | {"SHRINK_AFTER": 2}).items():
            patch.setattr(shapes, name, size)
        yield
