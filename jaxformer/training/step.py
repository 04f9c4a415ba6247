"""One update of the parameters, and one evaluation, as pure functions.

An update may consist of microbatches of different shapes. `gradients` sums over a
microbatch and `apply_gradients` divides by the tokens of all, so k microbatches give
the update of one large batch, dropout aside.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer.batch import Batch
from jaxformer.config.sections import TrainingConfig
from jaxformer.models.sequence_model import Model, Parameters
from jaxformer.training.frozen import merged, trainable
from jaxformer.training.loss import LossSums
from jaxformer.training.loss_kernel import projected_loss_sums
from jaxformer.training.reinforce import choice_loss, moved_baseline
from jaxformer.training.sharded_optimizer import over_shards
from jaxformer.training.sharding import splits_batch
from jaxformer.training.update_kernels import (
    compiler_options,
    global_norm,
    scaled,
    updated_if,
)

MOST_BAD_STEPS = 10  # a run with so many non-finite updates in a row does not recover


class TrainState(NamedTuple):
    """The state of training, which a checkpoint holds."""

    step: jax.Array  # int32 [], updates made, the skipped ones included
    data_position: jax.Array  # int32 [], updates' worth of data; a rollback skips some
    seed: jax.Array  # uint32 [], of dropout
    params: Parameters
    opt_state: optax.OptState
    ema: Parameters | None  # moving average of params, if the config asks for one
    bad_steps: jax.Array  # int32 [], updates skipped in a row, the last one included
    skipped: jax.Array  # int32 [], updates ever skipped: loss or gradient not finite
    window: LossSums  # of the updates since the last log line
    baseline: jax.Array | None = None  # float32 [], see `jaxformer.training.reinforce`


class Gradients(NamedTuple):
    """Gradients of a summed loss, and the sums they belong to."""

    sums: LossSums
    grads: Parameters  # None for frozen ones


class Report(NamedTuple):
    """Loss and gradient of an update."""

    sums: LossSums  # all zero if it was skipped
    gradient_norm: jax.Array  # float32 [], of the mean gradient, before clipping


def init_state(
    model: Model, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> TrainState:
    """Draw the first state, boxed with the logical names of its axes."""
    state = fresh_state(model.init(jax.random.key(config.seed)), optimizer, config)
    return state._replace(baseline=jnp.float32(0)) if model.samples else state


def fresh_state(
    params: Parameters, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> TrainState:
    """Make the state before the first update of `params`."""
    return TrainState(
        step=jnp.int32(0),
        data_position=jnp.int32(0),
        seed=jnp.uint32(config.seed),
        params=params,
        opt_state=optimizer.init(trainable(params, config.freeze)),
        ema=None if config.ema_decay is None else jax.tree.map(jnp.copy, params),
        bad_steps=jnp.int32(0),
        skipped=jnp.int32(0),
        window=LossSums(*jnp.zeros((len(LossSums._fields),))),
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
    config: TrainingConfig,
) -> Gradients:
    """Differentiate the summed loss of one microbatch, dropout on."""

    def summed_loss(changed: Parameters) -> tuple[jax.Array, LossSums]:
        params = merged(changed, state.params)
        features = model.features(params, batch, dropout_key(state, microbatch))
        targets = batch.target, batch.target_segments
        with jax.named_scope("loss"):
            smoothing = config.label_smoothing
            sums = projected_loss_sums(*features[:3], *targets, smoothing)
            drawn = choice_loss(features, *targets, smoothing, state.baseline)
        return sums.loss + drawn, sums

    changed = trainable(state.params, config.freeze)
    grads, sums = jax.grad(summed_loss, has_aux=True)(changed)
    return Gradients(sums, grads)


def apply_gradients(
    optimizer: optax.GradientTransformation,
    state: TrainState,
    total: Gradients,
    config: TrainingConfig,
) -> tuple[TrainState, Report]:
    """Take one optimiser step on the mean gradient per token, and report on it.

    An update whose loss or gradient is not finite is skipped: only step, data position
    and counts change. After MOST_BAD_STEPS skipped updates in a row the state stays as
    it is, so that the host can find the first.
    """
    share = 1.0 / total.sums.tokens
    with jax.named_scope("gradient_norm"):
        norm = global_norm(total.grads) * share
    runs = state.bad_steps < MOST_BAD_STEPS
    is_good = runs & jnp.isfinite(norm) & jnp.isfinite(total.sums.loss)

    def update(state: TrainState) -> TrainState:
        # XLA would keep a quotient in an array of its own.
        grads = scaled(total.grads, share)
        changed = trainable(state.params, config.freeze)
        updates, opt_state = optimizer.update(grads, state.opt_state, changed)
        params = merged(optax.apply_updates(changed, updates), state.params)
        ema, baseline = state.ema, state.baseline
        if baseline is not None:
            baseline = moved_baseline(baseline, share * total.sums.loss)
        if config.ema_decay is not None:
            # Not a weighted sum, whose float32 weights would not add up to 1.
            decay = config.ema_decay
            ema = jax.tree.map(lambda old, new: new + decay * (old - new), ema, params)
        own = {"params": params, "opt_state": opt_state, "ema": ema}
        return state._replace(**own, baseline=baseline)

    with jax.named_scope("optimizer"):
        state = updated_if(is_good, update, state)
    is_bad = runs & ~is_good
    sums = jax.tree.map(lambda x: jnp.where(is_good, x, 0.0), total.sums)
    state = state._replace(
        step=state.step + runs,
        data_position=state.data_position + runs,
        bad_steps=jnp.where(runs, (state.bad_steps + 1) * is_bad, state.bad_steps),
        skipped=state.skipped + is_bad,
        window=jax.tree.map(jnp.add, state.window, sums),
    )
    return state, Report(sums, norm)


class TrainStep:
    """The compiled update: call it with the state and the update's microbatches.

    An update of one microbatch is one program. Of several, gradients are accumulated,
    and each shape is compiled once. The state is donated. `shardings` are those of the
    state, before and after; of a mesh that splits the batch, those of
    `jaxformer.training.sharded_optimizer`.
    """

    def __init__(
        self,
        model: Model,
        optimizer: optax.GradientTransformation,
        config: TrainingConfig,
        shardings: TrainState | None = None,
    ) -> None:
        def of_batch(params: Parameters, batch: Batch, rest: tuple) -> Gradients:
            state, index = rest
            state = state._replace(params=params)
            return gradients(model, state, batch, index, config)

        if shardings is not None and splits_batch(shardings.step.mesh):
            kept = functools.partial(trainable, freeze=config.freeze)
            of_batch = over_shards(of_batch, shardings.params, model.dtype, kept)
        apply = functools.partial(apply_gradients, optimizer, config=config)

        def differentiate(
            state: TrainState, batch: Batch, index: jax.Array
        ) -> Gradients:
            rest = state._replace(params=None, opt_state=None, ema=None)
            return Gradients(*of_batch(state.params, batch, (rest, index)))

        def update(state: TrainState, batch: Batch) -> tuple[TrainState, Report]:
            return apply(state, differentiate(state, batch, jnp.int32(0)))

        def accumulate(
            total: Gradients, state: TrainState, batch: Batch, index: jax.Array
        ) -> Gradients:
            return jax.tree.map(jnp.add, total, differentiate(state, batch, index))

        self._freeze, self._scalar = config.freeze, shardings and shardings.step
        options = shardings and compiler_options(shardings.step.mesh)
        jit = functools.partial(jax.jit, compiler_options=options)
        placed = {"out_shardings": shardings and (shardings, None)}
        summed = shardings and Gradients(
            LossSums(*[shardings.step] * len(LossSums._fields)),
            trainable(shardings.params, config.freeze),
        )
        self._update = jit(update, donate_argnums=0, **placed)
        self._differentiate = jit(differentiate, out_shardings=summed)
        self._accumulate = jit(accumulate, donate_argnums=0, out_shardings=summed)
        self._apply = jit(apply, donate_argnums=0, **placed)

    def lower(
        self, state: TrainState, batch: Batch | None, *, accumulate: bool
    ) -> jax.stages.Lowered:
        """Lower the update or, if updates `accumulate`, the adding of a microbatch.

        With batch None it is the optimiser's step on accumulated gradients.
        """
        if not accumulate:
            return self._update.lower(state, batch)
        scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=self._scalar)
        changed = trainable(state.params, self._freeze)
        total = Gradients(LossSums(*[scalar] * len(LossSums._fields)), changed)
        if batch is None:
            return self._apply.lower(state, total)
        index = np.int32(1)  # as `__call__` has, or jit makes two programs
        return self._accumulate.lower(total, state, batch, index)

    def __call__(
        self, state: TrainState, update: tuple[Batch, ...]
    ) -> tuple[TrainState, Report]:
        """Make one update; returns the new state and a report."""
        if len(update) == 1:
            return self._update(state, update[0])
        total = self._differentiate(state, update[0], np.int32(0))
        for index, batch in enumerate(update[1:], start=1):
            total = self._accumulate(total, state, batch, np.int32(index))
        return self._apply(state, total)
