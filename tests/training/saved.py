"""Small states, saved as checkpoints, and damage of their files."""

import os
from contextlib import contextmanager

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.step import fresh_state
from tests.damage import files_of
from tests.training.setups import mesh_of, optimizer_of, training_of

OPTIMIZER, _ = optimizer_of(clip_norm=1.0)


def make_state(fill, *, width=4):
    params = {
        "embedding": jax.random.normal(jax.random.key(fill), (16, width)),
        "encoder": {"layer_0": {"bias": jnp.full((width,), fill, jnp.float32)}},
    }
    return fresh_state(params, OPTIMIZER, training_of(seed=fill))


def abstract(state, sizes=(1, 1, 1), *axes):
    """Shapes of a state, and shardings that split matrices over a mesh."""
    mesh = mesh_of(sizes)

    def place(leaf):
        spec = PartitionSpec(*axes if leaf.ndim == 2 else ())
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, state)


ABSTRACT = abstract(make_state(1))


def open_checkpoints(directory, keep=None, scores=None, last=None, run=""):
    scores = {} if scores is None else scores
    return Checkpoints(directory, keep=keep, scores=scores, last=last, run=run)


@contextmanager
def continue_run(directory, *settings):
    """Open checkpoints, as `open_checkpoints` does, and read the newest."""
    with open_checkpoints(directory, *settings) as checkpoints:
        checkpoints.restore_latest(ABSTRACT)
        yield checkpoints


def save_all(directory, *steps, keep=9, scores=None, last=None, run=""):
    """Continue a run by saved steps; a negative one is saved off schedule."""
    with continue_run(directory, keep, scores, last, run) as checkpoints:
        for step in steps:
            checkpoints.save(abs(step), make_state(abs(step)), scheduled=step >= 0)


def truncate(directory):
    """Halve all files as a crash of the machine may."""
    for file in files_of(directory):
        os.truncate(file, file.stat().st_size // 2)
