"""One update: the same whatever the batch is cut into, padded with or packed in."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.batch import EOS, PAD, Batch
from jaxformer.training.loss import LossSums
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.step import (
    Gradients,
    TrainStep,
    apply_gradients,
    dropout_key,
    evaluate_batch,
    gradients,
    init_state,
)
from tests.models.tiny import VOCABULARY, model_of

EPSILON = 1e-4  # see test_microbatches_make_the_update_of_one_big_batch
EMA_DECAY = 0.75


MODEL = model_of()
DROPPING = model_of(dropout=0.3)
OPTIMIZER, SCHEDULE = make_optimizer(
    d_model=16,
    warmup_steps=20,
    learning_rate_scale=1.0,
    beta1=0.9,
    beta2=0.98,
    epsilon=EPSILON,
    clip_norm=None,
)
MAX_BAD_STEPS = 2
STEP = TrainStep(
    MODEL,
    OPTIMIZER,
    label_smoothing=0.1,
    ema_decay=EMA_DECAY,
    max_bad_steps=MAX_BAD_STEPS,
)

compiled_sums = jax.jit(functools.partial(evaluate_batch, MODEL, label_smoothing=0.1))


@functools.cache
def initial_arrays():
    """A state of arbitrary parameters, as numpy arrays: what is tested holds for any.

    Filled in here, as the compilation of the real initialisation takes longer than
    all of these tests.
    """
    rng = np.random.default_rng(3)

    def fill(path, leaf):
        centre = 1.0 if "scale" in jax.tree_util.keystr(path) else 0.0
        return rng.normal(centre, 0.25, leaf.shape).astype(leaf.dtype)

    init = functools.partial(init_state, MODEL, OPTIMIZER, seed=3, ema=True)
    state = jax.eval_shape(lambda: nn.unbox(init()))
    params = jax.tree_util.tree_map_with_path(fill, state.params)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    return zeros._replace(params=params, ema=params, seed=np.uint32(3))


def fresh_state():
    """The state on the device, to be donated to an update."""
    return jax.tree.map(jnp.array, initial_arrays())


def random_pairs(count, *, seed=0):
    """Pairs of sequences of 1 to 6 ids, EOS last."""
    rng = np.random.default_rng(seed)

    def sequence():
        return [*rng.integers(EOS + 1, VOCABULARY, rng.integers(6)).tolist(), EOS]

    return [(sequence(), sequence()) for _ in range(count)]


def pack(rows, *, height, source_length, target_length):
    """A batch whose row r holds the pairs rows[r] behind each other."""
    batch = Batch(
        *(np.full((height, length), PAD, np.int32)
          for length in (source_length, target_length) * 2)
    )  # fmt: skip
    for row, pairs in enumerate(rows):
        ends = [0, 0]
        for number, pair in enumerate(pairs, start=1):
            for side, sequence in enumerate(pair):
                places = slice(ends[side], ends[side] + len(sequence))
                batch[side][row, places] = sequence
                batch[side + 2][row, places] = number
                ends[side] = places.stop
    return batch


def one_a_row(pairs, *, height=8, source_length=6, target_length=6):
    return pack(
        [[pair] for pair in pairs],
        height=height,
        source_length=source_length,
        target_length=target_length,
    )


def largest_difference(left, right):
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), left, right)
    return max(jax.tree.leaves(differences))


PAIRS = random_pairs(8)


class Outcome(NamedTuple):
    """What one update of the fresh state returned."""

    state: object
    sums: object
    norm: object


def outcome(state, microbatches):
    state, report = jax.device_get(STEP(state, microbatches))
    return Outcome(state, *report)


@functools.cache
def one_update():
    return outcome(fresh_state(), (one_a_row(PAIRS),))


def test_an_update_counts_itself_and_its_tokens():
    state, sums, _ = one_update()
    assert (int(state.step), int(state.data_position), int(state.seed)) == (1, 1, 3)
    assert (int(state.bad_steps), int(state.skipped)) == (0, 0)
    assert int(sums.tokens) == sum(len(target) for _, target in PAIRS)


def test_an_update_applies_the_optimizer_to_the_mean_gradient_per_token():
    before, after = initial_arrays(), one_update()

    @jax.grad
    def gradient(params):
        sums = evaluate_batch(MODEL, params, one_a_row(PAIRS), label_smoothing=0.1)
        return sums.loss / sums.tokens

    mean = jax.device_get(jax.jit(gradient)(before.params))
    squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(mean))
    assert after.norm == pytest.approx(squares**0.5, rel=1e-5)
    # The first step of Adam: rate * g / (|g| + epsilon); the bound is explained below.
    rate = float(SCHEDULE(0))
    expected = jax.tree.map(
        lambda param, grad: param - rate * grad / (np.abs(grad) + EPSILON),
        before.params,
        mean,
    )
    assert largest_difference(after.state.params, expected) < 0.01 * rate


def test_the_moving_average_follows_the_parameters():
    before, after = initial_arrays(), one_update().state
    expected = jax.tree.map(
        lambda old, new: EMA_DECAY * old + (1 - EMA_DECAY) * new,
        before.ema,
        after.params,
    )
    assert largest_difference(after.ema, expected) < 1e-6
    assert largest_difference(after.ema, before.ema) > 1e-4
    assert largest_difference(before.ema, before.params) == 0


@pytest.mark.slow
def test_microbatches_make_the_update_of_one_big_batch():
    """Three microbatches of two shapes and of 5, 2 and 1 pairs.

    Rounding moves a gradient g of the mean loss by less than 1e-6, and a first step of
    Adam, rate * g / (|g| + epsilon), by at most rate / epsilon times that: 1 % of the
    rate here. (With the paper's epsilon of 1e-9 a g of zero would step by the sign of
    its rounding.)
    """
    microbatches = (
        one_a_row(PAIRS[:5]),
        one_a_row(PAIRS[5:7], height=2, source_length=8),
        one_a_row(PAIRS[7:], height=2, source_length=8),
    )
    state, sums, norm = outcome(fresh_state(), microbatches)
    whole = one_update()
    np.testing.assert_allclose(sums, whole.sums, rtol=1e-6)
    assert norm == pytest.approx(whole.norm, rel=1e-5)
    bound = 0.01 * float(SCHEDULE(0))
    assert largest_difference(state.params, whole.state.params) < bound
    assert largest_difference(state.ema, whole.state.ema) < bound
    assert (int(state.step), int(state.data_position)) == (1, 1)


# --- updates that are not finite -----------------------------------------------------


def of_ones(state, *, loss=24.0, tokens=8.0):
    """The sums of a microbatch, and gradients of 8 everywhere: of 1 a token."""
    sums = LossSums(*map(jnp.float32, (loss, 16.0, 4.0, tokens)))
    return Gradients(sums, jax.tree.map(lambda leaf: 0 * leaf + 8, state.params))


def with_entry(total, value):
    """One number of the gradients replaced."""
    embedding = total.grads["embedding"].at[5, 7].set(value)
    return total._replace(grads={**total.grads, "embedding": embedding})


@jax.jit
def apply(state, total):
    return apply_gradients(
        OPTIMIZER, state, total, ema_decay=EMA_DECAY, max_bad_steps=MAX_BAD_STEPS
    )


def counts(state):
    return tuple(
        int(getattr(state, name))
        for name in ("step", "data_position", "bad_steps", "skipped")
    )


def trained(state):
    """The bytes of all that an update learns."""
    leaves = jax.tree.leaves((state.params, state.opt_state, state.ema))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


BAD = {
    "a gradient of infinity": lambda state: with_entry(of_ones(state), jnp.inf),
    "a gradient of nan": lambda state: with_entry(of_ones(state), jnp.nan),
    "gradients whose norm overflows": lambda state: with_entry(of_ones(state), 1e30),
    "a loss of infinity": lambda state: of_ones(state, loss=np.inf),
    "a loss of nan": lambda state: of_ones(state, loss=np.nan),
    "no token at all": lambda state: of_ones(state, loss=0.0, tokens=0.0),
}


@pytest.mark.parametrize("kind", BAD)
def test_an_update_that_is_not_finite_is_skipped_and_counted(kind):
    before = fresh_state()
    after, report = apply(before, BAD[kind](before))
    assert trained(after) == trained(before)
    assert counts(after) == (1, 1, 1, 1)
    assert report.sums == LossSums(0.0, 0.0, 0.0, 0.0)
    assert int(after.seed) == int(before.seed)


def test_a_good_update_ends_a_row_of_bad_ones_and_is_as_if_they_had_not_been():
    before = fresh_state()
    total = of_ones(before)
    alone, report = apply(before, total)
    skipped, _ = apply(before, with_entry(total, jnp.nan))
    after, after_report = apply(skipped, total)
    assert trained(after) == trained(alone) != trained(before)
    assert counts(alone) == (1, 1, 0, 0)
    assert counts(after) == (2, 2, 0, 1)
    assert after_report == report
    size = sum(leaf.size for leaf in jax.tree.leaves(before.params))
    assert float(report.gradient_norm) == pytest.approx(size**0.5, rel=1e-5)
    assert report.sums == total.sums


def test_a_state_that_has_diverged_stands_still_until_the_host_comes_to_look():
    before = fresh_state()
    good = of_ones(before)
    bad = with_entry(good, jnp.inf)
    state = before
    for total in (bad,) * MAX_BAD_STEPS:
        state, _ = apply(state, total)
    assert counts(state) == (2, 2, 2, 2)
    for total in (good, bad):
        still, report = apply(state, total)
        assert counts(still) == counts(state)
        assert trained(still) == trained(before)
        assert report.sums == LossSums(0.0, 0.0, 0.0, 0.0)


def test_a_compiled_update_skips_what_its_parameters_make_of_a_batch():
    state = fresh_state()
    broken = state.params["embedding"].at[EOS].set(jnp.inf)
    state = state._replace(params={**state.params, "embedding": broken})
    before = trained(state)
    for steps in (1, 2, 2):  # it diverges at the second
        state, report = STEP(state, (one_a_row(PAIRS),))
        assert counts(state) == (steps,) * 4
        assert not np.isfinite(report.gradient_norm)
        assert report.sums == LossSums(0.0, 0.0, 0.0, 0.0)
    assert trained(state) == before


# --- what a batch is made of ---------------------------------------------------------


def test_rows_and_columns_of_padding_never_change_the_loss():
    params = fresh_state().params
    roomier = one_a_row(PAIRS, height=10, source_length=20, target_length=20)
    np.testing.assert_allclose(
        compiled_sums(params, roomier),
        compiled_sums(params, one_a_row(PAIRS)),
        rtol=1e-6,
    )


def test_packed_rows_have_the_loss_of_the_same_pairs_one_a_row():
    params = fresh_state().params
    rows = [PAIRS[:3], PAIRS[3:4], PAIRS[4:7], PAIRS[7:]]
    packed = pack(rows, height=10, source_length=20, target_length=20)
    assert packed.source_segments.max() == 3
    np.testing.assert_allclose(
        compiled_sums(params, packed),
        compiled_sums(params, one_a_row(PAIRS)),
        rtol=1e-6,
    )


def test_training_and_evaluation_see_the_same_loss_without_dropout():
    np.testing.assert_allclose(
        one_update().sums,
        compiled_sums(fresh_state().params, one_a_row(PAIRS)),
        rtol=1e-6,
    )


def test_the_dropout_key_is_a_function_of_seed_step_and_microbatch():
    state = fresh_state()

    def key(seed, step, microbatch):
        changed = state._replace(seed=jnp.uint32(seed), step=jnp.int32(step))
        return jax.random.key_data(dropout_key(changed, microbatch)).tolist()

    keys = {
        (seed, step, microbatch): tuple(key(seed, step, microbatch))
        for seed in (0, 1)
        for step in (0, 1)
        for microbatch in (0, 1)
    }
    assert len(set(keys.values())) == len(keys)
    assert key(1, 0, 1) == list(keys[1, 0, 1])
    moved = state._replace(data_position=jnp.int32(9), params=None, seed=jnp.uint32(0))
    assert jax.random.key_data(dropout_key(moved, 0)).tolist() == list(keys[0, 0, 0])


def test_dropout_changes_with_the_microbatch_and_the_step():
    @jax.jit
    def loss(state, microbatch):  # of the gradients only this is kept and computed
        batch = one_a_row(PAIRS)
        total = gradients(DROPPING, state, batch, microbatch, label_smoothing=0.1)
        return total.sums.loss

    state = fresh_state()
    later = state._replace(step=jnp.int32(1))
    losses = [float(loss(*where)) for where in ((state, 0), (state, 1), (later, 0))]
    assert len(set(losses)) == 3
    assert float(loss(state, 0)) == losses[0]


def test_a_copy_task_is_being_learned_after_thirty_updates():
    pairs = [(source, source) for source, _ in PAIRS]
    batch = one_a_row(pairs)
    state, losses = fresh_state(), []
    for _ in range(30):
        state, (sums, _) = STEP(state, (batch,))
        losses.append(float(sums.loss / sums.tokens))
    assert losses[-1] < losses[0] / 2
    assert int(state.step) == 30
