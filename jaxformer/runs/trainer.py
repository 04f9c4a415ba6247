"""Train a run: batches, checkpoints, log and evaluations around the training loop.

Ends with an evaluation of the parameters that `translate` uses. A run that diverges
ends with a report, or resumes before the divergence and skips its data.
"""

import dataclasses
import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.config.sections import BEST_BY, Config
from jaxformer.corpus.pipeline import examples_of, updates
from jaxformer.corpus.prepared import PreparedCorpus
from jaxformer.models.sequence_model import parameter_count, parameter_hash
from jaxformer.runs.open import make_dev_evaluators
from jaxformer.runs.run import (
    Run,
    load_parameters,
    make_training_setup,
    plan_training,
    warn_of_update_size,
)
from jaxformer.runs.warm_start import new_state
from jaxformer.system.errors import InputError, StoppedError
from jaxformer.system.first import once, write_file
from jaxformer.system.stopping import StopRequests
from jaxformer.training import sharding
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.divergence import diagnose_update
from jaxformer.training.log import MetricsLog, read_scores
from jaxformer.training.loop import DivergedError, Update, is_over, train
from jaxformer.training.memory import require_memory
from jaxformer.training.profile import profiled
from jaxformer.training.step import Parameters, Report, TrainState

logger = logging.getLogger(__name__)

SAMPLES = 3  # translations logged at each evaluation


class Job:
    """The objects that train and evaluate a run, except its state."""

    def __init__(self, run: Run, prepared: PreparedCorpus, stop: StopRequests) -> None:
        self.run, self.prepared, self.stop = run, prepared, stop
        self.setup = make_training_setup(run.config, run.model)
        self.plan = plan_training(run, prepared)
        warn_of_update_size(run, self.plan)
        self.evaluators = make_dev_evaluators(run, prepared, stop.check)

    def updates(self, start: int) -> Iterator[Update]:
        """The batches from data position `start` on, placed on the mesh."""
        mesh, config = self.setup.mesh, self.run.config
        batches = updates(
            self.prepared.train,
            self.plan,
            seed=config.training.seed,
            start=start,
            executor=config.batches.executor,
            rows=sharding.rows_here(mesh),
        )
        put = partial(sharding.put_batch, mesh)
        return (tuple(map(put, update)) for update in batches)

    def train_step(
        self, state: TrainState, update: Update
    ) -> tuple[TrainState, Report]:
        """Make an update, which a stop must save from then on."""
        made = self.setup.train_step(state, update)
        self.stop.all_saved = False
        return made


def train_past_divergence(job: Job) -> dict:
    """Train from the newest checkpoint to the end, and evaluate the result.

    After a divergence it raises InputError or, if the config says "rollback", resumes
    from the newest checkpoint before. Raises StoppedError with the step saved.
    """
    run, training = job.run, job.run.config.training
    scores = read_scores(run.workdir.path, training.best_by)
    position, tried = None, set()
    checkpoints = run.workdir.open_checkpoints(
        keep=training.keep, scores=scores, last=training.steps
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
                        "rollback, or start anew in another workdir with a lower "
                        "optimizer.peak_learning_rate"
                    ) from None
                logger.warning("%s", report)


def forget_lost_best(checkpoints: Checkpoints, name: str) -> None:
    """Drop scores above that of the best checkpoint; patience would count from them.

    Another `training.best_by`, or damage, may have removed their checkpoints.
    """
    scores, left = checkpoints.scores, checkpoints.best_step()
    better = [step for step in scores if left is None or scores[step] > scores[left]]
    if better:
        logger.warning(
            "the checkpoint of step %s, the best by %s, is gone; the best that is left "
            "is %s", f"{max(better, key=scores.get):,}", name,
            "none" if left is None else f"step {left:,}",
        )  # fmt: skip
    for step in better:
        del scores[step]


def train_to_the_end(job: Job, state: TrainState, checkpoints: Checkpoints) -> dict:
    """Train and evaluate the result. Raises StoppedError and DivergedError."""
    run, training = job.run, job.run.config.training
    step = int(state.step)
    has_ended = is_over(step, checkpoints.scores, training)
    once(lambda: record_config(job, step, has_ended))
    folder = run.workdir.path / "profile"
    with (
        MetricsLog(
            run.workdir.path,
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
            log.track(job.updates(int(state.data_position))),
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
    """Log what changed in the sections model, optimizer and training."""
    old = before.as_dict()
    changes = [
        f"{section}.{key} from {old[section][key]!r} to {value!r}"
        for section, values in now.as_dict().items()
        for key, value in values.items()
        if section in ("model", "optimizer", "training") and value != old[section][key]
    ]
    if changes:
        logger.info("%s: %s", said, ", ".join(changes))


def first_state(
    job: Job, checkpoints: Checkpoints, position: int | None, tried: set[int]
) -> TrainState:
    """Restore the newest checkpoint, or draw a new state; log what begins.

    After a divergence, restore the newest one without bad updates, to continue at the
    data `position`; remove later ones and add its step to `tried`. Raises InputError if
    it was tried before, and for a step past the end of the run.
    """
    abstract = sharding.abstract_state(job.setup.mesh, job.setup.init)
    if position is None:  # otherwise the memory holds a state
        require_memory(abstract)
    found = checkpoints.restore_latest(abstract)
    while position is not None and found is not None and int(found[0].bad_steps):
        older = checkpoints.restore_latest(abstract, before=found[1])
        if older is None and int(found[0].step) > int(found[0].bad_steps):
            # Bad updates changed no parameter, so the oldest state left will do.
            none = jnp.zeros_like(found[0].bad_steps)
            older = found[0]._replace(bad_steps=none), found[1]
        found = older
    state = new_state(job.run, job.setup) if found is None else found[0]
    step, steps = int(state.step), job.run.config.training.steps
    if position is not None:
        if step in tried:
            raise InputError(
                f"training diverged again from step {step}, on other data; start anew "
                "in another workdir with a lower optimizer.peak_learning_rate"
            )
        tried.add(step)
        logger.warning(
            "resuming at step %s, data position %s", f"{step:,}", f"{position:,}"
        )
        skipped_to = jnp.full_like(state.data_position, position)
        state = state._replace(data_position=skipped_to)
        checkpoints.drop_after(step)
    if step > steps:
        raise InputError(
            f"{job.run.workdir.path} holds a run of {step} steps, and the config asks "
            f"for {steps}; raise training.steps or use another workdir"
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


def validate(
    job: Job, step: int, params: Parameters, *, under_all: bool = False
) -> dict[str, Any]:
    """Translate and score the validation texts; log scores and a few samples.

    Returns the scores of the first text, and the hash of the parameters. Of several
    texts, the scores of all follow as NAME/SCORE, and their means as mean/SCORE.
    """
    with job.stop.stopping_at_once():  # an evaluated step is saved before
        params = sharding.copy_to(sharding.local_mesh(), params)
        found = {
            name: evaluate(params, under_all=under_all)
            for name, evaluate in job.evaluators.items()
        }
        for evaluate in job.evaluators.values():  # or updates would lack the memory
            evaluate.release()
    for name, done in found.items():
        which = f"validation {name}".rstrip()
        logger.info("step %s, %s: %s", f"{step:,}", which, done)
        triples = list(zip(*job.evaluators[name].text, done.translations, strict=True))
        for index in range(0, len(triples), -(-len(triples) // SAMPLES)):
            logger.info(
                "sentence %s\n  source    %s\n  reference %s\n  output    %s",
                f"{index + 1:,}",
                *triples[index],
            )
    scores = {name: done.scores for name, done in found.items()}
    first, *others = scores.values()
    first = {**first, "parameters": parameter_hash(params)}
    if not others:
        return first
    mean = {
        key: statistics.mean(each[key] for each in scores.values()) for key in BEST_BY
    }
    several = {
        f"{name}/{key}": each[key]
        for name, each in {**scores, "mean": mean}.items()
        for key in BEST_BY
    }
    return {**first, **several}


def evaluate_result(job: Job, log: MetricsLog, step: int) -> dict[str, Any]:
    """Score the parameters that `translate` uses, and record the scores."""
    params = load_parameters(job.run, None)
    scores = validate(job, step, params, under_all=True)
    log.record(step, "final", scores)
    first = next(iter(job.evaluators.values()))
    report_grammar(job, lambda text: first.translate(params, text))
    reported = ("loss", "nll", "ppl", "bleu", "signature", "direction")
    speed = {"tokens_per_second": round(log.tokens_per_second, 1)}
    several = [key for key in scores if "/" in key]
    return {key: scores[key] for key in (*reported, *several)} | speed


def report_grammar(job: Job, translate: Callable[[Sequence[str]], list[str]]) -> None:
    """Log the exact matches of the first corpus that is the built-in grammar, if any.

    The grammar itself says what is right from English to German.
    """
    wanted = "builtin:grammar", "en-de"
    for data in (part.data for part in job.run.config.data.parts.values()):
        if (data.corpus, data.direction) == wanted and data.test:
            from jaxformer.grammar.exact_matches import report_exact_matches

            pairs = data.pairs_of("test")
            report_exact_matches(translate, pairs=pairs, seed=data.seed, tag=data.tag)
            return


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
