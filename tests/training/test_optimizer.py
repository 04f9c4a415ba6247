"""Learning rates, the rules of updates and what is frozen, against float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.config.sections import OptimizerConfig
from jaxformer.configs import wmt_base
from jaxformer.system.errors import InputError
from jaxformer.training.frozen import merged, trainable
from jaxformer.training.optimizer import make_optimizer

VALUES = wmt_base.get_config().optimizer.to_dict()
STEPS = 100_000


def optimizer_of(*, d_model=512, steps=STEPS, **changes):
    """The optimiser of configs/wmt_base.py with some values changed."""
    config = OptimizerConfig(**VALUES | changes)
    return make_optimizer(config, d_model=d_model, steps=steps)


def rate_of(step, **changes):
    """The learning rate of update number `step`, counted from 1."""
    return float(optimizer_of(**changes)[1](step - 1))


def equation3(step, d_model=512, warmup_steps=4000):
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


@pytest.mark.parametrize("step", [1, 2, 1000, 4000, 10_000, 50_000])
def test_the_rate_is_that_of_equation_3(step):
    assert rate_of(step) == pytest.approx(equation3(step), rel=1e-6)
    found = rate_of(step, d_model=2048)
    assert found == pytest.approx(equation3(step, 2048), rel=1e-6)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant", "linear", "cosine"])
def test_a_schedule_rises_to_its_peak_and_then_takes_its_form(schedule):
    """Over 1,000 updates, of which 200 are the warm-up."""
    given = {"schedule": schedule, "peak_learning_rate": 2e-4, "warmup_steps": 200}
    forms = {
        "inverse_sqrt": lambda step: (200 / step) ** 0.5,
        "constant": lambda step: 1.0,
        "linear": lambda step: (1001 - step) / 801,
        "cosine": lambda step: (1 + math.cos(math.pi * (step - 200) / 801)) / 2,
    }
    for step in (1, 50, 200, 201, 600, 1000):
        share = step / 200 if step < 200 else forms[schedule](step)
        rate = rate_of(step, steps=1000, **given)
        assert rate == pytest.approx(2e-4 * share, rel=1e-5, abs=1e-12)
    assert rate_of(1000, steps=1000, **given) > 0
    assert rate_of(1, steps=2**31 - 1, **given) == pytest.approx(1e-6)


def adam(gradients, clip_norm, *, beta1=0.9, beta2=0.98, epsilon=1e-9):
    """Parameters of value 0 after Adam's updates (Kingma and Ba, algorithm 1)."""
    params, mean, square = np.zeros((3, gradients.shape[1]))
    for step, gradient in enumerate(gradients.astype(np.float64), start=1):
        if clip_norm is not None:
            gradient *= min(1.0, clip_norm / np.linalg.norm(gradient))
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        deviation = (square / (1 - beta2**step)) ** 0.5 + epsilon
        params -= equation3(step) * mean / (1 - beta1**step) / deviation
    return params


@pytest.mark.parametrize("scale", [1.0, 1e-9])  # of the order of epsilon
@pytest.mark.parametrize("clip_norm", [None, 1.5, 1.5e-9])
def test_updates_are_those_of_adam(scale, clip_norm):
    """Of three gradients, some longer than `clip_norm` and others shorter."""
    gradients = np.float32([[3.0, -0.02, 0.0], [-1.0, 1.0, 0.1], [0.5, 1.0, 2.0]])
    gradients *= np.float32(scale)
    optimizer, _ = optimizer_of(clip_norm=clip_norm)
    params = jnp.zeros(3)
    state = optimizer.init(params)
    for gradient in gradients:
        change, state = optimizer.update(jnp.array(gradient), state, params)
        params = optax.apply_updates(params, change)
    np.testing.assert_allclose(params, adam(gradients, clip_norm), rtol=2e-5)


def updates_of(gradient, params, **changes):
    optimizer, _ = optimizer_of(warmup_steps=1, peak_learning_rate=0.1, **changes)
    return optimizer.update(gradient, optimizer.init(params), params)[0]


def test_weight_decay_shrinks_matrices_beside_adam_and_spares_biases_and_norms():
    params = {
        "attention": {"kernel": jnp.full((2, 3), 2.0), "bias": jnp.full((2, 3), 2.0)},
        "norm": {"scale": jnp.full(3, 2.0)},
        "logits_bias": jnp.full(3, 2.0),
        "embedding": jnp.full((4, 3), 2.0),
    }
    gradient = jax.tree.map(lambda leaf: leaf * 0.25, params)
    plain, decayed = (updates_of(gradient, params, weight_decay=w) for w in (0.0, 0.5))
    more = jax.tree.map(lambda a, b: float((b - a).mean()), plain, decayed)
    decay = pytest.approx(-0.1 * 0.5 * 2.0, rel=1e-5)
    assert more == {
        "attention": {"kernel": decay, "bias": 0.0},
        "norm": {"scale": 0.0},
        "logits_bias": 0.0,
        "embedding": decay,
    }


@pytest.mark.parametrize("shape", [(256, 512), (256, 8, 64), (4, 64, 512)])
def test_adafactor_keeps_a_number_for_each_row_and_column(shape):
    params = {"kernel": jnp.ones(shape), "bias": jnp.ones(512)}
    optimizer, _ = optimizer_of(algorithm="adafactor")
    state = jax.eval_shape(optimizer.init, params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 256 + 2 * 512 + 10
    update = updates_of(params, params, algorithm="adafactor")
    # The first update of a gradient of ones: the rate times the size of the parameter.
    np.testing.assert_allclose(update["kernel"], -0.1, rtol=1e-3)


PARAMS = {
    "embedding": 1.0,
    "encoder": {"layer_0": {"kernel": 2.0}, "layer_01": {"kernel": 3.0}},
    "decoder": {"kernel": 4.0},
}


def test_frozen_parameters_are_named_by_the_first_parts_of_their_names():
    kept = trainable(PARAMS, ("embedding", "encoder/layer_0"))
    assert jax.tree.leaves(kept) == [4.0, 3.0]
    assert jax.tree.leaves(trainable(PARAMS, ("encoder/",))) == [4.0, 1.0]
    doubled = jax.tree.map(lambda leaf: 2 * leaf, kept)
    assert jax.tree.leaves(merged(doubled, PARAMS)) == [8.0, 1.0, 2.0, 6.0]
    with pytest.raises(InputError, match=r"'enc', .* begin with decoder, embedding"):
        trainable(PARAMS, ("enc",))
    with pytest.raises(InputError, match=r"leaves no parameter to train"):
        trainable(PARAMS, ("embedding", "encoder", "decoder"))
