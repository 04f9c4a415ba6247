"""One update of the parameters, and one evaluation, as pure functions.

An update may consist of microbatches of different shapes. `gradients` sums over a
microbatch and `apply_gradients` divides by the tokens of all, so k microbatches give
the update of one large batch.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import PartitionSpec

from jaxformer.batch import Batch
from jaxformer.config import TrainingConfig
from jaxformer.models.sequence_model import Model, Parameters
from jaxformer.models.shards import BATCH_AXES
from jaxformer.training.loss import LossSums, loss_sums
from jaxformer.training.loss_kernel import projected_loss_sums


WIRE = True


class TrainState(NamedTuple):
    """The state of training, which a checkpoint holds."""

    step: jax.Array  # int32 [], updates made, the skipped ones included
    data_position: jax.Array  # int32 [], updates' worth of data consumed
    seed: jax.Array  # uint32 [], of dropout
    params: Parameters
    opt_state: optax.OptState
    ema: Parameters | None  # moving average of params, if the config asks for one
    bad_steps: jax.Array  # int32 [], updates skipped in a row, the last one included
    skipped: jax.Array  # int32 [], updates ever skipped: loss or gradient not finite
    window: LossSums  # of the updates since the last log line


class Gradients(NamedTuple):
    """Gradients of a summed loss, and the sums they belong to."""

    sums: LossSums
    grads: Parameters


class Report(NamedTuple):
    """Loss and gradient of an update."""

    sums: LossSums  # all zero if it was skipped
    gradient_norm: jax.Array  # float32 [], of the mean gradient, before clipping


def init_state(
    model: Model, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> TrainState:
    """Draw the first state, boxed with the logical names of its axes."""
    params, ema = model.init(jax.random.key(config.seed)), config.ema_decay is not None
    return fresh_state(params, optimizer, seed=config.seed, ema=ema)


def fresh_state(
    params: Parameters, optimizer: optax.GradientTransformation, *, seed: int, ema: bool
) -> TrainState:
    """Make the state before the first update of `params`."""
    return TrainState(
        step=jnp.int32(0),
        data_position=jnp.int32(0),
        seed=jnp.uint32(seed),
        params=params,
        opt_state=optimizer.init(params),
        ema=jax.tree.map(jnp.copy, params) if ema else None,
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
    *,
    label_smoothing: float,
    shardings: Parameters | None = None,
) -> Gradients:
    """Differentiate the summed loss of one microbatch, dropout on."""

    def differentiate(params, batch, key):
        def summed_loss(params: Parameters) -> tuple[jax.Array, LossSums]:
            features = model.features(params, batch, key)
            sums = projected_loss_sums(
                *features, batch.target, batch.target_segments, label_smoothing
            )
            return sums.loss, sums

        grads, sums = jax.grad(summed_loss, has_aux=True)(params)
        return Gradients(sums, grads)

    key = dropout_key(state, microbatch)
    if shardings is None:
        return differentiate(state.params, batch, key)

    def axes_of(spec):
        return [tuple(a for a in (part if isinstance(part, tuple) else (part,)) if a in BATCH_AXES) for part in spec]

    specs = jax.tree.map(lambda s: PartitionSpec(*[a or None for a in axes_of(s.spec)]), shardings)

    def matrix(shape):
        """Cut a shape in two so that the halves are most alike: [rows, columns]."""
        cuts = [(math.prod(shape[:n]), math.prod(shape[n:])) for n in range(1, len(shape) + 1)]
        return min(cuts, key=lambda cut: max(cut) / min(cut))

    def gather(path, x, spec):
        if WIRE and path[-1].key == "kernel":
            x = x.astype(model.dtype)
        for dim, axes in enumerate(axes_of(spec)):
            if axes:
                n = jax.lax.axis_size(axes)
                shape = [*x.shape]
                shape[dim] *= n
                if dim == 0 and len(shape) > 1:
                    rows, columns = matrix(shape)
                    x = jax.lax.all_gather(x.reshape(-1, columns), axes, tiled=True).reshape(shape)
                else:
                    x = jax.lax.all_gather(x, axes, axis=dim, tiled=True)
        return x

    def scatter(x, spec):
        x = x.astype(jnp.float32)
        used = ()
        for dim, axes in enumerate(axes_of(spec)):
            if axes:
                used += axes
                n = jax.lax.axis_size(axes)
                shape = [*x.shape]
                shape[dim] //= n
                if dim == 0 and len(shape) > 1:
                    x = jax.lax.psum_scatter(x.reshape(matrix(x.shape)), axes, tiled=True).reshape(shape)
                else:
                    x = jax.lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)
        rest = tuple(a for a in BATCH_AXES if a not in used)
        return jax.lax.psum(x, rest) if rest else x

    def on_shard(params, batch, key):
        with nn.logical_axis_rules([("batch", None), *[r for r in nn.get_logical_axis_rules() if r[0] != "batch"]]):
            whole = jax.tree_util.tree_map_with_path(gather, params, specs)
            sums, grads = differentiate(whole, batch, key)
        return Gradients(jax.lax.psum(sums, BATCH_AXES), jax.tree.map(scatter, grads, specs))

    rows = PartitionSpec(BATCH_AXES)
    return jax.shard_map(
        on_shard, in_specs=(specs, Batch(rows, rows, rows, rows), PartitionSpec()),
        out_specs=Gradients(PartitionSpec(), specs), axis_names=set(BATCH_AXES), check_vma=False,
    )(state.params, batch, key)


def apply_gradients(
    optimizer: optax.GradientTransformation,
    state: TrainState,
    total: Gradients,
    config: TrainingConfig,
) -> tuple[TrainState, Report]:
    """Take one optimiser step on the mean gradient per token, and report on it.

    An update whose loss or gradient is not finite is skipped: only step, data position
    and counts change. After `max_bad_steps` skipped updates in a row the state stays as
    it is, so that the host can find the first.
    """
    share = 1.0 / total.sums.tokens
    norm = optax.tree.norm(total.grads) * share
    runs = state.bad_steps < config.max_bad_steps
    is_good = runs & jnp.isfinite(norm) & jnp.isfinite(total.sums.loss)

    def update(state: TrainState) -> TrainState:
        # XLA would keep a quotient in an array of its own.
        grads = jax.tree.map(lambda grad: grad * share, total.grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if config.ema_decay is not None:
            ema = optax.incremental_update(params, ema, 1.0 - config.ema_decay)
        return state._replace(params=params, opt_state=opt_state, ema=ema)

    # A branch, because XLA would copy all parameters and moments to select between new
    # and old ones.
    state = jax.lax.cond(is_good, update, lambda state: state, state)
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


def evaluate_batch(
    model: Model, params: Parameters, batch: Batch, *, label_smoothing: float
) -> LossSums:
    """Sum the loss of one batch, dropout off."""
    logits, segments = model.logits(params, batch), batch.target_segments
    return loss_sums(logits, batch.target, segments, label_smoothing=label_smoothing)


class TrainStep:
    """The compiled update: call it with the state and the update's microbatches.

    An update of one microbatch is one program. Of several, gradients are accumulated,
    and each shape is compiled once. The state is donated.
    """

    def __init__(
        self,
        model: Model,
        optimizer: optax.GradientTransformation,
        config: TrainingConfig,
        shardings: Parameters | None = None,
    ) -> None:
        differentiate = functools.partial(
            gradients, model, label_smoothing=config.label_smoothing, shardings=shardings
        )
        apply = functools.partial(apply_gradients, optimizer, config=config)

        def update(state: TrainState, batch: Batch) -> tuple[TrainState, Report]:
            return apply(state, differentiate(state, batch, jnp.int32(0)))

        def accumulate(
            total: Gradients, state: TrainState, batch: Batch, index: jax.Array
        ) -> Gradients:
            return jax.tree.map(jnp.add, total, differentiate(state, batch, index))

        self._update = jax.jit(update, donate_argnums=0)
        self._differentiate = jax.jit(differentiate)
        self._accumulate = jax.jit(accumulate, donate_argnums=0)
        self._apply = jax.jit(apply, donate_argnums=0)

    def lower(
        self, state: TrainState, batch: Batch, *, accumulate: bool
    ) -> jax.stages.Lowered:
        """Lower the update or, if updates `accumulate`, the adding of a microbatch."""
        if not accumulate:
            return self._update.lower(state, batch)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        total = Gradients(LossSums(*[scalar] * len(LossSums._fields)), state.params)
        index = jax.ShapeDtypeStruct((), jnp.int32)
        return self._accumulate.lower(total, state, batch, index)

    def __call__(
        self, state: TrainState, update: tuple[Batch, ...]
    ) -> tuple[TrainState, Report]:
        """Make one update; returns the new state and a report."""
        if len(update) == 1:
            return self._update(state, update[0])
        total = self._differentiate(state, update[0], jnp.int32(0))
        for index, batch in enumerate(update[1:], start=1):
            total = self._accumulate(total, state, batch, jnp.int32(index))
        return self._apply(state, total)
