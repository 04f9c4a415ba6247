"""The contestant of this repository: `TrainStep`, as `--mode=train` compiles it."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.peers.training import (
    BETA1,
    BETA2,
    EPSILON,
    LABEL_SMOOTHING,
    TrainSizes,
    Update,
)
from jaxformer.batch import Batch
from jaxformer.models.architectures import make_model
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.step import TrainStep, init_state


def ours(sizes: TrainSizes) -> Update:
    """Draw parameters; gives the update."""
    model = make_model(sizes.config(), vocab_size=sizes.vocabulary, rematerialise=False)
    optimizer, _ = make_optimizer(
        d_model=sizes.d_model, warmup_steps=4000, learning_rate_scale=1.0, beta1=BETA1,
        beta2=BETA2, epsilon=EPSILON, clip_norm=None,
    )  # fmt: skip
    init = functools.partial(init_state, model, optimizer, seed=0, ema=False)
    state = jax.jit(lambda: nn.unbox(init()))()
    step = TrainStep(
        model, optimizer, label_smoothing=LABEL_SMOOTHING, ema_decay=None,
        max_bad_steps=10,
    )  # fmt: skip

    def update(batch: Batch) -> float:
        nonlocal state
        state, report = step(state, (jax.tree.map(jnp.asarray, batch),))
        jax.block_until_ready(state)
        return float(report.sums.loss / report.sums.tokens)

    return update
