"""The kinds of search, and the length penalty."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.decoding.options import SearchOptions, TranslateOptions
from jaxformer.decoding.search import length_penalty
from jaxformer.system.errors import InputError


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "decoding.beam_size is 0; it must be at least 1"),
        ({"alpha": -0.5}, "decoding.alpha is -0.5; it must be at least 0"),
        ({"alpha": math.nan}, "decoding.alpha is nan"),
        ({"n_best": 3}, "n_best is 3, more than beam_size = 2"),
        ({"temperature": 1e-30}, "is 1e-30; it must be 0, for search, or at least"),
        ({"no_repeat_ngram": 10**9}, "must be at least 0 and at most 100"),
        ({"temperature": 1.0, "top_p": 0.0}, "decoding.top_p is 0.0"),
        ({"top_k": 3}, "set a temperature"),
        ({"top_p": 0.5}, "set a temperature"),
        ({"length_penalty": "wu"}, "length_penalty is 'wu'; use one of gnmt, power"),
        ({"max_source_length": 1}, "max_source_length is 1; it must be at least 2"),
    ],
)
def test_impossible_settings_are_refused_by_name(options, message):
    valid = {"beam_size": 2, "alpha": 0.6, "extra_length": 5, "batch_tokens": 64}
    with pytest.raises(InputError, match=message):
        TranslateOptions(**valid | options)
