"""The kinds of search, and the length penalty."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.search import length_penalty


@pytest.mark.parametrize(
    ("kind", "alpha", "lengths", "penalties"),
    [
        ("gnmt", 0.6, [1, 7, 19], [1.0, 2**0.6, 4**0.6]),
        ("power", 0.5, [1, 4, 9], [1.0, 2.0, 3.0]),
    ],
)
def test_length_penalty_is_that_of_the_definition(kind, alpha, lengths, penalties):
    options = SearchOptions(beam_size=1, alpha=alpha, length_penalty=kind)
    found = length_penalty(jnp.array(lengths), options)
    np.testing.assert_allclose(found, penalties, 1e-6)
