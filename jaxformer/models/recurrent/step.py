"""One step of a recurrent decoder, which training may have to repeat in a loop too."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Float32

from jaxformer.models.arrays import Floats, Targets, Vectors
from jaxformer.models.kernels.recurrence import begin
from jaxformer.models.recurrent.attention import (
    Draws,
    LogChoice,
    RecurrentAttention,
    Scores,
    Source,
    attend,
)
from jaxformer.models.recurrent.cells import (
    Cell,
    CellWeights,
    Kernel,
    State,
    along,
    update,
)
from jaxformer.models.recurrent.config import RecurrentConfig


class DecoderWeights(NamedTuple):
    """The decoder's parameters; matrices are in the type of products."""

    start: Float[Array, "D D"]
    start_bias: Float32[Array, " D"]
    layers: list[CellWeights]
    attention: dict[str, Floats]
    output: Float[Array, "2*D D"] | None  # W_c of Luong's equation 5


class DecoderParameters(nn.Module):
    """The decoder's parameters."""

    config: RecurrentConfig

    @nn.compact
    def __call__(self) -> DecoderWeights:
        config, d = self.config, self.config.d_model
        dtype, axes = jnp.dtype(config.dtype), ("embed", "gates")

        def matrix(name: str, rows: int, columns: int) -> Float[Array, "rows columns"]:
            return Kernel((rows, columns), axes, dtype, name=name)()

        def layer(n: int) -> CellWeights:
            is_fed = n == 0 and config.feeding != "none"
            return Cell(config.cell, d, d, dtype, is_fed, name=f"layer_{n}")()

        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("gates",))
        has_attention = config.attention != "none"
        return DecoderWeights(
            matrix("start", d, d),
            self.param("start_bias", zeros, (d,)),
            [layer(n) for n in range(config.decoder_layers)],
            RecurrentAttention(config.attention, d, dtype, name="attention")(),
            matrix("output", 2 * d, d) if has_attention else None,
        )


class Past(NamedTuple):
    """What a step needs of the one before."""

    states: list[State]  # of the layers, [B, N, D]
    fed: Float32[Array, "B N D"] | None


class Outputs(NamedTuple):
    """What T positions, or one step of T hypotheses, compute."""

    layers: list[Targets]
    hidden: Targets  # of which logits are made
    shares: Scores | None  # the weights of attention
    log_choice: LogChoice | None


def first_past(
    config: RecurrentConfig, weights: DecoderWeights, start: Float32[Array, "B N D"]
) -> Past:
    """Begin sentences; `start` is the first state of all layers."""
    fed = {"none": None, "attentional": jnp.zeros_like(start), "context": start}
    states = [begin(cell.recurrent, start) for cell in weights.layers]
    return Past(states, fed[config.feeding])


def attentional(weights: DecoderWeights, context: Vectors, state: Vectors) -> Vectors:
    """Compute Luong's equation 5, tanh(W_c [c; h])."""
    return jnp.tanh(jnp.concatenate([context, state], axis=-1) @ weights.output)


def advance(
    config: RecurrentConfig,
    weights: DecoderWeights,
    source: Source,
    mask: Bool[Array, " B #N S"],
    gates: Float[Array, "B N GD"],
    past: Past,
    factors: list[Vectors] | None = None,
    draws: Draws | None = None,
) -> tuple[Past, Outputs]:
    """Make one step of N hypotheses of each of B sentences.

    `gates` are the first layer's products of the newest tokens, `factors` dropout of
    the inputs of the other layers, `draws` those of `attend`.
    """
    dtype, inputs = weights.start.dtype, (source, mask, draws)
    looks, looks_first = config.attention != "none", config.feeding == "context"
    fed = past.fed
    if looks and looks_first:
        read = attend(config, weights.attention, fed, *inputs)
        fed = read.context
    if fed is not None:
        gates = gates + fed.astype(dtype) @ weights.layers[0].feed
    states, outputs = [], []
    for n, (cell, state) in enumerate(zip(weights.layers, past.states, strict=True)):
        if n:
            x = outputs[-1] * factors[n - 1] if factors else outputs[-1]
            gates = x @ cell.input + along(cell.bias, x)
        states.append(update(cell, gates, state))
        output = states[-1][0].astype(dtype)
        outputs.append(outputs[-1] + output if n else output)
    top = outputs[-1]
    if not looks:
        return Past(states, past.fed), Outputs(outputs, top, None, None)
    if not looks_first:
        read = attend(config, weights.attention, top, *inputs)
    hidden = attentional(weights, read.context, top)
    fed = {"none": None, "attentional": hidden, "context": top}[config.feeding]
    fed = None if fed is None else fed.astype(jnp.float32)
    return Past(states, fed), Outputs(outputs, hidden, read.shares, read.log_choice)
