"""Train a run: batches, checkpoints, log and evaluations around the training loop.

Ends with an evaluation of the parameters that `translate` uses. A run that diverges
ends with a report, or resumes before the divergence and skips its data.
"""

import logging

import jax

from jaxformer.models.sequence_model import parameter_count
from jaxformer.runs.job import Job
from jaxformer.runs.resume import (
    before_divergence,
    describe_divergence,
    forget_lost_best,
    record_config,
    roll_back,
)
from jaxformer.runs.run import largest_shape
from jaxformer.runs.validation import evaluate_result, validate
from jaxformer.runs.warm_start import new_state
from jaxformer.system.errors import InputError, StoppedError
from jaxformer.system.first import once
from jaxformer.training import sharding
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import MetricsLog
from jaxformer.training.loop import DivergedError, is_over, train
from jaxformer.training.memory import require_memory, require_update_memory
from jaxformer.training.profile import profiled
from jaxformer.training.step import TrainState

logger = logging.getLogger(__name__)


def train_past_divergence(job: Job) -> dict:
    """Train from the newest checkpoint to the end, and evaluate the result.

    After a divergence it raises InputError or, if the config says "rollback", resumes
    from the newest checkpoint before it. Raises StoppedError after a stop.
    """
    run, training = job.run, job.run.config.training
    # The loop adds to them. A new run overwrites the log of one without a checkpoint.
    scores = run.scores() if once(run.workdir.has_checkpoints) else {}
    position: int | None = None  # in the data, after the last divergence
    tried: set[int] = set()  # steps that a divergence led back to, each only once
    checkpoints = run.workdir.open_checkpoints(
        run.record, keep=training.keep, scores=scores, last=training.steps
    )
    with sharding.on_mesh(job.setup.mesh), checkpoints:
        while True:
            state = first_state(job, checkpoints, position, tried)
            for step in [step for step in scores if step > int(state.step)]:
                del scores[step]
            if training.patience is not None:
                forget_lost_best(checkpoints, training.best_by)
            try:
                return train_to_the_end(job, state, checkpoints)
            except DivergedError as divergence:
                position = int(divergence.state.data_position)
                report = describe_divergence(job, divergence.state)
                if training.on_divergence == "stop":
                    raise InputError(
                        f"{report}; to skip its data set training.on_divergence="
                        "rollback, or start anew in another run folder with a lower "
                        "optimizer.peak_learning_rate"
                    ) from None
                logger.warning("%s", report)


def train_to_the_end(job: Job, state: TrainState, checkpoints: Checkpoints) -> dict:
    """Train and evaluate the result. Raises StoppedError and DivergedError."""
    run, training = job.run, job.run.config.training
    step = int(state.step)
    if has_ended := is_over(step, checkpoints.scores, training):
        by = "steps" if step == training.steps else "patience"
        logger.info(
            "the run has ended, and is only scored; to continue, raise training.%s", by
        )
    once(lambda: record_config(job, step, has_ended))
    folder = run.workdir.path / "profile"
    with (
        MetricsLog(
            run.workdir.path,
            run=run.record.run,
            start_step=int(state.step),
            total_steps=training.steps,
            tokens_before=float(state.window.tokens),
            trackers=training.trackers,
            config=run.config.as_dict(),
        ) as log,
        profiled(job.train_step, int(state.step), training, folder) as train_step,
    ):
        state = train(
            state,
            train_step,
            job.updates(int(state.data_position)),
            config=training,
            schedule=job.setup.schedule,
            evaluate=lambda step, params: validate(job, step, params),
            checkpoints=checkpoints,
            log=log,
            is_asked_to_stop=job.stop.reached,
        )
        step = int(state.step)
        if not is_over(step, checkpoints.scores, training):
            raise StoppedError
        if step < training.steps:
            logger.info(
                "step %s ends the run: %d evaluations in a row without a better %s",
                f"{step:,}", training.patience, training.best_by,
            )  # fmt: skip
        with job.stop.stopping_at_once():
            return {"step": step, **evaluate_result(job, log, step)}


def first_state(
    job: Job, checkpoints: Checkpoints, position: int | None, tried: set[int]
) -> TrainState:
    """Restore the newest checkpoint, or draw a new state; log what begins.

    After a divergence, roll back, to continue at the data `position`; None: there was
    none. Raises InputError for a step past the end of the run.
    """
    abstract = sharding.abstract_state(job.setup.mesh, job.setup.init)
    if position is None:
        require_memory(abstract)
        if not checkpoints.steps():  # else it fitted before
            shape = largest_shape(job.run.model, job.plan)
            several = job.plan.microbatches_per_update > 1
            require_update_memory(job.setup, shape, accumulate=several)
        found = checkpoints.restore_latest(abstract)
    else:
        found = before_divergence(checkpoints, abstract)
    state = new_state(job.run, job.setup) if found is None else found[0]
    if position is not None:
        state = roll_back(state, position, tried, checkpoints)
    step, steps = int(state.step), job.run.config.training.steps
    if step > steps:
        raise InputError(
            f"{job.run.workdir.path} holds a run of {step} steps, and the config asks "
            f"for {steps}; raise training.steps or use another run folder"
        )
    logger.info(
        "%s: %s, %s, on %s x %s",
        "training" if found is None else "resuming",
        job.run.config.data.direction,
        f"{parameter_count(state.params):,} parameters, step {step:,} of {steps:,}",
        jax.device_count(),
        jax.devices()[0].device_kind,
    )
    return state
