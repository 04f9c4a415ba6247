"""Trace some updates with JAX's profiler, for XProf and Perfetto."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from jaxformer.batch import Batch
from jaxformer.config.sections import TrainingConfig
from jaxformer.training.step import Report, TrainState

logger = logging.getLogger(__name__)

WARM_UP = 10  # updates of a process before its trace, which compile the programs
TRACED = 10  # updates of a trace, which then has some megabytes

Step = Callable[[TrainState, tuple[Batch, ...]], tuple[TrainState, Report]]


def first_traced(step: int, config: TrainingConfig) -> int:
    """The step from which a process that starts at `step` traces its updates.

    No checkpoint is saved, and so nothing is evaluated, between the traced updates.
    """
    step += WARM_UP
    before_save = -step % config.save_every
    return step + (before_save if before_save < traced_updates(config) else 0)


def traced_updates(config: TrainingConfig) -> int:
    """The length of a trace; no checkpoint is saved within one."""
    return min(TRACED, config.save_every)


@contextlib.contextmanager
def _warning(folder: Path) -> Iterator[None]:
    """Warn if the profiler fails in the block, as on a full disk; training goes on."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        logger.warning("no profile: %s cannot be written (%s)", folder, error)


@contextlib.contextmanager
def profiled(
    train_step: Step, step: int, config: TrainingConfig, folder: Path
) -> Iterator[Step]:
    """Give a train step that writes a trace of `traced_updates`.

    `step` updates have been made. Of several processes the first one writes, its own
    devices and threads. A run that ends earlier writes the updates that it made.
    """
    if "profile" not in config.trackers or jax.process_index():
        yield train_step
        return
    first = first_traced(step, config)
    end = min(first + traced_updates(config), config.steps)
    if first >= end:
        logger.warning("no profile: it would start after the last update")
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # calls of Python would be most of the file

    def finish() -> None:
        with _warning(folder):
            jax.profiler.stop_trace()
            logger.info(
                "profile of updates %s to %s: xprof --logdir=%s, or open the newest "
                ".trace.json.gz there in https://ui.perfetto.dev",
                *(f"{first + 1:,}", f"{step:,}", folder),
            )

    with contextlib.ExitStack() as trace:

        def traced(
            state: TrainState, update: tuple[Batch, ...]
        ) -> tuple[TrainState, Report]:
            nonlocal step
            if step == first and first < end:
                jax.block_until_ready(state)
                with _warning(folder):
                    jax.profiler.start_trace(folder, profiler_options=options)
                    trace.callback(finish)
            step += 1
            with jax.profiler.StepTraceAnnotation("update", step_num=step):
                made = train_step(state, update)
            if step == end:
                jax.block_until_ready(made)
                trace.close()
            return made

        yield traced
