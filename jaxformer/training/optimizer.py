"""Section 5.3: Adam and the warm-up, inverse-square-root learning rate, by optax."""

import jax
import jax.numpy as jnp
import optax


def inverse_square_root_schedule(
    *, d_model: int, warmup_steps: int, learning_rate_scale: float
) -> optax.Schedule:
    """Equation 3: scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).

    Returns a function of the number of updates already made, so the first update
    (count 0) uses step 1. The scale is 1 in the paper.
    """

    def schedule(count: jax.Array | int) -> jax.Array:
        step = jnp.asarray(count, jnp.float32) + 1.0
        warming, decaying = step * warmup_steps**-1.5, step**-0.5
        return learning_rate_scale * d_model**-0.5 * jnp.minimum(warming, decaying)

    return schedule


def make_optimizer(
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    clip_norm: float | None,
    **rate: float,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Make Adam with the paper's schedule, and the schedule itself for the log.

    `rate` is as for `inverse_square_root_schedule`. Gradients are first clipped to the
    global norm `clip_norm`, if it is given. The paper uses beta1 0.9, beta2 0.98,
    epsilon 1e-9 and no clipping.
    """
    schedule = inverse_square_root_schedule(**rate)
    clip = [] if clip_norm is None else [optax.clip_by_global_norm(clip_norm)]
    optimizer = optax.chain(
        *clip,
        optax.scale_by_adam(b1=beta1, b2=beta2, eps=epsilon),
        optax.scale_by_learning_rate(schedule),
    )
    return optimizer, schedule
