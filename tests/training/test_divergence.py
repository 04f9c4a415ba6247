"""An update that is not finite is diagnosed: which microbatch, layer and parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.training.divergence import Finding, diagnose_update
from jaxformer.training.loss import LossSums
from jaxformer.training.step import Gradients, fresh_state
from tests.models.tiny import model_of, params_of
from tests.training.setups import assert_same, optimizer_of, random_batch, step_of

NAN, INF = float("nan"), float("inf")
OPTIMIZER, _ = optimizer_of()

# --- a model with a layer that goes wrong ---------------------------------------------

MODEL = model_of(16, layers=2, d_model=8, d_ff=16, d_k=4, d_v=4, dropout=0.1)
SUBLAYERS = {
    "encoder": ("self_attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}
LAYERS = [
    f"{stack}/layer_{number}/{sublayer}"
    for stack, sublayers in SUBLAYERS.items()
    for number in range(2)
    for sublayer in sublayers
]


def diagnose_model(layer=None):
    """Diagnose an update in which the output of `layer` overflows."""

    def spoil(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return leaf * 0 + 3e38 if name == f"{layer}/output/kernel" else leaf

    params = jax.tree_util.tree_map_with_path(spoil, params_of(MODEL))
    state = fresh_state(params, OPTIMIZER, seed=0, ema=False)
    update = (random_batch(3, 4),)
    return diagnose_update(MODEL, state, update, label_smoothing=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS[::3])
def test_the_first_sublayer_whose_output_overflows_is_named(layer):
    """The parameters are finite; outputs of later sub-layers and gradients are not."""
    finding = diagnose_model(layer)
    assert finding[:3] == (0, None, layer)
    assert not np.isfinite(finding.loss)
    assert f"the first output that is not finite is that of {layer};" in str(finding)


@pytest.mark.slow
def test_an_update_that_is_finite_when_repeated_is_blamed_on_the_machine():
    finding = diagnose_model()
    assert np.isfinite(finding.loss)
    assert str(finding) == (
        "computed again everything is finite, so the machine is suspect"
    )


# --- without a model -----------------------------------------------------------------


class Layers:
    """A model of which only the names of its layers matter."""

    def watch(self, params, batch, key):
        names = ("encoder/layer_3/feed_forward", "encoder/norm")
        names += ("decoder/layer_1/cross_attention", "decoder/layer_1/feed_forward")
        names += ("decoder/layer_10/self_attention", "decoder/norm")
        return {name: jnp.ones((), bool) for name in names}


@pytest.fixture
def diagnose(monkeypatch):
    """Give diagnosis and update of batches that are one number each.

    The number is the loss, and the gradient in one layer.
    """

    def gradients(model, state, batch, microbatch, *, label_smoothing):
        number = batch.source.sum()
        grads = jax.tree.map(jnp.ones_like, state.params)
        grads["encoder"]["layer_3"]["feed_forward"]["bias"] = number * jnp.ones(2)
        one = jnp.ones(())
        return Gradients(LossSums(jnp.minimum(number, 5.0), one, one, one), grads)

    for module in ("step", "divergence"):
        monkeypatch.setattr(f"jaxformer.training.{module}.gradients", gradients)
    step = step_of(None, OPTIMIZER)

    def diagnose(state, *numbers):
        update = tuple(
            Batch(*[jnp.full((1, 1), number, jnp.float32)] * 4) for number in numbers
        )
        finding = diagnose_update(Layers(), state, update, label_smoothing=0.1)
        return finding, *step(jax.tree.map(jnp.copy, state), update)

    return diagnose


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


def layered_state(*spoilt, value=NAN):
    """A state whose parameters of these names are not finite."""
    params = {}
    for name in SPOILT:
        *path, last = name.split("/")
        within = params
        for key in path:
            within = within.setdefault(key, {})
        within[last] = jnp.full(2, value if name in spoilt else 1.0)
    return fresh_state(params, OPTIMIZER, seed=0, ema=False)


@pytest.mark.parametrize("first", range(len(SPOILT)))
def test_the_first_parameter_in_backward_order_is_named_by_its_layer(first, diagnose):
    """Nothing else is named: the loss and all gradients follow from it."""
    names = list(SPOILT)[first:]
    state = layered_state(*names, value=(NAN, INF, -INF)[first % 3])
    finding, *_ = diagnose(state, NAN, 1.0)
    assert str(finding) == f"the parameter {SPOILT[names[0]]} is not finite"


@pytest.mark.parametrize("number", [INF, NAN])
@pytest.mark.parametrize("index", range(3))
def test_one_bad_microbatch_skips_the_update_and_is_found(index, number, diagnose):
    """Infinity is bad in the gradient alone here, NaN in the loss as well."""
    numbers = [1.0, 2.0, 3.0]
    numbers[index] = number
    finding, after, report = diagnose(layered_state(), *numbers)
    assert_same(after.params, layered_state().params)
    assert (int(after.step), int(after.skipped)) == (1, 1)
    assert report.sums == LossSums(0.0, 0.0, 0.0, 0.0)
    assert finding[:3] == (index, None, None)
    message = "the gradient is first not finite in encoder/layer_3/feed_forward, "
    message += "going backwards"
    assert str(finding) == ("the loss is nan; " if np.isnan(number) else "") + message


def test_good_microbatches_make_a_good_update(diagnose):
    finding, after, report = diagnose(layered_state(), 1.0, 2.0)
    assert (int(after.step), int(after.skipped)) == (1, 0)
    assert (float(report.sums.loss), float(report.sums.tokens)) == (3.0, 2.0)
    assert finding == Finding(1, None, None, 2.0, None)


def test_a_finding_names_the_output_then_the_loss_then_the_gradient():
    finding = Finding(0, None, "decoder/layer_1/feed_forward", INF, "decoder/layer_0")
    assert str(finding) == (
        "the first output that is not finite is that of decoder/layer_1/feed_forward; "
        "the loss is inf; the gradient is first not finite in decoder/layer_0, going "
        "backwards"
    )
