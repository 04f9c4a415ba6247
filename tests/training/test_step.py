"""One update: the same whatever the batch is cut into, padded with or packed in.

A bad update changes nothing but the counts.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.evaluation.evaluator import evaluate_batch
from jaxformer.tokens import EOS, PAD
from jaxformer.training.loss import LossSums
from jaxformer.training.step import (
    MOST_BAD_STEPS,
    Gradients,
    apply_gradients,
    fresh_state,
    gradients,
)
from tests.models.tiny import VOCABULARY, model_of, params_of
from tests.training.setups import assert_same, optimizer_of, step_of, training_of

EPSILON = 1e-4  # see test_microbatches_make_the_update_of_one_big_batch
EMA_DECAY = 0.75
MODEL = model_of()
PARAMS = params_of(MODEL)
OPTIMIZER, SCHEDULE = optimizer_of(epsilon=EPSILON)
STEP = step_of(MODEL, OPTIMIZER, ema_decay=EMA_DECAY)
NOTHING = LossSums(0.0, 0.0, 0.0, 0.0)

evaluate = jax.jit(functools.partial(evaluate_batch, MODEL, label_smoothing=0.1))
config = training_of(seed=3, ema_decay=EMA_DECAY)
apply = jax.jit(functools.partial(apply_gradients, OPTIMIZER, config=config))


def first_state(params=PARAMS):
    """A state on the device, to be donated to an update."""
    return jax.tree.map(jnp.array, fresh_state(params, OPTIMIZER, config))


def random_pairs(count):
    """Pairs of sequences of 1 to 6 ids, EOS last."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(6, size=(count, 2))
    return [
        [[*rng.integers(EOS + 1, VOCABULARY, length), EOS] for length in pair]
        for pair in lengths
    ]


def pack(rows, *, height=8, source_length=6, target_length=6):
    """A batch whose row r holds the pairs rows[r] behind each other."""
    lengths = (source_length, target_length) * 2
    batch = Batch(*(np.full((height, length), PAD, np.int32) for length in lengths))
    for row, pairs in enumerate(rows):
        for side, sequences in enumerate(zip(*pairs, strict=True)):
            ids = np.concatenate(sequences)
            batch[side][row, : len(ids)] = ids
            numbers = np.repeat(1 + np.arange(len(pairs)), [*map(len, sequences)])
            batch[side + 2][row, : len(ids)] = numbers
    return batch


PAIRS = random_pairs(8)
ROWS = [[pair] for pair in PAIRS]


def largest_difference(left, right):
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), left, right)
    return max(jax.tree.leaves(differences))


def counts(state):
    names = ("step", "data_position", "bad_steps", "skipped")
    return tuple(int(getattr(state, name)) for name in names)


def update_of(*batches):
    """The state and the report after an update, which must donate the first state.

    Memory would otherwise hold parameters and moments twice.
    """
    state = first_state()
    after = jax.device_get(STEP(state, batches))
    leaves = jax.tree.leaves((state.params, state.opt_state))
    assert all(leaf.is_deleted() for leaf in leaves)
    return after


@pytest.fixture(scope="module")
def one_update():
    """State and report after the update of all pairs, one a row."""
    return update_of(pack(ROWS))


def test_an_update_applies_the_optimizer_to_the_mean_gradient_per_token(one_update):
    after, report = one_update
    assert (*counts(after), int(after.seed)) == (1, 1, 0, 0, 3)
    assert int(report.sums.tokens) == sum(len(target) for _, target in PAIRS)

    @jax.grad
    def gradient(params):
        sums = evaluate(params, pack(ROWS))
        return sums.loss / sums.tokens

    mean = jax.device_get(jax.jit(gradient)(PARAMS))
    squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(mean))
    assert report.gradient_norm == pytest.approx(squares**0.5, rel=1e-5)
    # The first step of Adam: rate * g / (|g| + epsilon); the bound is explained below.
    rate = float(SCHEDULE(0))
    expected = jax.tree.map(
        lambda param, grad: param - rate * grad / (np.abs(grad) + EPSILON), PARAMS, mean
    )
    assert largest_difference(after.params, expected) < 0.01 * rate
    average = jax.tree.map(
        lambda old, new: EMA_DECAY * old + (1 - EMA_DECAY) * new, PARAMS, after.params
    )
    assert largest_difference(after.ema, average) < 1e-6
    assert largest_difference(after.ema, PARAMS) > 1e-4


@pytest.mark.slow
def test_microbatches_make_the_update_of_one_big_batch(one_update):
    """Three microbatches of two shapes and of 5, 2 and 1 pairs.

    Rounding moves a gradient g of the mean loss by less than 1e-6, and a first step of
    Adam, rate * g / (|g| + epsilon), by at most rate / epsilon times that: 1 % of the
    rate here. (With the paper's epsilon of 1e-9 a g of zero would step by the sign of
    its rounding.)
    """
    small = functools.partial(pack, height=2, source_length=8)
    state, report = update_of(pack(ROWS[:5]), small(ROWS[5:7]), small(ROWS[7:]))
    whole, expected = one_update
    np.testing.assert_allclose(report.sums, expected.sums, rtol=1e-6)
    assert report.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-5)
    bound = 0.01 * float(SCHEDULE(0))
    assert largest_difference(state.params, whole.params) < bound
    assert largest_difference(state.ema, whole.ema) < bound
    assert counts(state) == (1, 1, 0, 0)


# --- updates that are not finite -----------------------------------------------------


def small_state():
    """A state of two parameters, from which 13 updates' data were left out."""
    state = first_state({"a": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([[3.0]])})
    return state._replace(step=jnp.int32(7), data_position=jnp.int32(20))


def total(*, loss=6.0, grad=2.0, tokens=2.0):
    """Sums over two tokens; `grad` is one of the numbers in a gradient."""
    sums = LossSums(*map(jnp.float32, (loss, 5.0, 1.0, tokens)))
    return Gradients(sums, {"a": jnp.array([4.0, 1.0, grad]), "b": jnp.array([[0.5]])})


def trained(state):
    """What a skipped update must not change."""
    return state.params, state.opt_state, state.ema, state.seed


GOOD = total()
BAD = {
    **{f"loss {value}": total(loss=value) for value in (np.nan, np.inf, -np.inf)},
    **{f"gradient {value}": total(grad=value) for value in (np.nan, np.inf, -np.inf)},
    "gradient norm overflows": total(grad=1e30),
    "no token": total(loss=0.0, tokens=0.0),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_an_update_that_is_not_finite_is_skipped_and_counted(bad):
    before, _ = apply(small_state(), GOOD)
    after, report = apply(before, bad)
    assert_same(trained(after), trained(before))
    assert counts(before) == (8, 21, 0, 0)
    assert counts(after) == (9, 22, 1, 1)
    assert report.sums == NOTHING


def test_skipped_updates_leave_no_trace_in_the_next_good_one():
    """None in Adam's moments, nor in its count, on which the rate depends."""
    once, report = apply(small_state(), GOOD)
    state, seen = small_state(), []
    for grads in (BAD["gradient nan"], BAD["loss inf"], GOOD):
        state, again = apply(state, grads)
        seen.append(counts(state))
    assert seen == [(8, 21, 1, 1), (9, 22, 2, 2), (10, 23, 0, 2)]
    assert_same(trained(state), trained(once))
    assert_same(again, report)
    assert report.sums == GOOD.sums
    assert report.gradient_norm == pytest.approx((2**2 + 0.5**2 + 1 + 0.25**2) ** 0.5)
    assert_same(state.window, once.window)
    state, _ = apply(state, GOOD)
    assert state.window == tuple(2 * each for each in GOOD.sums)


def test_after_too_many_bad_steps_in_a_row_the_state_stays_as_it_is():
    state = small_state()
    for grads in (*[*BAD.values()] * 4, GOOD):
        state, report = apply(state, grads)
    most = MOST_BAD_STEPS
    assert counts(state) == (7 + most, 20 + most, most, most)
    assert_same(trained(state), trained(small_state()))
    assert report.sums == NOTHING


# --- what a batch is made of ---------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, [PAIRS[:3], PAIRS[3:4], PAIRS[4:7], PAIRS[7:]]])
def test_neither_padding_nor_packing_changes_the_loss(rows, one_update):
    """Nor does the fast gradient of the train step; dropout is off."""
    roomier = pack(rows, height=10, source_length=20, target_length=20)
    expected = evaluate(PARAMS, pack(ROWS))
    np.testing.assert_allclose(evaluate(PARAMS, roomier), expected, rtol=1e-6)
    np.testing.assert_allclose(one_update[1].sums, expected, rtol=1e-6)


def test_dropout_is_a_function_of_seed_step_and_microbatch():
    dropping = functools.partial(gradients, model_of(dropout=0.3), config=config)

    @jax.jit
    def loss(seed, step, microbatch, position=0):  # without its gradient
        state = fresh_state(PARAMS, OPTIMIZER, training_of())
        state = state._replace(seed=seed, step=step, data_position=position)
        return dropping(state, pack(ROWS), microbatch).sums.loss

    losses = [float(loss(*each)) for each in itertools.product((0, 1), repeat=3)]
    assert len(set(losses)) == 8
    assert float(loss(0, 0, 0, 9)) == losses[0]


@pytest.mark.slow
def test_equal_microbatches_of_an_update_drop_other_numbers():
    step = step_of(model_of(dropout=0.3), OPTIMIZER, ema_decay=EMA_DECAY)
    once, twice = (
        step(first_state(), (pack(ROWS),) * count)[1].sums for count in (1, 2)
    )
    assert float(twice.tokens) == 2 * float(once.tokens)
    assert abs(float(twice.loss) / 2 - float(once.loss)) > 1e-3 * float(once.loss)


@pytest.fixture(scope="module")
def half_frozen():
    """An update of the decoder and the embedding, and its report."""
    step = step_of(MODEL, OPTIMIZER, ema_decay=EMA_DECAY, freeze=("encoder",))
    frozen = training_of(seed=3, ema_decay=EMA_DECAY, freeze=("encoder",))
    state = jax.tree.map(jnp.array, fresh_state(PARAMS, OPTIMIZER, frozen))
    return step(state, (pack(ROWS),))


def test_the_average_keeps_frozen_parameters_whatever_its_decay():
    """Weights of 0.9999 and 0.0001 do not add up to 1 in float32."""
    options = {"ema_decay": 0.9999, "freeze": ("encoder",)}
    config = training_of(seed=3, **options)
    state = jax.tree.map(jnp.array, fresh_state(PARAMS, OPTIMIZER, config))
    after, _ = step_of(MODEL, OPTIMIZER, **options)(state, (pack(ROWS),))
    jax.tree.map(np.testing.assert_array_equal, after.ema["encoder"], PARAMS["encoder"])
    assert largest_difference(after.ema["decoder"], PARAMS["decoder"]) > 0


def test_frozen_parameters_stay_and_the_others_are_updated_as_ever(
    half_frozen, one_update
):
    frozen, all_trained = half_frozen[0], one_update[0]
    assert_same(frozen.params["encoder"], PARAMS["encoder"])
    for part in ("embedding", "decoder"):
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-9),
            frozen.params[part],
            all_trained.params[part],
        )
    assert half_frozen[1].gradient_norm < one_update[1].gradient_norm


def test_frozen_parameters_take_no_memory_of_the_optimizer(half_frozen, one_update):
    frozen, whole = (
        sum(leaf.size for leaf in jax.tree.leaves(state.opt_state))
        for state in (half_frozen[0], one_update[0])
    )
    size = sum(leaf.size for leaf in jax.tree.leaves(PARAMS["encoder"]))
    assert whole - frozen == 2 * size  # Adam's moments
