"""Equation 3 and Adam, by hand."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.training.optimizer import inverse_square_root_schedule, make_optimizer

BASE = {"d_model": 512, "warmup_steps": 4000, "learning_rate_scale": 1.0}
ADAM = {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9, "clip_norm": None}


def learning_rate(step, **changes):
    """The rate that update number `step`, counted from 1, uses."""
    schedule = inverse_square_root_schedule(**{**BASE, **changes})
    return float(schedule(step - 1))


def test_the_base_model_s_rate_peaks_at_6_99e_4_in_update_4000():
    # 512^-0.5 * 4000^-0.5 = 1 / sqrt(2,048,000) = 1 / 1431.08
    assert learning_rate(4000) == pytest.approx(1 / 1431.0835, rel=1e-6)
    assert learning_rate(4000) == pytest.approx(6.99e-4, rel=1e-3)
    assert learning_rate(3999) < learning_rate(4000) > learning_rate(4001)


def test_the_first_update_already_learns():
    assert learning_rate(1) == pytest.approx(learning_rate(4000) / 4000, rel=1e-6)


@pytest.mark.parametrize("step", [2, 10, 1000, 2000])
def test_warm_up_is_linear(step):
    assert learning_rate(2 * step) == pytest.approx(2 * learning_rate(step), rel=1e-6)


@pytest.mark.parametrize("step", [4000, 10_000, 25_000])
def test_after_warm_up_four_times_the_steps_halve_the_rate(step):
    assert learning_rate(4 * step) == pytest.approx(learning_rate(step) / 2, rel=1e-6)


@pytest.mark.parametrize("step", [100, 4000, 50_000])
def test_the_rate_follows_the_scale_and_the_root_of_the_width(step):
    rate = learning_rate(step)
    assert learning_rate(step, learning_rate_scale=3.0) == pytest.approx(3 * rate)
    assert learning_rate(step, d_model=2048) == pytest.approx(rate / 2)


def one_update(gradient, *, clip_norm=None):
    """Parameters of value 0 after their first update, and the schedule."""
    optimizer, schedule = make_optimizer(**{**BASE, **ADAM, "clip_norm": clip_norm})
    params = jnp.zeros_like(gradient)
    state = optimizer.init(params)
    change, _ = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, change), schedule


def test_the_first_step_of_adam_is_the_rate_against_each_gradient_s_sign():
    # m / (1 - 0.9) = g and v / (1 - 0.98) = g^2, so the step is rate * g / (|g| + eps).
    gradient = jnp.array([3.0, -0.02, 1e-9, 0.0])
    params, schedule = one_update(gradient)
    expected = -float(schedule(0)) * np.array([1.0, -1.0, 0.5, 0.0])
    np.testing.assert_allclose(params, expected, rtol=1e-5)


def test_two_steps_of_adam_by_hand():
    gradients, rates = (2.0, -1.0), (learning_rate(1), learning_rate(2))
    optimizer, _ = make_optimizer(**BASE, **ADAM)
    params = jnp.zeros(1)
    state = optimizer.init(params)
    for gradient in gradients:
        change, state = optimizer.update(jnp.array([gradient]), state, params)
        params = optax.apply_updates(params, change)
    mean = (0.9 * 0.1 * 2.0 + 0.1 * -1.0) / (1 - 0.9**2)
    square = (0.98 * 0.02 * 4.0 + 0.02 * 1.0) / (1 - 0.98**2)
    expected = -rates[0] * 1.0 - rates[1] * mean / square**0.5
    assert params.item() == pytest.approx(expected, rel=1e-5)


def test_clipping_scales_large_gradients_only():
    # Seen through epsilon: with |g| of its order a step depends on the size of g.
    def first_step(gradient, clip_norm):
        gradient = jnp.array(gradient)
        params, schedule = one_update(gradient, clip_norm=clip_norm)
        return np.asarray(params) / -float(schedule(0))

    small = [3e-9, 4e-9]  # of norm 5e-9
    np.testing.assert_allclose(first_step(small, None), [3 / 4, 4 / 5], rtol=1e-5)
    np.testing.assert_allclose(first_step(small, 6e-9), [3 / 4, 4 / 5], rtol=1e-5)
    np.testing.assert_allclose(first_step(small, 2.5e-9), [1.5 / 2.5, 2 / 3], rtol=1e-5)
