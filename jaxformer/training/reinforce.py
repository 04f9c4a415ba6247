"""REINFORCE for hard attention (Xu et al. 2015, section 4.1).

The model draws a state s_t of the source for each target token. The expected loss
E[sum_t L_t] has the gradient

    E[sum_t grad L_t + sum_t A_t grad log P(s_t)],    A_t = sum_(u >= t) (L_u - b)

because s_t has no effect on earlier tokens. b is a moving average of the loss of a
token, which changes the variance of the estimate alone. The variance of the second sum
is large, so it is multiplied by lambda_r, and half of the rows read the average of the
states instead, as half of the images do there.
"""

import functools

import jax
import jax.numpy as jnp

from jaxformer.models.sequence_model import Features, batch_logits
from jaxformer.training.loss import loss_sums

DECAY = 0.9  # of the moving average, by update, as in Xu et al.
WEIGHT = 0.01  # lambda_r: see docs/architectures.md


def choice_loss(
    features: Features,
    target: jax.Array,
    segments: jax.Array,
    label_smoothing: float,
    baseline: jax.Array | None,
) -> jax.Array | float:
    """Return WEIGHT times sum_t A_t log P(s_t), whose gradient is the second sum.

    It is 0 for a model that drew nothing. target and segments int [B, T], baseline
    float32 []; segment 0 = padding.
    """
    if features.log_choice is None:
        return 0.0
    constant = jax.lax.stop_gradient(features)
    losses = token_losses(constant, target, segments, label_smoothing)
    above = jnp.where(segments != 0, losses - baseline, 0.0)
    weights = _sums_to_the_end(above, segments)
    return WEIGHT * (weights * features.log_choice).sum()


def token_losses(
    features: Features, target: jax.Array, segments: jax.Array, label_smoothing: float
) -> jax.Array:
    """Compute each token's loss, float32 [B, T], with the logits of a row at a time."""
    hidden, table, bias, _ = features

    def of_row(row: tuple) -> jax.Array:
        hidden, target, segments = row
        logits = batch_logits(Features(hidden[None], table, bias))[0]
        of_token = functools.partial(loss_sums, label_smoothing=label_smoothing)
        return jax.vmap(of_token)(logits, target, segments).loss

    return jax.lax.map(of_row, (hidden, target, segments))


def _sums_to_the_end(values: jax.Array, segments: jax.Array) -> jax.Array:
    """Sum each sentence's values [B, T] from a position to its end."""
    length = values.shape[1]
    is_later = jnp.triu(jnp.ones((1, length, length), bool))  # [1, T, U]
    is_same = segments[:, :, None] == segments[:, None, :]
    return jnp.einsum("btu,bu->bt", (is_later & is_same).astype(values.dtype), values)


def moved_baseline(baseline: jax.Array, loss: jax.Array) -> jax.Array:
    """Return the moving average after an update of so much mean loss per token."""
    return DECAY * baseline + (1 - DECAY) * loss
