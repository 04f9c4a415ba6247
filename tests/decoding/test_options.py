"""Which searches there are, and what they divide log P by."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.search import length_penalty
from jaxformer.errors import InputError


def test_length_penalty_is_the_papers():
    np.testing.assert_allclose(
        length_penalty(jnp.array([1, 7, 19]), 0.6), [1.0, 2**0.6, 4**0.6], 1e-6
    )


def test_length_penalty_power_is_that_of_others():
    np.testing.assert_allclose(
        length_penalty(jnp.array([1, 4, 9]), 0.5, "power"), [1.0, 2.0, 3.0], 1e-6
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "decoding.beam_size is 0; it must be at least 1"),
        ({"alpha": -0.5}, "decoding.alpha is -0.5; it must be at least 0"),
        ({"alpha": math.nan}, "decoding.alpha is nan"),
        ({"n_best": 0}, "decoding.n_best is 0"),
        ({"n_best": 3}, "n_best is 3, more than beam_size = 2"),
        ({"no_repeat_ngram": -1}, "decoding.no_repeat_ngram is -1"),
        ({"temperature": -1.0}, "decoding.temperature is -1.0"),
        ({"temperature": math.inf}, "decoding.temperature is inf"),
        ({"temperature": 1.0, "top_k": -1}, "decoding.top_k is -1"),
        ({"temperature": 1.0, "top_p": 0.0}, "decoding.top_p is 0.0"),
        ({"temperature": 1.0, "top_p": 1.5}, "decoding.top_p is 1.5"),
        ({"top_k": 3}, "set a temperature"),
        ({"top_p": 0.5}, "set a temperature"),
        ({"length_penalty": "wu"}, "length_penalty is 'wu'; use one of gnmt, power"),
    ],
)
def test_impossible_settings_are_refused_by_name(options, message):
    with pytest.raises(InputError, match=message):
        SearchOptions(**{"beam_size": 2, "alpha": 0.6} | options)


@pytest.mark.parametrize(
    ("options", "is_beam", "is_sampling"),
    [
        ({"beam_size": 1}, False, False),  # greedy
        ({"beam_size": 4}, True, False),
        ({"beam_size": 4, "temperature": 0.7}, False, True),
        ({"beam_size": 1, "temperature": 0.7}, False, True),
    ],
)
def test_a_width_makes_a_beam_and_a_temperature_samples(options, is_beam, is_sampling):
    options = SearchOptions(alpha=0.6, **options)
    assert (options.is_beam, options.is_sampling) == (is_beam, is_sampling)
