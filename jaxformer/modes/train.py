"""--mode=train: prepare what is missing, then train or go on training.

Ends with an evaluation of the parameters that `translate` would use.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer.data.embeddings import read_word_vectors
from jaxformer.data.pipeline import updates
from jaxformer.errors import InputError
from jaxformer.modes.evaluate import Evaluator, report_phenomena
from jaxformer.modes.options import Options
from jaxformer.modes.runs import (
    Run,
    make_learner,
    make_run_plan,
    prepare_run,
    read_parameters,
)
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import MetricsLog
from jaxformer.training.loop import train
from jaxformer.training.sharding import (
    abstract_state,
    born_sharded,
    on_mesh,
    put_batch,
)
from jaxformer.training.step import Parameters, TrainState
from jaxformer.workdir import direction

logger = logging.getLogger(__name__)


def run(options: Options) -> dict:
    """Train; returns the final validation scores, the speed and the seconds it took."""
    start = time.monotonic()
    this_run, prepared = prepare_run(options)
    config, training = this_run.config, this_run.training
    mesh, init, train_step, schedule = make_learner(this_run)
    plan = make_run_plan(this_run, prepared, mesh)
    evaluator = Evaluator(this_run, prepared)
    with (
        on_mesh(mesh),
        Checkpoints(this_run.workdir.checkpoints, keep=training.keep) as checkpoints,
    ):
        found = checkpoints.restore_latest(abstract_state(mesh, init))
        state = new_state(this_run, mesh, init) if found is None else found[0]
        announce(this_run, state, resumed=found is not None)
        this_run.workdir.write_record(config, this_run.tokenizer)
        batches = updates(
            prepared.train,
            plan,
            seed=training.seed,
            start=int(state.position),
            executor=config["batches"]["executor"],
        )
        with MetricsLog(
            this_run.workdir.path,
            start_step=int(state.step),
            total_steps=training.steps,
        ) as log:
            state = train(
                state,
                train_step,
                (tuple(put_batch(mesh, b) for b in update) for update in batches),
                config=training,
                schedule=schedule,
                evaluate=evaluator,
                checkpoints=checkpoints,
                log=log,
            )
            params = jax.device_put(  # where they were: what is compiled is used again
                read_parameters(this_run, options.checkpoint),
                jax.tree.map(lambda leaf: leaf.sharding, state.params),
            )
            scores = evaluator(int(state.step), params)
            log.evaluation(int(state.step), scores, kind="final")
            report_phenomena(this_run, evaluator.translator(params))
    return {
        "step": int(state.step),
        **{key: scores[key] for key in ("loss", "nll", "ppl", "bleu", "signature")},
        "direction": direction(config),
        "tokens_per_second": round(log.tokens_per_second, 1),
        "seconds": round(time.monotonic() - start, 1),
    }


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
