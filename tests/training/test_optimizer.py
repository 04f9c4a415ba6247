"""Equation 3 and Adam, against float64."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.training.optimizer import inverse_square_root_schedule, make_optimizer

BASE = {"d_model": 512, "warmup_steps": 4000, "learning_rate_scale": 1.0}


def equation3(step, d_model, warmup_steps, learning_rate_scale):
    rate = learning_rate_scale * d_model**-0.5
    return rate * min(step**-0.5, step * warmup_steps**-1.5)


@pytest.mark.parametrize("step", [1, 2, 1000, 4000, 10_000, 50_000])
@pytest.mark.parametrize("changes", [{}, {"learning_rate_scale": 3.0, "d_model": 2048}])
def test_the_rate_is_that_of_equation_3(step, changes):
    """Of update number `step`, counted from 1."""
    values = BASE | changes
    rate = float(inverse_square_root_schedule(**values)(step - 1))
    assert rate == pytest.approx(equation3(step, **values), rel=1e-6)


def adam(gradients, clip_norm, *, beta1=0.9, beta2=0.98, epsilon=1e-9):
    """Parameters of value 0 after Adam's updates (Kingma and Ba, algorithm 1)."""
    params, mean, square = np.zeros((3, gradients.shape[1]))
    for step, gradient in enumerate(gradients.astype(np.float64), start=1):
        if clip_norm is not None:
            gradient *= min(1.0, clip_norm / np.linalg.norm(gradient))
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        deviation = (square / (1 - beta2**step)) ** 0.5 + epsilon
        params -= equation3(step, **BASE) * mean / (1 - beta1**step) / deviation
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
