"""An update that is not finite is diagnosed: which microbatch, layer and parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from jaxformer.batch import Batch
from jaxformer.training.divergence import Diagnosis, diagnose_update
from jaxformer.training.loss import LossSums
from jaxformer.training.step import Gradients, fresh_state
from tests.models.tiny import model_of, params_of
from tests.training.setups import optimizer_of, random_batch, training_of

NAN, INF = float("nan"), float("inf")


def diagnose(model, params, *update):
    state = fresh_state(params, optimizer_of()[0], training_of())
    return diagnose_update(model, state, update, training_of())


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        "encoder/layer_0/self_attention",
        "encoder/layer_1/feed_forward",
        "decoder/layer_0/cross_attention",
        "decoder/layer_1/feed_forward",
        None,
    ],
)
def test_the_first_sublayer_whose_output_overflows_is_named(layer):
    """The parameters are finite; outputs of later sub-layers and gradients are not."""
    model = model_of(16, layers=2, d_model=8, d_ff=16, d_k=4, d_v=4, dropout=0.1)

    def spoil(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return leaf * 0 + 3e38 if name == f"{layer}/output/kernel" else leaf

    params = jax.tree_util.tree_map_with_path(spoil, params_of(model))
    finding = diagnose(model, params, random_batch(3, 4))
    assert finding[:3] == (0, None, layer)
    assert np.isfinite(finding.loss) == (layer is None)
    said = f"the first output that is not finite is that of {layer};"
    machine = "computed again everything is finite, so the machine is suspect"
    assert str(finding).startswith(said if layer else machine)


# --- without a model -----------------------------------------------------------------


SPOILT = {
    "decoder/norm/scale": "decoder/norm",
    "decoder/layer_10/self_attention/key/kernel": "decoder/layer_10/self_attention",
    "decoder/layer_1/feed_forward_sublayer/norm/bias": "decoder/layer_1/feed_forward",
    "decoder/layer_1/cross_attention/key/kernel": "decoder/layer_1/cross_attention",
    "encoder/norm/bias": "encoder/norm",
    "encoder/layer_3/feed_forward/bias": "encoder/layer_3/feed_forward",
    "embedding": "embedding",
    "logits_bias": "logits_bias",
    "position_embedding": "position_embedding",
}  # in backward order; those of no layer in the order of their names


class Layers:
    """A model of which only the names of its layers matter."""

    def watch(self, params, batch, key):
        layers = [layer for layer in SPOILT.values() if "/" in layer]
        return {layer: jnp.ones((), bool) for layer in reversed(layers)}


@pytest.fixture
def diagnose_numbers(monkeypatch):
    """Diagnose an update of batches that are one number each.

    The number is the loss, at most 5, and the gradient in one layer. The parameters
    in `spoilt` have the value `value`.
    """

    def gradients(model, state, batch, microbatch, config):
        number = batch.source.sum()
        grads = jax.tree.map(jnp.ones_like, state.params)
        grads["encoder"]["layer_3"]["feed_forward"]["bias"] = number * jnp.ones(2)
        one = jnp.ones(())
        return Gradients(LossSums(jnp.minimum(number, 5.0), one, one, one), grads)

    monkeypatch.setattr("jaxformer.training.divergence.gradients", gradients)

    def diagnose_numbers(*numbers, spoilt=(), value=NAN):
        params = {
            name: jnp.full(2, value if name in spoilt else 1.0) for name in SPOILT
        }
        update = (Batch(*[jnp.full((1, 1), number)] * 4) for number in numbers)
        return diagnose(Layers(), unflatten_dict(params, sep="/"), *update)

    return diagnose_numbers


@pytest.mark.parametrize("first", range(len(SPOILT)))
def test_the_first_parameter_in_backward_order_is_named_by_its_layer(
    first, diagnose_numbers
):
    """Nothing else is named: the loss and all gradients follow from it."""
    names, value = list(SPOILT)[first:], (NAN, INF, -INF)[first % 3]
    finding = diagnose_numbers(NAN, 1.0, spoilt=names, value=value)
    assert str(finding) == f"the parameter {SPOILT[names[0]]} is not finite"


@pytest.mark.parametrize("number", [INF, NAN])
@pytest.mark.parametrize("index", range(3))
def test_the_one_bad_microbatch_is_found(index, number, diagnose_numbers):
    """Infinity is bad in the gradient alone here, NaN in the loss as well."""
    numbers = [1.0, 2.0, 3.0]
    numbers[index] = number
    finding = diagnose_numbers(*numbers)
    assert finding[:3] == (index, None, None)
    message = "the gradient is first not finite in encoder/layer_3/feed_forward, "
    message += "going backwards"
    assert str(finding) == ("the loss is nan; " if np.isnan(number) else "") + message


def test_finite_microbatches_give_no_finding(diagnose_numbers):
    assert diagnose_numbers(1.0, 2.0) == Diagnosis(1, None, None, 2.0, None)
