"""training.rematerialise: less memory, and otherwise nothing is different."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.training.step import gradients, init_state
from tests.models import tiny
from tests.training.setups import assert_same, optimizer_of

ROWS, LENGTH = 4, 64
OPTIMIZER, _ = optimizer_of()
SIZES = {"layers": 2, "d_model": 32, "d_ff": 64, "num_heads": 4, "dropout": 0.3}


def model_of(rematerialise, **changes):
    return tiny.model_of(40, rematerialise=rematerialise, **SIZES | changes)


def batch():
    """Rows of two packed sentences and padding."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(3, 40, (2, ROWS, LENGTH))
    segments = np.repeat([1, 2, 0], (20, 40, 4)) * np.ones((ROWS, 1), int)
    return Batch(source * (segments > 0), target * (segments > 0), segments, segments)


def state_of(model):
    return nn.unbox(init_state(model, OPTIMIZER, seed=1, ema=False))


def gradients_of(model):
    """The compiled function of a state and a batch."""
    found = functools.partial(gradients, model, label_smoothing=0.1)
    return jax.jit(lambda state, batch: found(state, batch, jnp.int32(0)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"norm_first": True}, marks=pytest.mark.slow),
        pytest.param({"attention_window": 4}, marks=pytest.mark.slow),
    ],
)
def test_losses_and_gradients_are_the_same(changes):
    """Dropout is on: the same numbers are dropped when a layer is computed again."""
    models = [model_of(rematerialise, **changes) for rematerialise in (False, True)]
    states = [state_of(model) for model in models]
    assert_same(states[0].params, states[1].params)
    plain, again = (gradients_of(model)(states[0], batch()) for model in models)
    np.testing.assert_allclose(plain.sums, again.sums, rtol=1e-6)
    for left, right in zip(
        jax.tree.leaves(plain.grads), jax.tree.leaves(again.grads), strict=True
    ):
        scale = np.abs(left).max()
        np.testing.assert_allclose(left / scale, right / scale, atol=1e-6)


def test_memory_falls():
    """By XLA: of what is inside the layers, one layer's share is left."""

    def temporary(rematerialise):
        model = model_of(rematerialise)
        state = jax.eval_shape(lambda: state_of(model))
        compiled = gradients_of(model).lower(state, batch()).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(True) < temporary(False) / 2


def test_layers_are_watched_all_the_same():
    model, plain = model_of(True), model_of(False)
    params = state_of(model).params
    found = model.watch(params, batch(), jax.random.key(0))
    assert len(found) == 2 * 5
    assert all(found.values())
    assert_same(model.attention(params, batch()), plain.attention(params, batch()))
