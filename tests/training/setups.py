"""What tests of training share: optimiser, update, batches, meshes, comparisons."""

import functools
import math
from types import SimpleNamespace

import jax
import numpy as np
from jax.sharding import AxisType

from jaxformer.batch import Batch
from jaxformer.config.sections import OptimizerConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import AXES, state_shardings
from jaxformer.training.step import TrainStep, init_state


def optimizer_of(*, d_model=16, **changes):
    """Adam of the paper and a short warm-up, and its schedule."""
    values = {
        "warmup_steps": 20, "beta1": 0.9, "beta2": 0.98,
        "epsilon": 1e-9, "weight_decay": 0.0, "algorithm": "adam",
        "schedule": "inverse_sqrt",
    }  # fmt: skip
    config = OptimizerConfig.of(values | changes)
    return make_optimizer(config, d_model=d_model, steps=100)


def training_of(**changes):
    """The keys of the section `training` that the update needs; no moving average."""
    values = {
        "seed": 0, "label_smoothing": 0.1, "ema_decay": None, "freeze": (),
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


def init_of(model, optimizer, **changes):
    """The function that draws the first state, boxed."""
    return functools.partial(init_state, model, optimizer, training_of(**changes))


def step_of(model, optimizer, *, mesh=None, **changes):
    """The compiled update, on a mesh that splits the batch if it is given."""
    init = init_of(model, optimizer, **changes)
    shardings = mesh and state_shardings(mesh, init)
    return TrainStep(model, optimizer, training_of(**changes), shardings)


def random_batch(rows, length, *, vocabulary=16, seed=0):
    """Rows of up to two packed pairs and padding; low ids are the most frequent."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(1, length + 1, (rows, 1))
    index = np.arange(length)[None]
    segments = ((1 + (index > ends // 2)) * (index < ends)).astype(np.int32)
    draws = 3 + rng.random((2, rows, length)) ** 4 * (vocabulary - 3)
    source, target = draws.astype(np.int32) * (segments > 0)
    return Batch(source, target, segments, segments)


def mesh_of(sizes):
    """A mesh of the first devices; `make_mesh` always takes all of them."""
    devices = jax.devices()[: math.prod(sizes)]
    return jax.make_mesh(sizes, AXES, (AxisType.Auto,) * 3, devices=devices)


def assert_same(left, right):
    """Every bit of every leaf."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())
