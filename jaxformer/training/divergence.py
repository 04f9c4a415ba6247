"""Finds where an update stopped being finite, by making it once more.

An update that is skipped says only that its loss or its gradient was not finite. When
so many are skipped in a row that a run has diverged, the first of them is computed
again, with the same parameters and the same dropout, and looked into.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.batch import Batch
from jaxformer.models.transformer.probe import are_finite_outputs
from jaxformer.models.transformer.transformer import Transformer
from jaxformer.training.step import Parameters, TrainState, dropout_key, gradients


class Finding(NamedTuple):
    """What is not finite in an update, if anything is."""

    microbatch: int  # the first one that is not finite, from 0
    parameter: str | None  # a parameter that is not finite to begin with
    output: str | None  # the first sub-layer, in forward order, whose output is not
    loss: float
    gradient: str | None  # the first layer, in backward order, whose gradient is not

    def __str__(self) -> str:
        """The chain of what is not finite, first things first."""
        if self.parameter is not None:
            return f"the parameter {self.parameter} is not finite"
        found = []
        if self.output is not None:
            found.append(
                f"the first output that is not finite is that of {self.output}"
            )
        if not np.isfinite(self.loss):
            found.append(f"the loss is {self.loss}")
        if self.gradient is not None:
            found.append(
                f"the gradient is first not finite in {self.gradient}, going backwards"
            )
        return "; ".join(found) or (
            "computed again everything is finite, so the machine is suspect"
        )


def before_bad_steps(state: TrainState) -> TrainState:
    """The state as the first of its skipped updates in a row found it."""
    return state._replace(
        step=state.step - state.bad_steps,
        data_position=state.data_position - state.bad_steps,
    )


def diagnose_update(
    model: Transformer,
    state: TrainState,
    update: tuple[Batch, ...],
    *,
    label_smoothing: float,
) -> Finding:
    """Compute an update again and say where it first is not finite."""

    @jax.jit
    def probe(state: TrainState, batch: Batch, index: jax.Array) -> tuple:
        found = gradients(model, state, batch, index, label_smoothing=label_smoothing)
        key = dropout_key(state, index)
        outputs = are_finite_outputs(model, state.params, batch, key)
        are_finite = [
            jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), tree)
            for tree in (state.params, found.grads)
        ]
        return found.sums.loss, are_finite, list(outputs.values())

    names = _output_names(model, state, update[0])
    for index, batch in enumerate(update):
        loss, (params, grads), outputs = jax.device_get(
            probe(state, batch, jnp.asarray(index, jnp.int32))
        )
        output = next((n for n, ok in zip(names, outputs, strict=True) if not ok), None)
        finding = Finding(
            index, _first_bad(params), output, float(loss), _first_bad(grads)
        )
        if not (np.isfinite(finding.loss) and finding.gradient is None):
            break
    return finding


def _output_names(model: Transformer, state: TrainState, batch: Batch) -> list[str]:
    names: list[str] = []

    def record() -> None:
        key = jax.random.key(0)
        names.extend(are_finite_outputs(model, state.params, batch, key))

    jax.eval_shape(record)
    return names


def _first_bad(are_finite: Parameters) -> str | None:
    """The layer of the first leaf, in backward order, that is not finite."""
    bad = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, ok in jax.tree_util.tree_leaves_with_path(are_finite)
        if not ok
    ]
    return min(map(_layer_of, bad), key=_backward_order, default=None)


def _layer_of(parameter: str) -> str:
    """decoder/layer_3/feed_forward of decoder/layer_3/feed_forward_sublayer/norm/bias.

    decoder/norm of decoder/norm/scale, which pre-norm has.
    """
    parts = parameter.split("/")
    layer = parts[:3] if len(parts) > 3 else parts[:-1] or parts
    return "/".join(layer).removesuffix("_sublayer")


# What the backward pass comes to first.
_STACKS = ("decoder", "encoder", "embedding", "position_embedding")
_SUBLAYERS = ("feed_forward", "cross_attention", "self_attention")


def _backward_order(layer: str) -> tuple[int, int, int]:
    """Sorts layers by when the backward pass comes to them; a last norm comes first."""
    stack, *inner = layer.split("/")
    if len(inner) < 2 or not inner[0].startswith("layer_"):
        return _STACKS.index(stack), -(10**6), 0
    number = int(inner[0].removeprefix("layer_"))
    return _STACKS.index(stack), -number, _SUBLAYERS.index(inner[1])
