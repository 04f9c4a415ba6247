"""Equation 3 and Adam, against float64."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.training.optimizer import inverse_square_root_schedule, make_optimizer

BASE = {"d_model": 512, "warmup_steps": 4000, "learning_rate_scale": 1.0}


def learning_rate(step, **changes):
    """The rate that update number `step`, counted from 1, uses."""
    return float(inverse_square_root_schedule(**{**BASE, **changes})(step - 1))


def test_the_base_model_s_rate_peaks_at_6_99e_4_in_update_4000():
    # 512^-0.5 * 4000^-0.5 = 1 / sqrt(2,048,000) = 1 / 1431.08
    assert learning_rate(4000) == pytest.approx(1 / 1431.0835, rel=1e-6)
    assert learning_rate(3999) < learning_rate(4000) > learning_rate(4001)
    assert learning_rate(1) == pytest.approx(learning_rate(4000) / 4000, rel=1e-6)


@pytest.mark.parametrize("step", [2, 1000, 4000, 10_000, 50_000])
@pytest.mark.parametrize("changes", [{}, {"learning_rate_scale": 3.0, "d_model": 2048}])
def test_the_rate_is_that_of_equation_3(step, changes):
    values = {**BASE, **changes}
    expected = values["learning_rate_scale"] * values["d_model"] ** -0.5
    expected *= min(step**-0.5, step * values["warmup_steps"] ** -1.5)
    assert learning_rate(step, **changes) == pytest.approx(expected, rel=1e-6)


def adam(gradients, clip_norm, *, beta1=0.9, beta2=0.98, epsilon=1e-9):
    """Parameters of value 0 after Adam's updates (Kingma and Ba, algorithm 1)."""
    params, mean, square = np.zeros((3, gradients.shape[1]))
    for step, gradient in enumerate(gradients.astype(np.float64), start=1):
        if clip_norm is not None:
            gradient *= min(1.0, clip_norm / np.linalg.norm(gradient))
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        deviation = (square / (1 - beta2**step)) ** 0.5 + epsilon
        params -= learning_rate(step) * mean / (1 - beta1**step) / deviation
    return params


@pytest.mark.parametrize("scale", [1.0, 1e-9])  # of the order of epsilon
@pytest.mark.parametrize("clip_norm", [None, 1.5, 1.5e-9])
def test_updates_are_those_of_adam(scale, clip_norm):
    """Of three gradients, some longer than `clip_norm` and others shorter."""
    gradients = np.float32([[3.0, -0.02, 0.0], [-1.0, 1.0, 0.1], [0.5, 1.0, 2.0]])
    gradients *= np.float32(scale)
    optimizer, _ = make_optimizer(
        **BASE, beta1=0.9, beta2=0.98, epsilon=1e-9, clip_norm=clip_norm
    )
    params = jnp.zeros(3)
    state = optimizer.init(params)
    for gradient in gradients:
        change, state = optimizer.update(jnp.array(gradient), state, params)
        params = optax.apply_updates(params, change)
    np.testing.assert_allclose(params, adam(gradients, clip_norm), rtol=2e-5)
