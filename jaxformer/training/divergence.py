"""Diagnose an update that is not finite by computing it again.

It is repeated with the same parameters and the same dropout, and the first layer that
is not finite is named.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.batch import Batch
from jaxformer.config.sections import TrainingConfig
from jaxformer.models.sequence_model import LikeParameters, Model
from jaxformer.training.frozen import name_of
from jaxformer.training.step import TrainState, dropout_key, gradients


class Diagnosis(NamedTuple):
    """What is not finite in an update, if anything is."""

    microbatch: int  # the first one that is not finite, from 0
    parameter: str | None  # a parameter that is not finite to begin with
    output: str | None  # the first sub-layer, in forward order, whose output is not
    loss: float
    gradient: str | None  # the first layer, in backward order, whose gradient is not

    def __str__(self) -> str:
        """Say what is not finite, causes first."""
        if self.parameter is not None:
            return f"the parameter {self.parameter} is not finite"
        _, _, output, loss, grad = self
        causes = {
            f"the first output that is not finite is that of {output}": output,
            f"the loss is {loss}": not np.isfinite(loss),
            f"the gradient is first not finite in {grad}, going backwards": grad,
        }
        return "; ".join(filter(causes.get, causes)) or (
            "computed again everything is finite, so the machine is suspect"
        )


def diagnose_update(
    model: Model, state: TrainState, update: tuple[Batch, ...], config: TrainingConfig
) -> Diagnosis:
    """Compute an update again and find what in it is first not finite."""
    layers: list[str] = []  # in forward order, which dicts lose in `jax.jit`

    @jax.jit
    def probe(state: TrainState, batch: Batch, index: jax.Array) -> tuple:
        found = gradients(model, state, batch, index, config)
        outputs = model.watch(state.params, batch, dropout_key(state, index))
        layers[:] = outputs
        are_finite = jax.tree.map(
            lambda leaf: jnp.isfinite(leaf).all(), (state.params, found.grads)
        )
        return found.sums.loss, list(outputs.values()), *are_finite

    for index, batch in enumerate(update):
        loss, outputs, params, grads = jax.device_get(probe(state, batch, index))
        finding = Diagnosis(
            index,
            _first_bad(params, layers),
            next((n for n, ok in zip(layers, outputs, strict=True) if not ok), None),
            float(loss),
            _first_bad(grads, layers),
        )
        if not (np.isfinite(finding.loss) and finding.gradient is None):
            break
    return finding


def _first_bad(are_finite: LikeParameters, layers: list[str]) -> str | None:
    """Name the last of `layers` with a bad leaf, else a leaf outside of all layers."""
    bad = [
        name_of(path) for path, ok in jax.tree.leaves_with_path(are_finite) if not ok
    ]
    of_layers = (n for n in reversed(layers) if any(p.startswith(n) for p in bad))
    return next(iter([*of_layers, *bad]), None)
