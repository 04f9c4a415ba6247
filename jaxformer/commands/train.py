"""--mode=train: prepare what is missing, then train or go on training.

Ends with an evaluation of the parameters that `translate` would use. SIGTERM and Ctrl-C
end it earlier, with the step saved; a run that diverges ends with a report, or is set
back to before that and past the data that it diverged on.
"""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer import processes
from jaxformer.commands.evaluate import Evaluator, report_phenomena
from jaxformer.commands.options import Options
from jaxformer.commands.runs import (
    Learner,
    Run,
    keep_compiled,
    make_learner,
    make_run_plan,
    prepare_run,
    read_parameters,
)
from jaxformer.data.corpus import PreparedCorpus
from jaxformer.data.embeddings import read_word_vectors
from jaxformer.data.pipeline import examples_of, updates
from jaxformer.data.plan import Plan
from jaxformer.errors import InputError
from jaxformer.processes import StoppedError, StopRequests
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.divergence import before_bad_steps, look_into
from jaxformer.training.log import MetricsLog, read_scores
from jaxformer.training.loop import DivergedError, Update, train
from jaxformer.training.sharding import (
    abstract_state,
    born_sharded,
    on_mesh,
    put_batch,
    rows_here,
)
from jaxformer.training.step import Parameters, TrainState
from jaxformer.workdir import direction

logger = logging.getLogger(__name__)


class Job(NamedTuple):
    """All that training a run takes, but its state."""

    run: Run
    prepared: PreparedCorpus
    learner: Learner
    plan: Plan
    evaluator: Evaluator
    stop: StopRequests
    checkpoint: str | None  # the flag: which parameters to evaluate at the end

    def updates(self, start: int) -> Iterator[Update]:
        """The batches from data position `start` on, placed on the mesh."""
        mesh = self.learner.mesh
        batches = updates(
            self.prepared.train,
            self.plan,
            seed=self.run.training.seed,
            start=start,
            executor=self.run.config["batches"]["executor"],
            rows=rows_here(mesh),
        )
        return (tuple(put_batch(mesh, batch) for batch in update) for update in batches)


def run(options: Options) -> dict:
    """Train; returns the final validation scores, the speed and the seconds it took.

    A run that was asked to stop returns its step and "stopped".
    """
    start = time.monotonic()
    if not processes.are_several():
        # Of several the first alone writes what is kept: on a machine of its own it
        # would not compile, and lose patience with the others, who do.
        keep_compiled()
    this_run, prepared = prepare_run(options)
    with processes.stop_requests() as stop:
        job = Job(
            this_run,
            prepared,
            make_learner(this_run),
            make_run_plan(this_run, prepared),
            Evaluator(this_run, prepared, stop.heed),
            stop,
            options.checkpoint,
        )
        try:
            result = train_past_divergence(job)
        except StoppedError as stopped:
            logger.info("%s", stopped)
            return {"step": stopped.step, "stopped": True}
    return {**result, "seconds": round(time.monotonic() - start, 1)}


def train_past_divergence(job: Job) -> dict:
    """`train_to_the_end`, again from an older checkpoint if the config says so."""
    position, tried = None, set()
    while True:
        try:
            return train_to_the_end(job, position, tried)
        except DivergedError as divergence:
            with on_mesh(job.learner.mesh):
                report = describe_divergence(job, divergence.state)
            if job.run.training.on_divergence == "stop":
                raise InputError(
                    f"{report}; let the run go on past it with "
                    "training.on_divergence=rollback, or start anew in another "
                    "--workdir with a lower optimizer.learning_rate_scale"
                ) from None
            logger.warning("%s", report)
            position = int(divergence.state.position)


def train_to_the_end(job: Job, position: int | None, tried: set[int]) -> dict:
    """Train from the newest checkpoint on, and evaluate what comes out.

    With a `position`, data before it is skipped and the checkpoint is the newest from
    before a divergence; its step is added to `tried`, and a second time is refused.
    Raises StoppedError, InputError and DivergedError.
    """
    this_run, training = job.run, job.run.training
    mesh, init, train_step, schedule = job.learner
    folder = this_run.workdir.path
    scores = dict(map(tuple, processes.from_first([*read_scores(folder).items()])))
    with (
        on_mesh(mesh),
        Checkpoints(
            this_run.workdir.checkpoints, keep=training.keep, scores=scores
        ) as checkpoints,
    ):
        abstract = abstract_state(mesh, init)
        found = checkpoints.restore_latest(abstract)
        while position is not None and found is not None and int(found[0].bad_steps):
            found = checkpoints.restore_before(found[1], abstract)
        state = new_state(this_run, mesh, init) if found is None else found[0]
        if position is not None:
            state = set_back(state, position, tried)
            checkpoints.drop_after(int(state.step))
        announce(this_run, state, resumed=found is not None)
        for step in [step for step in scores if step > int(state.step)]:
            del scores[step]
        if processes.is_first():
            this_run.workdir.write_record(this_run.config, this_run.tokenizer)
        with MetricsLog(
            folder,
            start_step=int(state.step),
            total_steps=training.steps,
            writes=processes.is_first(),
        ) as log:
            try:
                state = train(
                    state,
                    train_step,
                    job.updates(int(state.position)),
                    config=training,
                    schedule=schedule,
                    evaluate=job.evaluator,
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


def evaluate_result(job: Job, log: MetricsLog) -> dict:
    """Score the parameters that `translate` would use, and record it."""
    evaluator, steps = job.evaluator, job.run.training.steps
    params = evaluator.local(read_parameters(job.run, job.checkpoint))
    scores = evaluator.score(steps, params, under_all=True)
    log.evaluation(steps, scores, kind="final")
    report_phenomena(job.run, lambda text: evaluator.translate(params, text))
    return {
        **{key: scores[key] for key in ("loss", "nll", "ppl", "bleu", "signature")},
        "direction": direction(job.run.config),
        "tokens_per_second": round(log.tokens_per_second, 1),
    }


def set_back(state: TrainState, position: int, tried: set[int]) -> TrainState:
    """An older state that goes on at `position` of the data."""
    step = int(state.step)
    if step in tried:
        raise InputError(
            f"training diverged again from step {step}, on other data; start anew in "
            "another --workdir with a lower optimizer.learning_rate_scale"
        )
    tried.add(step)
    logger.warning(
        "set back to step %s, data position %s", f"{step:,}", f"{position:,}"
    )
    where = state.position.sharding
    return state._replace(position=jax.device_put(jnp.int32(position), where))


def describe_divergence(job: Job, state: TrainState) -> str:
    """Say where it began; the sentences of that batch go into a file of the workdir."""
    bad = int(state.bad_steps)
    state = before_bad_steps(state)
    step, position = int(state.step) + 1, int(state.position)
    finding = look_into(
        job.run.model,
        state,
        next(job.updates(position)),
        label_smoothing=job.run.training.label_smoothing,
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
        for index in examples_of(job.plan, job.run.training.seed, position)
    ]
    file.write_text("".join(lines), encoding="utf-8")


def new_state(this_run: Run, mesh: Mesh, init: Callable[[], TrainState]) -> TrainState:
    """Draw the first state; with `training.initial_embeddings`, rows of it are read.

    Raises InputError if that file cannot be used.
    """
    state = born_sharded(mesh, init)
    file = this_run.training.initial_embeddings
    if not file:
        return state
    pieces = this_run.tokenizer.pieces()
    vectors, is_found = read_word_vectors(
        Path(file), pieces, d_model=this_run.config["model"]["d_model"]
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


def announce(this_run: Run, state: TrainState, *, resumed: bool) -> None:
    """Say what is about to happen. Raises InputError if the run is past its end."""
    step, steps = int(state.step), this_run.training.steps
    if step > steps:
        raise InputError(
            f"{this_run.workdir.path} holds a run of {step} steps, and the config asks "
            f"for {steps}; raise training.steps or choose another --workdir"
        )
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    logger.info(
        "%s: %s, %s parameters, step %s of %s, on %s x %s",
        "going on" if resumed else "training",
        direction(this_run.config),
        f"{count:,}",
        f"{step:,}",
        f"{steps:,}",
        jax.device_count(),
        jax.devices()[0].device_kind,
    )
