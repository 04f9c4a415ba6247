"""What training needs besides data: the objects of a config, a model and devices."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from jaxformer.config.sections import Config
from jaxformer.models.sequence_model import Model
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import make_mesh, state_shardings
from jaxformer.training.step import TrainState, TrainStep, init_state


class TrainingSetup(NamedTuple):
    """How the parameters of a run are made and updated, and on which devices."""

    mesh: Mesh
    init: Callable[[], TrainState]  # boxed, see training/sharding.py
    train_step: TrainStep
    schedule: Callable[[int], jax.Array]  # learning rate by updates already made


def make_training_setup(
    config: Config, model: Model, devices: Sequence[jax.Device] | None = None
) -> TrainingSetup:
    """Build the objects of the sections `mesh`, `optimizer` and `training`.

    `devices` None means all.
    """
    training = config.training
    sizes = {"d_model": model.d_model, "steps": training.steps}
    optimizer, schedule = make_optimizer(config.optimizer, **sizes)
    init = functools.partial(init_state, model, optimizer, training)
    mesh = make_mesh(**vars(config.mesh), devices=devices)
    shardings = state_shardings(mesh, init)
    train_step = TrainStep(model, optimizer, training, shardings)
    return TrainingSetup(mesh, init, train_step, schedule)
