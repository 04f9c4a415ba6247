"""The recurrent unit of decoders, against a loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AbstractDevice, AbstractMesh
from scipy.special import expit

from jaxformer.models.kernels.linear_recurrence import linear_recurrence
from jaxformer.models.ssru import SSRU, states

ROWS, LENGTH, SIZE = 2, 7, 4  # of which 7 is no power of two
DRAW = np.random.default_rng(0)
STARTS = np.zeros((ROWS, LENGTH, 1), bool)
STARTS[:, 0] = STARTS[0, 3] = STARTS[0, 4] = STARTS[1, 6] = True


def looped(forget, value):
    """The states of all positions, one number after the other."""
    found = np.zeros_like(value)
    for row, t, d in np.ndindex(value.shape):
        before = 0.0 if STARTS[row, t] else found[row, t - 1, d]
        share = forget[row, t, d]
        found[row, t, d] = share * before + (1 - share) * value[row, t, d]
    return found


def kernel(forget, value, starts):
    return linear_recurrence(jnp.where(starts, 0, forget), (1 - forget) * value)


@pytest.mark.parametrize("function", [states, kernel])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_states_and_gradients_are_those_of_a_loop(function, platform):
    """The gradients against differences of the loop, which is linear in `value`."""
    forget, value, weight = DRAW.random((3, ROWS, LENGTH, SIZE))
    mesh = AbstractMesh((), (), abstract_device=AbstractDevice(platform, 1, platform))

    def loss(forget, value):
        found = function(forget, value, STARTS)
        return (weight * found).sum(), found

    with jax.enable_x64(True), jax.sharding.use_abstract_mesh(mesh):
        grad = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
        has_loop = "scan[" in str(jax.make_jaxpr(grad)(forget, value))
        assert has_loop == (platform == "cpu" or function is states)
        (_, found), grads = grad(forget, value)
    np.testing.assert_allclose(found, looped(forget, value), rtol=1e-12)
    step = 1e-5
    for place in np.ndindex(value.shape):
        delta = np.zeros_like(value)
        delta[place] = step
        for own, changes in zip(grads, ((delta, 0), (0, delta)), strict=True):
            after, before = (
                (weight * looped(forget + s * changes[0], value + s * changes[1])).sum()
                for s in (1, -1)
            )
            slope = (after - before) / (2 * step)
            np.testing.assert_allclose(own[place], slope, rtol=1e-6, atol=1e-9)


def test_the_unit_is_that_of_the_paper():
    """Equations of Kim et al. 2019, with a bias of the gate alone and no output."""
    unit, x = SSRU(jnp.dtype("float32")), DRAW.normal(size=(ROWS, LENGTH, SIZE))
    gate, matrix = DRAW.normal(size=(2, SIZE, SIZE))
    bias = DRAW.normal(size=SIZE)
    params = {"forget": {"kernel": gate, "bias": bias}, "value": {"kernel": matrix}}
    params = jax.tree.map(np.float32, params)
    expected = np.maximum(looped(expit(x @ gate + bias), x @ matrix), 0)
    x = np.float32(x)
    found = jax.jit(unit.apply)({"params": params}, x, x, STARTS)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert 0.2 < (expected > 0).mean() < 0.8
    shapes = jax.eval_shape(unit.init, jax.random.key(0), x, x, STARTS)["params"]
    assert jax.tree.map(jnp.shape, nn.unbox(shapes)) == jax.tree.map(np.shape, params)
