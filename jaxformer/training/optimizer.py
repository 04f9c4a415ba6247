"""Section 5.3: Adam, the warm-up and the inverse square root; and others, by optax."""

import math

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from jaxformer.config.sections import OptimizerConfig
from jaxformer.models.sequence_model import LikeParameters, Parameters

_WITHOUT_DECAY = "bias", "scale"  # ends of the names of biases and norms


def make_schedule(
    config: OptimizerConfig, *, d_model: int, steps: int
) -> optax.Schedule:
    """Make the learning rate as a function of the number of updates already made.

    The first update (count 0) is step 1. Equation 3 is the schedule "inverse_sqrt"
    without a peak: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).
    With a peak p the factor is p * warmup_steps^0.5. Other schedules have the
    same warm-up and peak; "linear" and "cosine" would reach 0 at step `steps` + 1.
    """
    warmup, peak = config.warmup_steps, config.peak_learning_rate
    level = d_model**-0.5 if peak is None else peak * warmup**0.5
    end = steps + 1.0  # may exceed int32
    after_warmup = max(1.0, end - warmup)

    def schedule(count: jax.Array | int) -> jax.Array:
        step = jnp.asarray(count, jnp.float32) + 1.0
        left = jnp.clip((end - step) / after_warmup, 0.0, 1.0)
        match config.schedule:
            case "inverse_sqrt":
                rate = step**-0.5
            case "constant":
                rate = warmup**-0.5
            case "linear":
                rate = warmup**-0.5 * left
            case "cosine":
                rate = warmup**-0.5 * jnp.sin(jnp.pi / 2 * left) ** 2
        return level * jnp.minimum(step * warmup**-1.5, rate)

    return schedule


def make_optimizer(
    config: OptimizerConfig, *, d_model: int, steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Make the rule of the updates, and its schedule for the log.

    `steps` are those of the whole run. Gradients are first clipped to the global norm
    `clip_norm`, if it is given. The paper uses Adam with beta1 0.9, beta2 0.98, epsilon
    1e-9, no clipping and no weight decay.
    """
    schedule = make_schedule(config, d_model=d_model, steps=steps)
    clip, decay = [], []
    if config.clip_norm is not None:
        clip = [optax.clip_by_global_norm(config.clip_norm)]
    if config.weight_decay:
        decay = [optax.add_decayed_weights(config.weight_decay, mask=decay_mask)]
    if config.algorithm == "adam":
        rule = [
            optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)
        ]
    else:  # without a first moment
        rule = [
            _of_matrices(optax.scale_by_factored_rms()),
            optax.clip_by_block_rms(1.0),
            optax.scale_by_param_block_rms(),
        ]
    optimizer = optax.chain(
        *clip, *rule, *decay, optax.scale_by_learning_rate(schedule)
    )
    return optimizer, schedule


def _of_matrices(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply a rule to parameters as matrices; its state has no names of axes."""

    def init(params: Parameters) -> optax.OptState:
        return rule.init(jax.tree.map(_as_matrix, nn.unbox(params)))

    def update(
        grads: Parameters, state: optax.OptState, params: Parameters | None = None
    ) -> tuple[Parameters, optax.OptState]:
        matrices = jax.tree.map(_as_matrix, grads)
        if params is not None:  # whose shapes decide what is factored
            params = jax.tree.map(_as_matrix, params)
        found, state = rule.update(matrices, state, params)
        return jax.tree.map(lambda new, g: new.reshape(g.shape), found, grads), state

    return optax.GradientTransformation(init, update)


def _as_matrix(x: jax.Array) -> jax.Array:
    """Merge dimensions into the two that are most alike."""
    cuts = (math.prod(x.shape[n:]) for n in range(1, x.ndim))
    columns = min(cuts, key=lambda n: abs(math.log(n**2 / x.size)), default=None)
    return x if columns is None else x.reshape(-1, columns)


def decay_mask(params: Parameters) -> LikeParameters:
    """Whether each parameter has weight decay: all but biases and norms."""

    def of_leaf(path: tuple, _: jax.Array) -> bool:
        return not jax.tree_util.keystr(path, simple=True).endswith(_WITHOUT_DECAY)

    return jax.tree.map_with_path(of_leaf, params)
