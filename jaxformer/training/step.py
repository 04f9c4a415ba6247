"""One update of the parameters, and one evaluation, as pure functions.

An update may be made of several microbatches of different shapes: `gradients` sums
over each of them and `apply_gradients` divides by all their tokens once, so k
microbatches give the update that one big batch would give.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxformer.batch import Batch
from jaxformer.models.sequence_model import Model, Parameters
from jaxformer.models.shards import by_shard
from jaxformer.training.loss import LossSums, loss_sums, projected_loss_sums


class TrainState(NamedTuple):
    """Everything that a run is, besides its config and its data."""

    step: jax.Array  # int32 [], updates made, the skipped ones included
    data_position: jax.Array  # int32 [], updates' worth of data consumed
    seed: jax.Array  # uint32 [], of dropout
    params: Parameters
    opt_state: optax.OptState
    ema: Parameters | None  # moving average of params, if the config asks for one
    bad_steps: jax.Array  # int32 [], updates skipped in a row, the last one included
    skipped: jax.Array  # int32 [], updates ever skipped: loss or gradient not finite


class Learnt(NamedTuple):
    """The part of a TrainState that only a good update changes."""

    params: Parameters
    opt_state: optax.OptState
    ema: Parameters | None


class Gradients(NamedTuple):
    """Gradients of a summed loss, and the sums they belong to."""

    sums: LossSums
    grads: Parameters


class Report(NamedTuple):
    """What an update tells about itself."""

    sums: LossSums  # all zero if it was skipped
    gradient_norm: jax.Array  # float32 [], of the mean gradient, before clipping


def init_state(
    model: Model, optimizer: optax.GradientTransformation, *, seed: int, ema: bool
) -> TrainState:
    """Draw the parameters; boxed with their logical axis names (see sharding.py)."""
    params = model.init(jax.random.key(seed))
    return fresh_state(params, optimizer, seed=seed, ema=ema)


def fresh_state(
    params: Parameters, optimizer: optax.GradientTransformation, *, seed: int, ema: bool
) -> TrainState:
    """The state before the first update, from wherever the parameters come."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        data_position=jnp.zeros((), jnp.int32),
        seed=jnp.asarray(seed, jnp.uint32),
        params=params,
        opt_state=optimizer.init(params),
        ema=jax.tree.map(jnp.copy, params) if ema else None,
        bad_steps=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
    )


def dropout_key(state: TrainState, microbatch: jax.Array) -> jax.Array:
    """The key of one microbatch: a function of (seed, step, microbatch) alone."""
    key = jax.random.fold_in(jax.random.key(state.seed), state.step)
    return jax.random.fold_in(key, microbatch)


def gradients(
    model: Model,
    state: TrainState,
    batch: Batch,
    microbatch: jax.Array,
    *,
    label_smoothing: float,
) -> Gradients:
    """Differentiate the summed loss of one microbatch, dropout on."""

    def summed_loss(params: Parameters) -> tuple[jax.Array, LossSums]:
        features = model.features(params, batch, dropout_key(state, microbatch))
        sums = projected_loss_sums(
            *features,
            by_shard(batch.target),
            by_shard(batch.target_segments),
            label_smoothing,
        )
        return sums.loss, sums

    grads, sums = jax.grad(summed_loss, has_aux=True)(state.params)
    return Gradients(sums, grads)


def apply_gradients(
    optimizer: optax.GradientTransformation,
    state: TrainState,
    total: Gradients,
    *,
    ema_decay: float | None,
    max_bad_steps: int,
) -> tuple[TrainState, Report]:
    """Take one optimiser step on the mean gradient per token, and report on it.

    Where the loss or the gradient is not finite the update is skipped: it counts as a
    step and its data as consumed, nothing else changes. After `max_bad_steps` of them
    in a row nothing changes any more, so that the state still says where it happened
    when the host comes to look.
    """
    share = 1.0 / total.sums.tokens
    norm = optax.tree.norm(total.grads) * share
    runs = state.bad_steps < max_bad_steps
    is_good = runs & jnp.isfinite(norm) & jnp.isfinite(total.sums.loss)

    def update(learnt: Learnt) -> Learnt:
        # A product and not a quotient, which XLA would keep in an array of its own.
        grads = jax.tree.map(lambda grad: grad * share, total.grads)
        updates, opt_state = optimizer.update(grads, learnt.opt_state, learnt.params)
        params = optax.apply_updates(learnt.params, updates)
        ema = learnt.ema
        if ema_decay is not None:
            ema = optax.incremental_update(params, ema, 1.0 - ema_decay)
        return Learnt(params, opt_state, ema)

    # A branch and not a selection between new and old values: that would need both at
    # once, and XLA would copy all parameters and moments to have them.
    learnt = jax.lax.cond(
        is_good,
        update,
        lambda learnt: learnt,
        Learnt(state.params, state.opt_state, state.ema),
    )
    is_bad = runs & ~is_good
    state = TrainState(
        step=state.step + runs,
        data_position=state.data_position + runs,
        seed=state.seed,
        **learnt._asdict(),
        bad_steps=jnp.where(runs, (state.bad_steps + 1) * is_bad, state.bad_steps),
        skipped=state.skipped + is_bad,
    )
    sums = jax.tree.map(lambda x: jnp.where(is_good, x, 0.0), total.sums)
    return state, Report(sums, norm)


def evaluate_batch(
    model: Model, params: Parameters, batch: Batch, *, label_smoothing: float
) -> LossSums:
    """Sum the loss of one batch, dropout off."""
    return loss_sums(
        model.logits(params, batch),
        batch.target,
        batch.target_segments,
        label_smoothing=label_smoothing,
    )


class TrainStep:
    """The compiled update: call it with the state and the update's microbatches.

    One microbatch runs as one program; several accumulate, each shape compiled once.
    The state (and the accumulator) are donated: use only what is returned.
    """

    def __init__(
        self,
        model: Model,
        optimizer: optax.GradientTransformation,
        *,
        label_smoothing: float,
        ema_decay: float | None,
        max_bad_steps: int,
    ) -> None:
        def first(state: TrainState, batch: Batch) -> Gradients:
            index = jnp.zeros((), jnp.int32)
            return gradients(
                model, state, batch, index, label_smoothing=label_smoothing
            )

        def more(
            total: Gradients, state: TrainState, batch: Batch, index: jax.Array
        ) -> Gradients:
            new = gradients(model, state, batch, index, label_smoothing=label_smoothing)
            return jax.tree.map(jnp.add, total, new)

        def apply(state: TrainState, total: Gradients) -> tuple[TrainState, Report]:
            return apply_gradients(
                optimizer,
                state,
                total,
                ema_decay=ema_decay,
                max_bad_steps=max_bad_steps,
            )

        def whole(state: TrainState, batch: Batch) -> tuple[TrainState, Report]:
            return apply(state, first(state, batch))

        self.whole = jax.jit(whole, donate_argnums=0)
        self._first = jax.jit(first)
        self._more = jax.jit(more, donate_argnums=0)
        self._apply = jax.jit(apply, donate_argnums=0)

    def lower(
        self, state: TrainState, batch: Batch, *, accumulate: bool
    ) -> jax.stages.Lowered:
        """The program that takes most memory, for abstract arguments; runs nothing.

        It is the whole update or, if updates `accumulate`, adding a microbatch.
        """
        if not accumulate:
            return self.whole.lower(state, batch)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        total = Gradients(LossSums(*[scalar] * len(LossSums._fields)), state.params)
        index = jax.ShapeDtypeStruct((), jnp.int32)
        return self._more.lower(total, state, batch, index)

    def __call__(
        self, state: TrainState, update: tuple[Batch, ...]
    ) -> tuple[TrainState, Report]:
        """Make one update; returns the new state and a report."""
        if len(update) == 1:
            return self.whole(state, update[0])
        total = self._first(state, update[0])
        for index, batch in enumerate(update[1:], start=1):
            total = self._more(total, state, batch, jnp.asarray(index, jnp.int32))
        return self._apply(state, total)
