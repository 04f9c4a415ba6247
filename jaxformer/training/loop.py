"""The training loop as one flat function.

It takes an iterator of updates and a function that evaluates, and builds neither;
`jaxformer.runs.trainer` does.
"""

from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp

from jaxformer.batch import Batch
from jaxformer.config.sections import TrainingConfig
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import MetricsLog, best_of, score_by
from jaxformer.training.step import MOST_BAD_STEPS, Parameters, TrainState, TrainStep

Update = tuple[Batch, ...]  # the microbatches of one optimiser step


class DivergedError(Exception):
    """MOST_BAD_STEPS updates in a row were skipped; `state` is as they left it."""

    def __init__(self, state: TrainState) -> None:
        self.state = state


def is_over(step: int, scores: Mapping[int, float], config: TrainingConfig) -> bool:
    """Whether a run ends with `step`: all updates are made, or patience is exhausted.

    `scores` are those of the evaluated steps, the higher, the better.
    """
    if step == config.steps or config.patience is None:
        return step == config.steps
    evaluated = {each: score for each, score in scores.items() if each <= step}
    best = best_of(evaluated)
    return sum(each > best for each in evaluated) >= config.patience


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
    is_asked_to_stop: Callable[[], bool],
) -> TrainState:
    """Train from `state` until `is_over`, or until it is asked to stop.

    `updates` continues at state.data_position. `evaluate(step, parameters)` returns the
    scores to log. That of `best_by` goes into `checkpoints.scores`; a step to evaluate
    that is missing there is evaluated again. The state passed in is donated; the last
    one is returned, and is on disk if an update was made. Raises DivergedError.

    The order log, save, evaluate makes a resumed run equal to an undisturbed one:

    - A log line empties the window of the state before that state is saved.
    - A step is saved before it is evaluated; an interrupted evaluation is repeated.
    - A stop skips the evaluation; the resumed run makes it.
    """
    start = step = int(state.step)
    before = gradient_norm = jnp.float32(jnp.nan)
    while True:
        is_last = is_over(step, checkpoints.scores, config)
        is_stop = not is_last and is_asked_to_stop()
        logs = step > start and (is_last or step % config.log_every == 0)
        is_scheduled = step % config.save_every == 0
        saves = step > start and (is_last or is_stop or is_scheduled)
        if (logs or saves) and int(state.bad_steps) >= MOST_BAD_STEPS:
            raise DivergedError(state)
        if logs:
            skipped = int(state.skipped)
            log.train(
                step,
                jax.device_get(state.window)._asdict(),
                learning_rate=float(schedule(step - 1 - skipped)),
                gradient_norm=float(gradient_norm),
                skipped_updates=skipped,
            )
            state = state._replace(window=jax.tree.map(jnp.zeros_like, state.window))
        if saves:
            # `Checkpoints` counts the step `config.steps` as scheduled, too.
            checkpoints.save(step, state, scheduled=is_scheduled)
        if is_stop:
            break
        is_evaluated = step % config.eval_every == 0
        if config.patience is not None:  # the last step may be the best
            is_evaluated |= is_last
        if is_evaluated and step not in {0, *checkpoints.scores}:
            with log.pause():
                params = state.params if state.ema is None else state.ema
                found = evaluate(step, params)
            log.record(step, "eval", found)
            checkpoints.scores[step] = score_by(config.best_by, found)
        if is_last or is_over(step, checkpoints.scores, config):
            break
        update = next(updates)
        # One update waits while another is made: a stop and the bar are not far behind.
        jax.block_until_ready(before)
        log.made(max(step - 1, start))
        before = gradient_norm
        state, (_, gradient_norm) = train_step(state, update)
        step += 1
    checkpoints.wait()
    return state
