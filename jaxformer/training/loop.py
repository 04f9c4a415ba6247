"""The training loop: one flat function that a reader follows from top to bottom.

It takes an iterator of updates and a function that evaluates, and builds neither; see
`jaxformer.modes.train` for who hands them over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxformer.batch import Batch
from jaxformer.errors import InputError
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import MetricsLog
from jaxformer.training.loss import LossSums
from jaxformer.training.step import Parameters, TrainState, TrainStep

Update = tuple[Batch, ...]  # the microbatches of one optimiser step


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The config section `training`; counts are of updates unless said otherwise."""

    steps: int
    seed: int
    tokens_per_update: int  # places for source and for target tokens, each
    tokens_per_microbatch: int  # likewise, what one device program takes at a time
    label_smoothing: float
    initial_embeddings: str  # word2vec text file the embedding starts from; "": none
    ema_decay: float | None  # of a moving average of the parameters; None: none kept
    log_every: int
    eval_every: int
    save_every: int
    keep: int  # newest checkpoints kept, besides the best
    average: int  # last checkpoints averaged for translation (section 6.1)

    def __post_init__(self) -> None:
        """Refuse numbers that make no run. Raises InputError."""
        for name in (
            "steps", "tokens_per_update", "tokens_per_microbatch", "log_every",
            "eval_every", "save_every", "keep", "average",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise InputError(
                    f"training.{name}={getattr(self, name)} is not at least 1"
                )
        if self.ema_decay is not None and not 0.0 <= self.ema_decay < 1.0:
            raise InputError(f"training.ema_decay={self.ema_decay} is not in [0, 1)")
        if self.eval_every % self.save_every:
            raise InputError(
                f"training.eval_every={self.eval_every} is not a multiple of "
                f"training.save_every={self.save_every}; what is evaluated is saved"
            )
        if self.average > self.keep:
            raise InputError(
                f"training.average={self.average} checkpoints cannot be averaged when "
                f"training.keep={self.keep} are kept; raise keep"
            )
        if not 0.0 <= self.label_smoothing < 1.0:
            raise InputError(
                f"training.label_smoothing={self.label_smoothing} is not in [0, 1)"
            )


def train(
    state: TrainState,
    train_step: TrainStep,
    updates: Iterator[Update],
    *,
    config: TrainingConfig,
    schedule: Callable[[int], jax.Array],
    evaluate: Callable[[int, Parameters], dict],
    checkpoints: Checkpoints,
    log: MetricsLog,
) -> TrainState:
    """Train from `state` to `config.steps` updates; returns the last state.

    `updates` continues at state.position; `evaluate(step, parameters)` returns the
    scores to log, whose "bleu" ranks the checkpoint. The state passed in is donated.
    """
    step = int(state.step)
    window: LossSums | None = None  # summed since the last log, on the device
    while step < config.steps:
        state, sums, gradient_norm = train_step(state, next(updates))
        window = sums if window is None else jax.tree.map(jnp.add, window, sums)
        step += 1
        last = step == config.steps
        if step % config.log_every == 0 or last:
            log.train(
                step,
                jax.device_get(window)._asdict(),
                learning_rate=float(schedule(step - 1)),
                gradient_norm=float(gradient_norm),
            )
            window = None
        scores = None
        if step % config.eval_every == 0:
            with log.pause():
                scores = evaluate(
                    step, state.params if state.ema is None else state.ema
                )
                log.evaluation(step, scores)
        if step % config.save_every == 0 or last:
            checkpoints.save(step, state, scores)
    checkpoints.wait()
    return state
