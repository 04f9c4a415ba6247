"""One update: the same whatever the batch is cut into, padded with or packed in.

A bad update changes nothing but the counts.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.batch import EOS, PAD, Batch
from jaxformer.training.loss import LossSums
from jaxformer.training.step import (
    Gradients,
    TrainState,
    apply_gradients,
    dropout_key,
    evaluate_batch,
    gradients,
)
from tests.models.tiny import VOCABULARY, model_of
from tests.training.setups import assert_same, init_of, optimizer_of, step_of

EPSILON = 1e-4  # see test_microbatches_make_the_update_of_one_big_batch
EMA_DECAY = 0.75
MAX_BAD_STEPS = 3
MODEL = model_of()
OPTIMIZER, SCHEDULE = optimizer_of(epsilon=EPSILON)
RULES = {"ema_decay": EMA_DECAY, "max_bad_steps": MAX_BAD_STEPS}
STEP = step_of(MODEL, OPTIMIZER, **RULES)
NOTHING = LossSums(0.0, 0.0, 0.0, 0.0)

compiled_sums = jax.jit(functools.partial(evaluate_batch, MODEL, label_smoothing=0.1))


@functools.cache
def initial_arrays():
    """A state of random parameters, as numpy arrays.

    The compilation of `init_state` would take longer than all of these tests.
    """
    rng = np.random.default_rng(3)

    def fill(path, leaf):
        centre = 1.0 if "scale" in jax.tree_util.keystr(path) else 0.0
        return rng.normal(centre, 0.25, leaf.shape).astype(leaf.dtype)

    init = init_of(MODEL, OPTIMIZER, seed=3, ema=True)
    state = jax.eval_shape(lambda: nn.unbox(init()))
    params = jax.tree_util.tree_map_with_path(fill, state.params)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    return zeros._replace(params=params, ema=params, seed=np.uint32(3))


def fresh_state():
    """The state on the device, to be donated to an update."""
    return jax.tree.map(jnp.array, initial_arrays())


def random_pairs(count):
    """Pairs of sequences of 1 to 6 ids, EOS last."""
    rng = np.random.default_rng(0)

    def sequence():
        return [*rng.integers(EOS + 1, VOCABULARY, rng.integers(6)).tolist(), EOS]

    return [(sequence(), sequence()) for _ in range(count)]


def pack(rows, *, height=8, source_length=6, target_length=6):
    """A batch whose row r holds the pairs rows[r] behind each other."""
    lengths = (source_length, target_length) * 2
    batch = Batch(*(np.full((height, length), PAD, np.int32) for length in lengths))
    for row, pairs in enumerate(rows):
        ends = [0, 0]
        for number, pair in enumerate(pairs, start=1):
            for side, sequence in enumerate(pair):
                span = slice(ends[side], ends[side] + len(sequence))
                batch[side][row, span] = sequence
                batch[side + 2][row, span] = number
                ends[side] = span.stop
    return batch


def largest_difference(left, right):
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), left, right)
    return max(jax.tree.leaves(differences))


def counts(state):
    names = ("step", "data_position", "bad_steps", "skipped")
    return tuple(int(getattr(state, name)) for name in names)


PAIRS = random_pairs(8)
ROWS = [[pair] for pair in PAIRS]


@functools.cache
def one_update():
    """State and report after the update of all pairs, one a row."""
    return jax.device_get(STEP(fresh_state(), (pack(ROWS),)))


def test_an_update_applies_the_optimizer_to_the_mean_gradient_per_token():
    before, (after, report) = initial_arrays(), one_update()
    assert (*counts(after), int(after.seed)) == (1, 1, 0, 0, 3)
    assert int(report.sums.tokens) == sum(len(target) for _, target in PAIRS)

    @jax.grad
    def gradient(params):
        sums = evaluate_batch(MODEL, params, pack(ROWS), label_smoothing=0.1)
        return sums.loss / sums.tokens

    mean = jax.device_get(jax.jit(gradient)(before.params))
    squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(mean))
    assert report.gradient_norm == pytest.approx(squares**0.5, rel=1e-5)
    # The first step of Adam: rate * g / (|g| + epsilon); the bound is explained below.
    rate = float(SCHEDULE(0))
    expected = jax.tree.map(
        lambda param, grad: param - rate * grad / (np.abs(grad) + EPSILON),
        before.params,
        mean,
    )
    assert largest_difference(after.params, expected) < 0.01 * rate


@pytest.mark.parametrize(
    "update",
    [
        [pack(ROWS)],
        pytest.param([pack(ROWS[:5]), pack(ROWS[5:])], marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_an_update_donates_the_state(update):
    """Memory would otherwise hold parameters and moments twice."""
    state = fresh_state()
    STEP(state, tuple(update))
    leaves = jax.tree.leaves((state.params, state.opt_state))
    assert all(leaf.is_deleted() for leaf in leaves)


def test_the_moving_average_follows_the_parameters():
    before, (after, _) = initial_arrays(), one_update()
    expected = jax.tree.map(
        lambda old, new: EMA_DECAY * old + (1 - EMA_DECAY) * new,
        before.ema,
        after.params,
    )
    assert largest_difference(after.ema, expected) < 1e-6
    assert largest_difference(after.ema, before.ema) > 1e-4


@pytest.mark.slow
def test_microbatches_make_the_update_of_one_big_batch():
    """Three microbatches of two shapes and of 5, 2 and 1 pairs.

    Rounding moves a gradient g of the mean loss by less than 1e-6, and a first step of
    Adam, rate * g / (|g| + epsilon), by at most rate / epsilon times that: 1 % of the
    rate here. (With the paper's epsilon of 1e-9 a g of zero would step by the sign of
    its rounding.)
    """
    microbatches = (
        pack(ROWS[:5]),
        pack(ROWS[5:7], height=2, source_length=8),
        pack(ROWS[7:], height=2, source_length=8),
    )
    state, report = jax.device_get(STEP(fresh_state(), microbatches))
    whole, expected = one_update()
    np.testing.assert_allclose(report.sums, expected.sums, rtol=1e-6)
    assert report.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-5)
    bound = 0.01 * float(SCHEDULE(0))
    assert largest_difference(state.params, whole.params) < bound
    assert largest_difference(state.ema, whole.ema) < bound
    assert counts(state) == (1, 1, 0, 0)


# --- updates that are not finite -----------------------------------------------------


def small_state() -> TrainState:
    """A state of two parameters after a few updates."""
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


def total(*, loss=6.0, grad=2.0, tokens=2.0) -> Gradients:
    """Sums over two tokens; `grad` is one of the numbers in a gradient."""
    sums = LossSums(*map(jnp.float32, (loss, 5.0, 1.0, tokens)))
    return Gradients(sums, {"a": jnp.array([4.0, 1.0, grad]), "b": jnp.array([[0.5]])})


apply = jax.jit(functools.partial(apply_gradients, OPTIMIZER, **RULES))


def trained(state):
    """What a skipped update must not change."""
    return state.params, state.opt_state, state.ema, state.seed


GOOD = total()
BAD = {
    "loss NaN": total(loss=np.nan),
    "loss inf": total(loss=np.inf),
    "loss -inf": total(loss=-np.inf),
    "gradient NaN": total(grad=np.nan),
    "gradient inf": total(grad=np.inf),
    "gradient -inf": total(grad=-np.inf),
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
    for grads in (BAD["gradient NaN"], BAD["loss inf"], GOOD):
        state, again = apply(state, grads)
        seen.append(counts(state))
    assert seen == [(8, 21, 1, 1), (9, 22, 2, 2), (10, 23, 0, 2)]
    assert_same(trained(state), trained(once))
    assert_same(again, report)
    assert report.sums == GOOD.sums
    assert report.gradient_norm == pytest.approx((2**2 + 0.5**2 + 1 + 0.25**2) ** 0.5)


def test_after_max_bad_steps_in_a_row_the_state_stays_as_it_is():
    state = small_state()
    for grads in (*BAD.values(), GOOD):
        state, report = apply(state, grads)
    assert counts(state) == (7 + 3, 20 + 3, 3, 3)
    assert_same(trained(state), trained(small_state()))
    assert report.sums == NOTHING


# --- what a batch is made of ---------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, [PAIRS[:3], PAIRS[3:4], PAIRS[4:7], PAIRS[7:]]])
def test_neither_padding_nor_packing_changes_the_loss(rows):
    """Nor does the fast gradient of the train step; dropout is off."""
    params = initial_arrays().params
    roomier = pack(rows, height=10, source_length=20, target_length=20)
    expected = compiled_sums(params, pack(ROWS))
    np.testing.assert_allclose(compiled_sums(params, roomier), expected, rtol=1e-6)
    np.testing.assert_allclose(one_update()[1].sums, expected, rtol=1e-6)


def test_the_dropout_key_is_a_function_of_seed_step_and_microbatch():
    state = fresh_state()

    def key(seed, step, microbatch):
        changed = state._replace(seed=jnp.uint32(seed), step=jnp.int32(step))
        return tuple(jax.random.key_data(dropout_key(changed, microbatch)).tolist())

    where = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    assert len({key(*each) for each in where}) == len(where)
    moved = state._replace(data_position=jnp.int32(9), params=None, seed=jnp.uint32(0))
    assert jax.random.key_data(dropout_key(moved, 0)).tolist() == [*key(0, 0, 0)]


def test_dropout_changes_with_the_microbatch_and_the_step():
    dropping = model_of(dropout=0.3)

    @jax.jit
    def loss(state, microbatch):  # only the loss is computed, no gradient
        batch = pack(ROWS)
        total = gradients(dropping, state, batch, microbatch, label_smoothing=0.1)
        return total.sums.loss

    state = fresh_state()
    later = state._replace(step=jnp.int32(1))
    losses = [float(loss(*where)) for where in ((state, 0), (state, 1), (later, 0))]
    assert len(set(losses)) == 3
    assert float(loss(state, 0)) == losses[0]
