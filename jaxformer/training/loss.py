"""Section 5.4: label-smoothed cross-entropy, as sums and counts.

Sums are divided once, since averages of microbatches or devices would weight tokens
wrongly. Training computes the same by `jaxformer.training.loss_kernel`.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp


class LossSums(NamedTuple):
    """Sums over real target tokens, each float32 []; divide by `tokens` for means."""

    loss: jax.Array  # label-smoothed cross-entropy, in nats: what is minimised
    nll: jax.Array  # negative log-likelihood, in nats: exp(nll / tokens) = perplexity
    correct: jax.Array  # tokens whose most likely prediction is right
    tokens: jax.Array  # real target tokens, EOS included


def averages(sums: Mapping[str, float]) -> dict[str, float]:
    """Divide `LossSums` on the host by their tokens: loss, nll, ppl, accuracy, tokens.

    loss and nll are in nats per target token, ppl is exp(nll), accuracy from 0 to 1.
    """
    loss, nll, correct, tokens = (float(sums[name]) for name in LossSums._fields)
    tokens = tokens or math.nan  # of updates that were all skipped
    return {
        "loss": loss / tokens,
        "nll": nll / tokens,
        "ppl": math.exp(min(nll / tokens, 700.0)),  # e^710 is more than a float holds
        "accuracy": correct / tokens,
        "tokens": tokens,
    }


def loss_sums(
    logits: jax.Array, target: jax.Array, segments: jax.Array, *, label_smoothing: float
) -> LossSums:
    """Sum the loss over tokens that are not padding.

    logits float32 [B, T, V], target and segments int [B, T], segment 0 = padding. The
    smoothed target distribution gives 1 - eps to the right piece and spreads eps evenly
    over all V pieces (Szegedy et al. 2015, section 7, which section 5.4 cites). No
    one-hot array is made.
    """
    rows = (logits.max(-1), jax.nn.logsumexp(logits, -1), logits.mean(-1))
    return sums_of_rows(logits, *rows, target, segments, label_smoothing)


def sums_of_rows(
    logits: jax.Array,
    highest: jax.Array,
    log_normaliser: jax.Array,
    mean: jax.Array,
    target: jax.Array,
    segments: jax.Array,
    label_smoothing: float,
) -> LossSums:
    """Sum the loss of logits [..., V], given reductions [...] of their rows."""
    right = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    real = (segments != 0).astype(jnp.float32)
    nll = log_normaliser - right
    uniform = log_normaliser - mean  # cross-entropy to 1/V everywhere
    loss = (1.0 - label_smoothing) * nll + label_smoothing * uniform
    correct = (right >= highest).astype(jnp.float32)
    return LossSums(
        (loss * real).sum(), (nll * real).sum(), (correct * real).sum(), real.sum()
    )
