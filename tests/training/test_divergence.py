"""A bad update leaves no trace but its count, and where it went wrong is found."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.experimental.compilation_cache import compilation_cache

from jaxformer.batch import Batch
from jaxformer.training.divergence import Finding, before_bad_steps, diagnose_update
from jaxformer.training.loss import LossSums
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.step import (
    Gradients,
    TrainState,
    TrainStep,
    apply_gradients,
    init_state,
)
from tests.models.tiny import model_of

NAN, INF = float("nan"), float("inf")
MAX_BAD_STEPS = 3
EMA_DECAY = 0.75
OPTIMIZER, _ = make_optimizer(
    d_model=8,
    warmup_steps=4,
    learning_rate_scale=1.0,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-9,
    clip_norm=None,
)


def assert_same(left, right):
    """Every bit of every leaf; NaN would equal NaN, but there is none."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())


# --- skipping ------------------------------------------------------------------------


def small_state() -> TrainState:
    """A state of two parameters, an update or two into its training."""
    params = {"a": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([[3.0]])}
    return TrainState(
        step=jnp.int32(7),
        data_position=jnp.int32(20),
        seed=jnp.uint32(0),
        params=params,
        opt_state=OPTIMIZER.init(params),
        ema=jax.tree.map(lambda leaf: leaf / 2, params),
        bad_steps=jnp.int32(0),
        skipped=jnp.int32(0),
    )


def total(*, loss=6.0, grad=2.0) -> Gradients:
    """Sums over two tokens; `grad` is the last of the numbers in a gradient."""
    numbers = map(jnp.float32, (loss, 5.0, 1.0, 2.0))
    grads = {"a": jnp.array([4.0, 1.0, grad]), "b": jnp.array([[0.5]])}
    return Gradients(LossSums(*numbers), grads)


@jax.jit
def apply(state, gradients):
    return apply_gradients(
        OPTIMIZER, state, gradients, ema_decay=EMA_DECAY, max_bad_steps=MAX_BAD_STEPS
    )


def trained(state):
    """What a skipped update must not touch."""
    return state.params, state.opt_state, state.ema, state.seed


def counts(state):
    return tuple(
        map(int, (state.step, state.data_position, state.bad_steps, state.skipped))
    )


GOOD = total()
BAD = {
    "loss NaN": total(loss=NAN),
    "loss inf": total(loss=INF),
    "loss -inf": total(loss=-INF),
    "gradient NaN": total(grad=NAN),
    "gradient inf": total(grad=INF),
    "gradient -inf": total(grad=-INF),
    "gradient too long to measure": total(grad=1e30),  # its square is inf
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_an_update_that_is_not_finite_is_skipped_and_counted(bad):
    before, _ = apply(small_state(), GOOD)
    after, report = apply(before, bad)
    assert_same(trained(after), trained(before))
    assert counts(before) == (8, 21, 0, 0)
    assert counts(after) == (9, 22, 1, 1)
    assert_same(report.sums, LossSums(*[jnp.zeros(())] * 4))


def test_what_is_skipped_leaves_no_trace_in_what_follows():
    """Also none in Adam's moments and in its count, of which the rate depends."""
    once, report = apply(small_state(), GOOD)
    state, _ = apply(small_state(), BAD["gradient NaN"])
    state, _ = apply(state, BAD["loss inf"])
    state, again = apply(state, GOOD)
    assert_same(trained(state), trained(once))
    assert_same(again, report)
    assert float(report.sums.loss) == 6.0
    assert report.gradient_norm == pytest.approx((2**2 + 0.5**2 + 1 + 0.25**2) ** 0.5)


def test_a_good_update_ends_a_row_of_bad_ones_and_the_count_goes_on():
    state = small_state()
    seen = []
    for gradients in (BAD["loss NaN"], BAD["loss NaN"], GOOD, BAD["gradient inf"]):
        state, _ = apply(state, gradients)
        seen.append(counts(state))
    assert seen == [(8, 21, 1, 1), (9, 22, 2, 2), (10, 23, 0, 2), (11, 24, 1, 3)]


def test_after_so_many_in_a_row_everything_stands_still():
    """Good data changes nothing any more, so that the state says where it happened."""
    state = small_state()
    for gradients in BAD.values():
        state, report = apply(state, gradients)
    assert counts(state) == (7 + 3, 20 + 3, 3, 3)
    stands, report = apply(state, GOOD)
    assert_same(stands, state)
    assert_same(report.sums, LossSums(*[jnp.zeros(())] * 4))
    assert_same(trained(state), trained(small_state()))


def test_one_bad_update_may_be_too_many():
    @jax.jit
    def once(state, gradients):
        return apply_gradients(
            OPTIMIZER, state, gradients, ema_decay=None, max_bad_steps=1
        )

    state, _ = once(small_state(), BAD["loss NaN"])
    assert counts(state) == (8, 21, 1, 1)
    assert_same(once(state, GOOD)[0], state)


def test_before_bad_steps_is_where_the_first_of_them_was():
    state = small_state()
    for gradients in (BAD["loss NaN"], GOOD, BAD["loss NaN"], BAD["gradient inf"]):
        state, _ = apply(state, gradients)
    assert counts(state)[:2] == (11, 24)
    assert counts(before_bad_steps(state))[:2] == (9, 22)
    assert_same(before_bad_steps(state).params, state.params)


# --- a model that goes wrong in a chosen place ---------------------------------------


MODEL = model_of(
    16, layers=2, d_model=8, d_ff=16, d_k=4, d_v=4, dropout=0.1, positions="learned",
    max_positions=8,
)  # fmt: skip
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
NOWHERE = -1.0


def tiny_batch():
    rng = np.random.default_rng(0)
    segments = (np.arange(4)[None] < rng.integers(1, 5, (3, 1))).astype(np.int32)
    source, target = rng.integers(3, 16, (2, 3, 4), dtype=np.int32) * segments
    return Batch(source, target, segments, segments)


def model_state(*, overflows=NOWHERE, poisons=NOWHERE):
    """A state in which the layers of these numbers go wrong, see `going_wrong`.

    Their numbers stand in the places of positions that no batch has.
    """
    rng = np.random.default_rng(0)

    def fill(leaf):
        return jnp.asarray(rng.normal(0.0, 0.5, leaf.shape), leaf.dtype)

    init = functools.partial(init_state, MODEL, OPTIMIZER, seed=0, ema=False)
    state = jax.eval_shape(lambda: nn.unbox(init()))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
    params = jax.tree.map(fill, state.params)
    table = params["position_embedding"].at[-2:, 0].set(jnp.array([overflows, poisons]))
    return zeros._replace(params={**params, "position_embedding": table})


@jax.custom_vjp
def poisoned(x, is_on):
    """The identity; if it is on, its cotangent comes back as NaN."""
    return x


poisoned.defvjp(
    lambda x, is_on: (x, is_on),
    lambda is_on, cotangent: (jnp.where(is_on, jnp.nan, cotangent), None),
)


@pytest.fixture
def going_wrong():
    """Wrap what is inside of each sub-layer, so that its output may go wrong.

    Which one does is data, so that a single program serves all tests.
    """
    numbers = []

    def intercept(function, args, kwargs, context):
        if context.module.path == () and context.method_name == "hidden":
            numbers[:] = context.module.position_embedding[-2:, 0]
        output, path = function(*args, **kwargs), "/".join(context.module.path)
        if path in LAYERS and context.method_name == "__call__":
            overflows, poisons = (number == LAYERS.index(path) for number in numbers)
            output += jnp.where(overflows, INF, 0.0)
            output = poisoned(output, poisons)
        return output

    with nn.intercept_methods(intercept):
        yield


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    """Give `diagnose_update`, which compiles whenever it is called, with a cache."""
    wanted = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in wanted}

    def configure(values):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    configure(wanted)
    yield functools.partial(diagnose_update, MODEL, label_smoothing=0.1)
    configure(before)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS[::3])
def test_an_output_that_overflows_is_named_by_its_sublayer(layer, look, going_wrong):
    """All that comes after it is not finite either, and is not blamed."""
    finding = look(model_state(overflows=LAYERS.index(layer)), (tiny_batch(),))
    assert finding[:3] == (0, None, layer)
    assert not np.isfinite(finding.loss)
    assert f"the first output that is not finite is that of {layer};" in str(finding)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS[::2] + LAYERS[5::4])
def test_a_gradient_that_breaks_is_named_by_where_the_backward_pass_came_to_it(
    layer, look, going_wrong
):
    """The forward pass is fine, and what the backward pass comes to later is not."""
    finding = look(model_state(poisons=LAYERS.index(layer)), (tiny_batch(),))
    assert finding[:3] == (0, None, None)
    assert np.isfinite(finding.loss)
    assert finding.gradient == layer
    assert str(finding) == (
        f"the gradient is first not finite in {layer}, going backwards"
    )


@pytest.mark.slow
def test_what_is_finite_when_computed_again_is_blamed_on_the_machine(look, going_wrong):
    finding = look(model_state(), (tiny_batch(), tiny_batch()))
    assert (finding.parameter, finding.output, finding.gradient) == (None, None, None)
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


def microbatch(number):
    """A batch that holds nothing but one number."""
    return Batch(*[jnp.full((1, 1), number, jnp.float32)] * 4)


@pytest.fixture
def gradients_are_numbers(monkeypatch):
    """Let the number in a microbatch be its loss and its gradient in one layer."""

    def gradients(model, state, batch, microbatch, *, label_smoothing):
        number = batch.source.sum()
        grads = jax.tree.map(jnp.ones_like, state.params)
        grads["encoder"]["layer_3"]["feed_forward"]["bias"] = number * jnp.ones(2)
        one = jnp.ones(())
        return Gradients(LossSums(jnp.minimum(number, 5.0), one, one, one), grads)

    for module in ("step", "divergence"):
        monkeypatch.setattr(f"jaxformer.training.{module}.gradients", gradients)


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
}  # in backward order; of no layer in that of their names


def layered_state(*spoilt, value=NAN):
    """A state whose parameters of these names are not finite."""
    params = {}
    for name in SPOILT:
        *path, last = name.split("/")
        within = params
        for key in path:
            within = within.setdefault(key, {})
        within[last] = jnp.full(2, value if name in spoilt else 1.0)
    return small_state()._replace(
        params=params, opt_state=OPTIMIZER.init(params), ema=None
    )


@pytest.mark.parametrize("first", range(len(SPOILT)))
def test_the_first_parameter_in_backward_order_is_named_by_its_layer(
    first, gradients_are_numbers
):
    """And nothing else is: the loss and all gradients follow from it."""
    names = list(SPOILT)[first:]
    update = (microbatch(NAN), microbatch(1.0))
    state = layered_state(*names, value=(NAN, INF, -INF)[first % 3])
    finding = diagnose_update(Layers(), state, update, label_smoothing=0.1)
    assert finding.parameter == SPOILT[names[0]]
    assert str(finding) == f"the parameter {SPOILT[names[0]]} is not finite"


@pytest.mark.parametrize("number", [INF, NAN])
@pytest.mark.parametrize("place", range(3))
def test_one_bad_microbatch_skips_the_update_and_is_the_one_that_is_found(
    place, number, gradients_are_numbers
):
    """Infinity is bad in the gradient alone here, NaN in the loss as well."""
    update = [microbatch(1.0), microbatch(2.0), microbatch(3.0)]
    update[place] = microbatch(number)
    step = TrainStep(
        None, OPTIMIZER, label_smoothing=0.1, ema_decay=None, max_bad_steps=3
    )
    after, report = step(layered_state(), tuple(update))
    assert_same(trained(after), trained(layered_state()))
    assert counts(after) == (8, 21, 1, 1)
    assert_same(report.sums, LossSums(*[jnp.zeros(())] * 4))

    finding = diagnose_update(
        Layers(), layered_state(), tuple(update), label_smoothing=0.1
    )
    assert finding[:3] == (place, None, None)
    assert finding.gradient == "encoder/layer_3/feed_forward"
    said = str(finding)
    assert ("the loss is nan; " in said) == np.isnan(number)
    assert said.endswith("not finite in encoder/layer_3/feed_forward, going backwards")


def test_good_microbatches_make_a_good_update(gradients_are_numbers):
    step = TrainStep(
        None, OPTIMIZER, label_smoothing=0.1, ema_decay=None, max_bad_steps=3
    )
    state = layered_state()._replace(bad_steps=jnp.int32(2), skipped=jnp.int32(4))
    after, report = step(state, (microbatch(1.0), microbatch(2.0)))
    assert counts(after) == (8, 21, 0, 4)
    assert (float(report.sums.loss), float(report.sums.tokens)) == (3.0, 2.0)
    finding = diagnose_update(
        Layers(),
        layered_state(),
        (microbatch(1.0), microbatch(2.0)),
        label_smoothing=0.1,
    )
    assert finding == Finding(1, None, None, 2.0, None)


def test_the_whole_chain_is_told_first_things_first():
    finding = Finding(0, None, "decoder/layer_1/feed_forward", INF, "decoder/layer_0")
    assert str(finding) == (
        "the first output that is not finite is that of decoder/layer_1/feed_forward; "
        "the loss is inf; the gradient is first not finite in decoder/layer_0, going "
        "backwards"
    )
    assert str(finding._replace(output=None, gradient=None)) == "the loss is inf"
