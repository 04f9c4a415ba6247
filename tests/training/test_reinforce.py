"""Hard attention: REINFORCE against the expectation over all that could be drawn."""

import functools
import itertools
from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.models.architectures import make_model
from jaxformer.models.layers import gumbel_noise
from jaxformer.models.recurrent import recurrent
from jaxformer.training import reinforce
from jaxformer.training.loss_kernel import projected_loss_sums
from jaxformer.training.step import fresh_state, gradients, init_state
from tests.models.tiny import VOCABULARY, model_of, params_of
from tests.training.setups import optimizer_of, random_batch, step_of, training_of

SMOOTHING = 0.1
MODEL = model_of(
    architecture="recurrent", attention="general", attention_reading="hard",
    feeding="attentional",
)  # fmt: skip
SAME = {"vocab_size": VOCABULARY, "rematerialise": False}
OPTIMIZER, _ = optimizer_of()
# Two sentences in a row, of 2 and 3 tokens on either side, and padding.
PACKED = Batch(
    source=jnp.array([[5, 3, 6, 7, 3, 0]]), target=jnp.array([[8, 3, 9, 10, 3, 0]]),
    source_segments=jnp.array([[1, 1, 2, 2, 2, 0]]),
    target_segments=jnp.array([[1, 1, 2, 2, 2, 0]]),
)  # fmt: skip
PLACES = [(0, 1)] * 2 + [(2, 3, 4)] * 3  # that each target token can read
CHOICES = np.array([[*each, 0] for each in itertools.product(*PLACES)])  # [108, T]


@pytest.fixture(autouse=True)
def unbiased(monkeypatch):
    """Let the estimate have all of its second part."""
    monkeypatch.setattr(reinforce, "WEIGHT", 1.0)


def choosing(choice, coin=-100.0):
    """Let the model draw these states, which stay as probable as they are.

    With another coin it reads the average.
    """
    noise = 1e6 * jax.nn.one_hot(choice, PACKED.source.shape[1])[None]
    drawn = {3: noise, 2: jnp.full((1, 1), coin)}
    return mock.patch.object(
        recurrent, "gumbel_noise", lambda shape, *, key: drawn[len(shape)]
    )


def state_of(params, baseline=0.0):
    state = fresh_state(params, OPTIMIZER, training_of())
    return state._replace(baseline=jnp.float32(baseline))


def probability_and_loss(params, choice):
    with choosing(choice):
        features = MODEL.features(params, PACKED, jax.random.key(0))
    targets = PACKED.target, PACKED.target_segments
    sums = projected_loss_sums(*features[:3], *targets, SMOOTHING)
    is_real = PACKED.target_segments != 0
    return jnp.exp((features.log_choice * is_real).sum()), sums.loss


@jax.jit
def of_all(params):
    """Probability and loss of each choice, and the gradient of the expected loss."""

    def expected(params):
        found = jax.vmap(probability_and_loss, in_axes=(None, 0))(params, CHOICES)
        return jnp.dot(*found), found

    return jax.grad(expected, has_aux=True)(params)


@jax.jit
def estimates(params, baseline):
    """The gradient that an update has for each choice."""

    def one(choice):
        config = training_of(label_smoothing=SMOOTHING)
        with choosing(choice):
            state = state_of(params, baseline)
            return gradients(MODEL, state, PACKED, jnp.int32(0), config).grads

    return jax.vmap(one)(CHOICES)


@pytest.mark.parametrize("baseline", [0.0, 2.5])
def test_the_mean_estimate_is_the_gradient_of_the_expected_loss(baseline):
    """Of all 108 choices, each by its probability; the baseline changes nothing."""
    params = params_of(MODEL)
    expected, (probabilities, losses) = of_all(params)
    np.testing.assert_allclose(probabilities.sum(), 1.0, rtol=1e-5)
    assert np.ptp(losses) > 0.1  # what is read matters
    assert probabilities.max() < 0.5
    found = estimates(params, jnp.float32(baseline))
    mean = jax.tree.map(lambda each: jnp.tensordot(probabilities, each, 1), found)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=2e-6 * largest),
        mean, expected,
    )  # fmt: skip
    scores = expected["decoder"]["attention"]["key"]["kernel"]
    assert np.abs(scores).max() > 1e-3 * largest  # which REINFORCE alone gives


def test_a_baseline_near_the_loss_lowers_the_variance():
    params = params_of(MODEL)
    _, (probabilities, losses) = of_all(params)
    near = jnp.dot(probabilities, losses) / 5

    def variance(baseline):
        found = estimates(params, baseline)
        flat = jnp.concatenate(
            [leaf.reshape(len(CHOICES), -1) for leaf in jax.tree.leaves(found)], axis=1
        )
        return (
            probabilities[:, None] * (flat - (probabilities @ flat)[None]) ** 2
        ).sum()

    assert variance(near) < 0.5 * variance(jnp.float32(0.0))


def test_half_of_the_rows_are_those_of_soft_attention():
    params, config = params_of(MODEL), training_of(label_smoothing=SMOOTHING)
    soft = make_model(replace(MODEL.config, attention_reading="soft"), **SAME)
    given = state_of(params), PACKED, jnp.int32(0), config
    with choosing(CHOICES[0], coin=100.0):
        found = gradients(MODEL, *given)
    expected = gradients(soft, *given)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        found, expected,
    )  # fmt: skip
    batch = random_batch(400, 3, vocabulary=VOCABULARY)
    log_choice = MODEL.features(params, batch, jax.random.key(0)).log_choice
    assert 160 < (log_choice == 0).all(axis=1).sum() < 240


def test_draws_have_the_probabilities_of_the_softmax():
    scores = jnp.array([0.0, 1.0, -1.0, 2.0, 0.5])
    noise = gumbel_noise((40_000, 5), key=jax.random.key(3))
    counts = np.bincount((scores[None] + noise).argmax(-1), minlength=5)
    expected = 40_000 * np.asarray(jax.nn.softmax(scores))
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi-squared, P = 0.001


def test_the_baseline_is_a_moving_average_of_good_updates():
    step = step_of(MODEL, OPTIMIZER, label_smoothing=SMOOTHING)
    batch = random_batch(4, 6, vocabulary=VOCABULARY)
    state, expected = state_of(params_of(MODEL)), 0.0
    for _ in range(3):
        state, report = step(jax.tree.map(jnp.array, state), (batch,))
        expected = 0.9 * expected + 0.1 * report.sums.loss / report.sums.tokens
        np.testing.assert_allclose(state.baseline, expected, rtol=1e-6)
    broken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), state.params)
    bad, _ = step(jax.tree.map(jnp.array, state._replace(params=broken)), (batch,))
    assert (bad.bad_steps, bad.baseline) == (1, state.baseline)


def test_other_models_have_no_baseline():
    for model in (model_of(), model_of(architecture="recurrent")):
        assert init_state(model, OPTIMIZER, training_of()).baseline is None
