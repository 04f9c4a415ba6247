"""The training loop: one flat function that a reader follows from top to bottom.

It takes an iterator of updates and a function that evaluates, and builds neither; see
`jaxformer.commands.train` for who hands them over.
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
    rematerialise: bool  # compute layers again in the backward pass: less memory
    label_smoothing: float
    initial_embeddings: str  # word2vec text file the embedding starts from; "": none
    max_bad_steps: int  # updates in a row without a finite loss and gradient: diverged
    on_divergence: str  # "stop", or "rollback" to before it and past its data
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
            "max_bad_steps",
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
        if self.on_divergence not in ("stop", "rollback"):
            raise InputError(
                f"training.on_divergence={self.on_divergence!r} is neither 'stop' nor "
                "'rollback'"
            )
        if not 0.0 <= self.label_smoothing < 1.0:
            raise InputError(
                f"training.label_smoothing={self.label_smoothing} is not in [0, 1)"
            )


class DivergedError(Exception):
    """`max_bad_steps` updates in a row were skipped; `state` is as they left it."""

    def __init__(self, state: TrainState) -> None:
        super().__init__()
        self.state = state


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
    scores: dict[int, float],
    is_asked_to_stop: Callable[[], bool],
) -> TrainState:
    """Train from `state` to `config.steps` updates, or until it is asked to stop.

    `updates` continues at state.position. `evaluate(step, parameters)` returns the
    scores to log, and their "bleu" goes into `scores`, which has those of earlier
    steps: an evaluation that was cut short is made up for. The state passed in is
    donated; the last one is returned, and is on disk. Raises DivergedError.
    """
    start = step = int(state.step)
    window: LossSums | None = None  # summed since the last log, on the device
    gradient_norm = jnp.nan
    while True:
        is_last = step == config.steps
        is_stop = not is_last and is_asked_to_stop()
        ends = is_last or is_stop
        if window is not None and (ends or step % config.log_every == 0):
            _require_progress(state, config.max_bad_steps)
            skipped = int(state.skipped)
            log.train(
                step,
                jax.device_get(window)._asdict(),
                learning_rate=float(schedule(step - 1 - skipped)),
                gradient_norm=float(gradient_norm),
                skipped_updates=skipped,
            )
            window = None
        if step > start and (ends or step % config.save_every == 0):
            _require_progress(state, config.max_bad_steps)
            checkpoints.save(step, state)
        if is_stop:
            break
        if step % config.eval_every == 0 and step not in {0, *scores}:
            with log.pause():
                params = state.params if state.ema is None else state.ema
                found = evaluate(step, params)
            log.evaluation(step, found)
            scores[step] = found["bleu"]
        if is_last:
            break
        state, report = train_step(state, next(updates))
        window, gradient_norm = _sum_of(window, report.sums), report.gradient_norm
        step += 1
    checkpoints.wait()
    return state


def _sum_of(total: LossSums | None, new: LossSums) -> LossSums:
    return new if total is None else jax.tree.map(jnp.add, total, new)


def _require_progress(state: TrainState, max_bad_steps: int) -> None:
    """Raise DivergedError if the state has stood still; waits for the device."""
    if int(state.bad_steps) >= max_bad_steps:
        raise DivergedError(state)
