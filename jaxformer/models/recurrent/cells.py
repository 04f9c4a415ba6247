"""Recurrent cells, and a layer of them over whole rows.

Gates have the order of PyTorch. A layer's input products are computed for all positions
at once; its loop multiplies states only. G counts gates and H is the width of a state.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Float32

from jaxformer.models.arrays import RandomKey, Vectors
from jaxformer.models.kernels.linear import multiply
from jaxformer.models.kernels.recurrence import State, loop, product_of_output

GATES = {"lstm": 4, "gru": 3, "tanh": 1}


class CellWeights(NamedTuple):
    """The parameters of a cell; matrices are in the type of products."""

    input: Float[Array, "D GH"]
    recurrent: Float[Array, "H GH"]
    bias: Float32[Array, " GH"]
    new_bias: Float32[Array, " H"] | None  # of the GRU's product that is reset
    feed: Float[Array, "H GH"] | None  # of what a decoder is fed besides tokens


class Kernel(nn.Module):
    """A parameter called `kernel`, in the type of products."""

    shape: tuple[int, int]
    axes: tuple[str, str]
    dtype: jnp.dtype
    init: nn.initializers.Initializer = nn.initializers.xavier_uniform()

    @nn.compact
    def __call__(self) -> Float[Array, "rows columns"]:
        init = nn.with_logical_partitioning(self.init, self.axes)
        return self.param("kernel", init, self.shape).astype(self.dtype)


class Cell(nn.Module):
    """The parameters of a cell.

    Recurrent matrices are uniform in +-H^-0.5 at first, as PyTorch's; at H = 512 that
    is nearly the 0.04 of Wu et al. 2016. Those of inputs are Xavier's. Biases are 0,
    but 1 for the forget gate, so that a cell remembers at first (Jozefowicz et al.
    2015). Orthogonal matrices would need QR decompositions, of which two at a time
    can block all threads of XLA's pool on a CPU.
    """

    kind: str
    inputs: int
    width: int
    dtype: jnp.dtype
    is_fed: bool = False
    state_axis: str = "embed"  # the name of the axis of H

    @nn.compact
    def __call__(self) -> CellWeights:
        count = GATES[self.kind]

        def remember(key: RandomKey, shape: tuple[int]) -> Float32[Array, " GH"]:
            is_second = jnp.arange(shape[0]) // self.width == 1
            return (is_second & (self.kind == "lstm")).astype(jnp.float32)

        def vector(name: str, init: nn.initializers.Initializer, size: int):
            init = nn.with_logical_partitioning(init, ("gates",))
            return self.param(name, init, (size,))

        def matrix(name: str, rows: int, axis: str, *init: nn.initializers.Initializer):
            shape, axes = (rows, count * self.width), (axis, "gates")
            return Kernel(shape, axes, self.dtype, *init, name=name)()

        uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        is_gru, zeros = self.kind == "gru", nn.initializers.zeros
        return CellWeights(
            matrix("input", self.inputs, "embed"),
            matrix("recurrent", self.width, self.state_axis, uniform),
            vector("bias", remember, count * self.width),
            vector("new_bias", zeros, self.width) if is_gru else None,
            matrix("feed", self.width, self.state_axis) if self.is_fed else None,
        )


def update(cell: CellWeights, x: Float[Array, "*B GH"], state: State) -> State:
    """Make one step of a cell; x is the product of its input, with bias."""
    return gate(x, product_of_output(cell.recurrent, state), state, cell.new_bias)


def gate(
    x: Float[Array, "*B GH"],  # the product of the input
    own: Float[Array, "*B GH"],  # that of the state
    state: State,
    bias: Float32[Array, " H"] | None,
) -> State:
    """Compute a cell of torch.nn.LSTM, torch.nn.GRU or torch.nn.RNN.

    The GRU has a bias of the part that is reset; the RNN, tanh(W x + U h + b), has a
    state without memory.
    """
    x, own = x.astype(jnp.float32), own.astype(jnp.float32)
    if bias is None and len(state) == 1:
        return (jnp.tanh(x + own),)
    if bias is None:
        into, forget, new, out = jnp.split(x + own, 4, axis=-1)
        memory = nn.sigmoid(forget) * state[1] + nn.sigmoid(into) * jnp.tanh(new)
        return nn.sigmoid(out) * jnp.tanh(memory), memory
    reset, keep, new = jnp.split(x, 3, axis=-1)
    own_reset, own_keep, own_new = jnp.split(own, 3, axis=-1)
    reset, keep = nn.sigmoid(reset + own_reset), nn.sigmoid(keep + own_keep)
    new = jnp.tanh(new + reset * (own_new + along(bias, own)))
    return ((1 - keep) * new + keep * state[0],)


def along(vector: Float[Array, " H"], x: Float[Array, "..."]) -> Float[Array, "... H"]:
    """Shape a vector as the last axis of x, in x's type."""
    return vector.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


def recur(
    cell: CellWeights,
    x: Vectors,
    is_start: Bool[Array, "B L"],
    start: Float32[Array, "B L H"] | None = None,  # None: zeros
    fixed: Float[Array, "B L GH"] | None = None,
    *,
    is_reverse: bool = False,
) -> Float[Array, "B L H"]:
    """Compute a layer's outputs for inputs x, in x's type.

    Where `is_start`, the state before the step is `start`. `fixed` is added to the
    products of the inputs.
    """
    products = multiply(x.swapaxes(0, 1), cell.input, x.dtype)
    products += along(cell.bias, products)
    if fixed is not None:
        products += fixed.swapaxes(0, 1)
    start = None if start is None else start.swapaxes(0, 1)
    starts = is_start.swapaxes(0, 1)[..., None], start
    output = loop(gate, cell.recurrent, cell.new_bias, products, starts, is_reverse)
    return output.swapaxes(0, 1)
