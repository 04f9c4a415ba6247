"""Train a run: batches, checkpoints, log and evaluations around the training loop.

Ends with an evaluation of the parameters that `translate` uses. A run that diverges
ends with a report, or resumes before the divergence and skips its data.
"""

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer import processes
from jaxformer.data.corpus import PreparedCorpus
from jaxformer.data.embeddings import read_word_vectors
from jaxformer.data.pipeline import examples_of, updates
from jaxformer.data.plan import Plan
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluator import Evaluation, Evaluator, Text
from jaxformer.evaluation.phenomena import report_phenomena
from jaxformer.models.sequence_model import parameter_count
from jaxformer.processes import StoppedError, StopRequests
from jaxformer.run import (
    Run,
    TrainingSetup,
    make_evaluator,
    make_training_setup,
    plan_training,
    read_parameters,
)
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.divergence import before_bad_steps, diagnose_update
from jaxformer.training.log import MetricsLog, read_scores
from jaxformer.training.loop import DivergedError, Update, train
from jaxformer.training.sharding import (
    abstract_state,
    born_sharded,
    copy_to,
    local_mesh,
    on_mesh,
    put_batch,
    rows_here,
)
from jaxformer.training.step import Parameters, TrainState

logger = logging.getLogger(__name__)

SAMPLES = 3  # translations logged at each evaluation


class Job(NamedTuple):
    """All that training a run takes, but its state."""

    run: Run
    prepared: PreparedCorpus
    setup: TrainingSetup
    plan: Plan
    evaluator: Evaluator
    stop: StopRequests

    def updates(self, start: int) -> Iterator[Update]:
        """The batches from data position `start` on, placed on the mesh."""
        mesh = self.setup.mesh
        batches = updates(
            self.prepared.train,
            self.plan,
            seed=self.run.config.training.seed,
            start=start,
            executor=self.run.config.batches.executor,
            rows=rows_here(mesh),
        )
        return (tuple(put_batch(mesh, batch) for batch in update) for update in batches)


def make_job(run: Run, prepared: PreparedCorpus, stop: StopRequests) -> Job:
    """Build what trains and evaluates a run."""
    setup, plan = make_training_setup(run), plan_training(run, prepared)
    text = Text(prepared.dev_source, prepared.dev_target)
    evaluator = make_evaluator(
        run, local_mesh(), text, prepared.dev, check_stop=stop.check
    )
    return Job(run, prepared, setup, plan, evaluator, stop)


# Training ---------------------------------------------------------------------------


def train_past_divergence(job: Job) -> dict:
    """Train to the end; after a divergence again, if the config says "rollback"."""
    position, tried = None, set()
    while True:
        try:
            return train_to_the_end(job, position, tried)
        except DivergedError as divergence:
            with on_mesh(job.setup.mesh):
                report = describe_divergence(job, divergence.state)
            if job.run.config.training.on_divergence == "stop":
                raise InputError(
                    f"{report}; to skip its data set training.on_divergence=rollback, "
                    "or start anew in another workdir with a lower "
                    "optimizer.learning_rate_scale"
                ) from None
            logger.warning("%s", report)
            position = int(divergence.state.data_position)


def train_to_the_end(job: Job, position: int | None, tried: set[int]) -> dict:
    """Train from the newest checkpoint on, and evaluate the result.

    With a data `position` after a divergence, the newest checkpoint from before it is
    used and the data up to `position` is skipped; its step is added to `tried`, and a
    second time is refused. Raises StoppedError, InputError and DivergedError.
    """
    this, training = job.run, job.run.config.training
    folder = this.workdir.path
    scores = dict(map(tuple, processes.from_first([*read_scores(folder).items()])))
    with (
        on_mesh(job.setup.mesh),
        Checkpoints(
            this.workdir.checkpoints, keep=training.keep, scores=scores
        ) as checkpoints,
    ):
        state, is_resumed = first_state(job, checkpoints, position)
        if position is not None:
            state = skip_to(state, position, tried)
            checkpoints.drop_after(int(state.step))
        announce(this, state, is_resumed=is_resumed)
        for step in [step for step in scores if step > int(state.step)]:
            del scores[step]
        if processes.is_first():
            this.workdir.write_record(this.config, this.tokenizer)
        with MetricsLog(
            folder,
            start_step=int(state.step),
            total_steps=training.steps,
            writes=processes.is_first(),
        ) as log:
            try:
                state = train(
                    state,
                    job.setup.train_step,
                    job.updates(int(state.data_position)),
                    config=training,
                    schedule=job.setup.schedule,
                    evaluate=functools.partial(validate_here, job),
                    checkpoints=checkpoints,
                    log=log,
                    scores=scores,
                    is_asked_to_stop=job.stop.reached,
                )
                if int(state.step) < training.steps:
                    raise StoppedError
                result = evaluate_result(job, log)
            except StoppedError:
                checkpoints.wait()
                raise StoppedError(checkpoints.latest_step() or 0) from None
    return {"step": int(state.step), **result}


def first_state(
    job: Job, checkpoints: Checkpoints, position: int | None
) -> tuple[TrainState, bool]:
    """The state to begin with, and whether it is that of a checkpoint.

    With a `position`, checkpoints of a divergence are passed over.
    """
    abstract = abstract_state(job.setup.mesh, job.setup.init)
    found = checkpoints.restore_latest(abstract)
    while position is not None and found is not None and int(found[0].bad_steps):
        found = checkpoints.restore_before(found[1], abstract)
    return (new_state(job.run, job.setup), False) if found is None else (found[0], True)


def new_state(this: Run, setup: TrainingSetup) -> TrainState:
    """Draw the first state; `training.initial_embeddings` replaces rows of it.

    Raises InputError if that file cannot be used.
    """
    state = born_sharded(setup.mesh, setup.init)
    file = this.config.training.initial_embeddings
    if not file:
        return state
    pieces = this.tokenizer.pieces()
    vectors, is_found = read_word_vectors(
        Path(file), pieces, d_model=this.model.d_model
    )
    logger.info(
        "embeddings: %s of %s pieces start from %s, the others at random",
        f"{is_found.sum():,}",
        f"{len(pieces):,}",
        file,
    )

    def replace(params: Parameters) -> Parameters:
        drawn = params["embedding"]
        read = jax.device_put(vectors, drawn.sharding)
        choose = jax.jit(jnp.where, out_shardings=drawn.sharding)
        return {**params, "embedding": choose(is_found[:, None], read, drawn)}

    return state._replace(
        params=replace(state.params),
        ema=None if state.ema is None else replace(state.ema),
    )


def announce(this: Run, state: TrainState, *, is_resumed: bool) -> None:
    """Log what is about to happen. Raises InputError if the run is past its end."""
    step, steps = int(state.step), this.config.training.steps
    if step > steps:
        raise InputError(
            f"{this.workdir.path} holds a run of {step} steps, and the config asks "
            f"for {steps}; raise training.steps or use another workdir"
        )
    logger.info(
        "%s: %s, %s parameters, step %s of %s, on %s x %s",
        "resuming" if is_resumed else "training",
        this.config.data.direction,
        f"{parameter_count(state.params):,}",
        f"{step:,}",
        f"{steps:,}",
        jax.device_count(),
        jax.devices()[0].device_kind,
    )


# Evaluation -------------------------------------------------------------------------


def validate_here(job: Job, step: int, params: Parameters) -> dict[str, Any]:
    """Scores of parameters that lie on training's mesh."""
    return validate(job, step, copy_to(local_mesh(), params)).scores


def validate(
    job: Job, step: int, params: Parameters, *, under_all: bool = False
) -> Evaluation:
    """Translate and score the validation text; log scores and a few samples.

    The parameters lie on the devices of this process.
    """
    done = job.evaluator(params, under_all=under_all)
    logger.info("step %s, validation: %s", f"{step:,}", done)
    if under_all:
        logger.info("the same translations under every scorer:%s", done.table())
    sources, references = job.evaluator.text
    for index in range(0, len(sources), -(-len(sources) // SAMPLES)):
        logger.info(
            "sentence %s\n  source    %s\n  reference %s\n  output    %s",
            f"{index + 1:,}",
            sources[index],
            references[index],
            done.translations[index],
        )
    return done


def evaluate_result(job: Job, log: MetricsLog) -> dict[str, Any]:
    """Score the parameters that `translate` uses, and record the scores."""
    params = copy_to(local_mesh(), read_parameters(job.run, None))
    steps = job.run.config.training.steps
    scores = validate(job, steps, params, under_all=True).scores
    log.evaluation(steps, scores, kind="final")
    report_phenomena(
        job.run.config.data, lambda text: job.evaluator.translate(params, text)
    )
    return {
        **{key: scores[key] for key in ("loss", "nll", "ppl", "bleu", "signature")},
        "direction": job.run.config.data.direction,
        "tokens_per_second": round(log.tokens_per_second, 1),
    }


# Divergence -------------------------------------------------------------------------


def skip_to(state: TrainState, position: int, tried: set[int]) -> TrainState:
    """An older state that continues at `position` of the data."""
    step = int(state.step)
    if step in tried:
        raise InputError(
            f"training diverged again from step {step}, on other data; start anew in "
            "another workdir with a lower optimizer.learning_rate_scale"
        )
    tried.add(step)
    logger.warning(
        "resuming at step %s, data position %s", f"{step:,}", f"{position:,}"
    )
    where = state.data_position.sharding
    return state._replace(data_position=jax.device_put(jnp.int32(position), where))


def describe_divergence(job: Job, state: TrainState) -> str:
    """Say where it began; the sentences of that batch go into a file of the workdir."""
    bad = int(state.bad_steps)
    state = before_bad_steps(state)
    step, position = int(state.step) + 1, int(state.data_position)
    finding = diagnose_update(
        job.run.model,
        state,
        next(job.updates(position)),
        label_smoothing=job.run.config.training.label_smoothing,
    )
    file = job.run.workdir.path / f"diverged_at_step_{step}.tsv"
    if processes.is_first():
        write_sentences(file, job, position)
    return (
        f"training diverged: {bad} updates in a row without finite loss and gradient, "
        f"the first of them step {step} at data position {position}; in its microbatch "
        f"{finding.microbatch + 1} {finding}; its sentences are in {file}"
    )


def write_sentences(file: Path, job: Job, position: int) -> None:
    """Write the sentence pairs of an update, as they were tokenised."""
    corpus, decode = job.prepared.train, job.run.tokenizer.decode
    lines = [
        f"{decode(corpus.source[index].tolist())}\t"
        f"{decode(corpus.target[index].tolist())}\n"
        for index in examples_of(job.plan, job.run.config.training.seed, position)
    ]
    file.write_text("".join(lines), encoding="utf-8")
