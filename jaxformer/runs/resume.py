"""Continue a run: record changes, forget lost scores, roll back before a divergence."""

import dataclasses
import logging

import jax.numpy as jnp

from jaxformer.config.sections import Config
from jaxformer.corpus.pipeline import examples_of
from jaxformer.runs.job import Job
from jaxformer.system.errors import InputError
from jaxformer.system.first import write_file
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.divergence import diagnose_update
from jaxformer.training.log import best_of
from jaxformer.training.step import TrainState

logger = logging.getLogger(__name__)

_LOGGED = "model", "optimizer", "training", "decoding"


def record_config(job: Job, step: int, is_over: bool) -> None:
    """Write the record of a run at `step`, and log the values that a resume changes.

    If the run is over, it keeps the dropout and the optimiser that it was trained with.
    """
    run, config = job.run, job.run.config
    if step:
        before = run.workdir.read_record().config
        if is_over:
            model = dataclasses.replace(config.model, dropout=before.model.dropout)
            config = dataclasses.replace(
                config, model=model, optimizer=before.optimizer
            )
            log_changes("not recorded, as no update is left", config, run.config)
        else:
            log_changes("changed since the last start", before, config)
    run.workdir.write_record(config, run.tokenizer, job.prepared.report["text"])


def log_changes(said: str, before: Config, now: Config) -> None:
    """Log what changed in the sections model, optimizer, training and decoding."""
    old = before.as_dict()
    changes = [
        f"{section}.{key} from {old[section][key]!r} to {value!r}"
        for section, values in now.as_dict().items()
        for key, value in values.items()
        if section in _LOGGED and value != old[section][key]
    ]
    if changes:
        logger.info("%s: %s", said, ", ".join(changes))


def forget_lost_best(checkpoints: Checkpoints, name: str) -> None:
    """Drop the scores that `best_of` prefers to that of the best checkpoint left.

    Patience would count from them. Another `training.best_by`, or damage, may have
    removed their checkpoints.
    """
    scores, left = checkpoints.scores, checkpoints.best_step()
    if (lost := best_of(scores)) != left:
        logger.warning(
            "the checkpoint of step %s, the best by %s, is gone; the best that is left "
            "is %s", f"{lost:,}", name, "none" if left is None else f"step {left:,}",
        )  # fmt: skip
    while (lost := best_of(scores)) != left:
        del scores[lost]


def before_divergence(
    checkpoints: Checkpoints, abstract: TrainState
) -> tuple[TrainState, int] | None:
    """Restore the newest state without bad updates, with its step; None without any."""
    found = checkpoints.restore_latest(abstract)
    while found is not None and int(found[0].bad_steps):
        older = checkpoints.restore_latest(abstract, before=found[1])
        if older is None and int(found[0].step) > int(found[0].bad_steps):
            # Bad updates changed no parameter, so the oldest state left will do.
            none = jnp.zeros_like(found[0].bad_steps)
            older = found[0]._replace(bad_steps=none), found[1]
        found = older
    return found


def roll_back(
    state: TrainState, position: int, tried: set[int], checkpoints: Checkpoints
) -> TrainState:
    """Continue from an earlier state at the data `position`; drop later checkpoints.

    Adds its step to `tried`. Raises InputError if it was tried before.
    """
    step = int(state.step)
    if step in tried:
        raise InputError(
            f"training diverged again from step {step}, on other data; start anew "
            "in another run folder with a lower optimizer.peak_learning_rate"
        )
    tried.add(step)
    logger.warning(
        "resuming at step %s, data position %s", f"{step:,}", f"{position:,}"
    )
    checkpoints.drop_after(step)
    skipped_to = jnp.full_like(state.data_position, position)
    return state._replace(data_position=skipped_to)


def describe_divergence(job: Job, state: TrainState) -> str:
    """Say where a run diverged; write the sentences of that update into its workdir."""
    run, training = job.run, job.run.config.training
    bad = int(state.bad_steps)
    # Skipped updates changed no parameter: this is the state before the first of them.
    state = state._replace(
        step=state.step - bad, data_position=state.data_position - bad
    )
    step, position = int(state.step) + 1, int(state.data_position)
    finding = diagnose_update(run.model, state, next(job.updates(position)), training)
    file = run.workdir.path / f"diverged_at_step_{step}.tsv"
    decoders = run.tokenizer.sides[0].decode, run.tokenizer.decode
    sides = list(zip(job.prepared.train, decoders, strict=True))
    lines = [
        "\t".join(decode(side[index].tolist()) for side, decode in sides) + "\n"
        for index in examples_of(job.plan, training.seed, position)
    ]
    write_file(file, "".join(lines))
    return (
        f"training diverged: {bad} updates in a row without finite loss and gradient, "
        f"the first of them step {step} at data position {position}; in its microbatch "
        f"{finding.microbatch + 1} {finding}; its sentences are in {file}"
    )
