"""What a new run begins with: drawn parameters, word vectors, or another run."""

import logging
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxformer.corpus.embeddings import read_word_vectors
from jaxformer.runs.run import Run, open_run, read_parameters
from jaxformer.training import sharding
from jaxformer.training.setup import TrainingSetup
from jaxformer.training.step import Parameters, TrainState

logger = logging.getLogger(__name__)


def new_state(this: Run, setup: TrainingSetup) -> TrainState:
    """Draw a state, or begin with the parameters of the run `training.init_from`.

    The file `training.initial_embeddings` replaces rows of drawn parameters.
    """
    state = sharding.born_sharded(setup.mesh, setup.init)
    training, d_model = this.config.training, this.model.d_model
    if training.init_from:
        logger.info("beginning with the parameters of %s", training.init_from)
        if training.initial_embeddings:
            logger.warning("training.init_from replaces training.initial_embeddings")
        params = read_parameters(open_run(Path(training.init_from)), None)
        return with_parameters(
            state, lambda drawn: jax.tree.map(sharding.place, params, drawn)
        )
    file = training.initial_embeddings
    if not file:
        return state
    pieces = {"embedding": this.tokenizer.pieces()}
    if "source_embedding" in state.params:
        pieces["source_embedding"] = this.tokenizer.source_pieces()
    for name, own in pieces.items():
        vectors, is_found = read_word_vectors(Path(file), own, d_model=d_model)
        found = f"{is_found.sum():,} of {len(own):,} pieces start from {file}"
        logger.info("%s: %s, the others at random", name, found)

        def replace(
            params: Parameters, name=name, vectors=vectors, is_found=is_found
        ) -> Parameters:
            choose = jax.jit(jnp.where, out_shardings=params[name].sharding)
            return {**params, name: choose(is_found[:, None], vectors, params[name])}

        state = with_parameters(state, replace)
    return state


def with_parameters(
    state: TrainState, replace: Callable[[Parameters], Parameters]
) -> TrainState:
    """Replace the parameters of a new state, and their moving average."""
    ema = None if state.ema is None else replace(state.ema)
    return state._replace(params=replace(state.params), ema=ema)
