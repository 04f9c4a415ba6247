"""training.rematerialise: less memory, and otherwise nothing is different."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.training.step import fresh_state, gradients
from tests.models import tiny
from tests.training.setups import assert_same, optimizer_of, random_batch, training_of

BATCH = random_batch(4, 64, vocabulary=40)


def models(**changes):
    """Two models that differ in `rematerialise` alone."""
    sizes = {"d_model": 32, "dropout": 0.3}
    if changes.get("architecture") != "hybrid":
        sizes["layers"] = 2
    if "architecture" not in changes:
        sizes |= {"d_ff": 64, "num_heads": 4}
    return (
        tiny.model_of(40, rematerialise=rematerialise, **sizes | changes)
        for rematerialise in (False, True)
    )


@functools.cache
def compiled_gradients(model):
    """The compiled function of a state, and such a state."""
    config = training_of(seed=1)
    state = fresh_state(tiny.params_of(model), optimizer_of()[0], config)
    program = jax.jit(
        lambda state: gradients(model, state, BATCH, jnp.int32(0), config)
    )
    return program.lower(state).compile(), state


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"architecture": "convolutional"}, marks=pytest.mark.slow),
        pytest.param(
            tiny.HYBRIDS["transformer to convolutional"], marks=pytest.mark.slow
        ),
        pytest.param(
            {"norm_first": True, "attention_window": 4, "positions": "rotary"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_losses_and_gradients_are_the_same(changes):
    """Dropout is on: the same numbers are dropped when a layer is computed again.

    Errors are relative to the largest gradient of an array, for ConvS2S to that of the
    model: gradients of its queries are 50 times smaller and come from cancellation.
    """
    runs = map(compiled_gradients, models(**changes))
    plain, again = (run(state) for run, state in runs)
    np.testing.assert_allclose(plain.sums, again.sums, rtol=1e-6)
    grads = [jax.tree.leaves(each.grads) for each in (plain, again)]
    bounds = [1e-6 * np.abs(leaf).max() for leaf in grads[0]]
    if "architecture" in changes:
        bounds = [0.3 * max(bounds)] * len(bounds)
    for left, right, atol in zip(*grads, bounds, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=atol)


def test_memory_falls():
    """By XLA: of what is inside the layers, one layer's share is left."""
    plain, again = (
        compiled_gradients(model)[0].memory_analysis().temp_size_in_bytes
        for model in models()
    )
    assert again < plain / 2


def test_layers_are_watched_all_the_same():
    plain, model = models(layers=1)
    params = tiny.params_of(model)
    found = model.watch(params, BATCH, jax.random.key(0))
    assert len(found) == 5
    assert all(found.values())
    assert_same(model.attention(params, BATCH), plain.attention(params, BATCH))
