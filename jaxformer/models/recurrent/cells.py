"""Recurrent cells, and a layer of them over whole rows.

Gates have the order of PyTorch. A layer's input products are computed for all positions
at once; its loop multiplies states only. G counts gates and H is the width of a state.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.models.kernels.linear import multiply
from jaxformer.models.kernels.recurrence import State, loop, product_of_output

GATES = {"lstm": 4, "gru": 3}


class CellWeights(NamedTuple):
    """The parameters of a cell; matrices are in the type of products."""

    input: jax.Array  # [D, G H]
    recurrent: jax.Array  # [H, G H]
    bias: jax.Array  # float32 [G H]
    new_bias: jax.Array | None  # float32 [H], of the GRU's product that is reset
    feed: jax.Array | None  # [H, G H], of what a decoder is fed besides tokens


class Kernel(nn.Module):
    """A parameter called `kernel`, in the type of products."""

    shape: tuple[int, int]
    axes: tuple[str, str]
    dtype: jnp.dtype
    init: nn.initializers.Initializer = nn.initializers.xavier_uniform()

    @nn.compact
    def __call__(self) -> jax.Array:
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

        def remember(key: jax.Array, shape: tuple[int]) -> jax.Array:
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


def update(cell: CellWeights, x: jax.Array, state: State) -> State:
    """Make one step of a cell; x [..., G H] is the product of its input, with bias."""
    return gate(x, product_of_output(cell.recurrent, state), state, cell.new_bias)


def gate(x: jax.Array, own: jax.Array, state: State, bias: jax.Array | None) -> State:
    """Compute a cell of torch.nn.LSTM or, with the bias of its reset part, nn.GRU.

    x and own [..., G H] are the products of the input and of the state.
    """
    x, own = x.astype(jnp.float32), own.astype(jnp.float32)
    if bias is None:
        into, forget, new, out = jnp.split(x + own, 4, axis=-1)
        memory = nn.sigmoid(forget) * state[1] + nn.sigmoid(into) * jnp.tanh(new)
        return nn.sigmoid(out) * jnp.tanh(memory), memory
    reset, keep, new = jnp.split(x, 3, axis=-1)
    own_reset, own_keep, own_new = jnp.split(own, 3, axis=-1)
    reset, keep = nn.sigmoid(reset + own_reset), nn.sigmoid(keep + own_keep)
    new = jnp.tanh(new + reset * (own_new + along(bias, own)))
    return ((1 - keep) * new + keep * state[0],)


def along(vector: jax.Array, x: jax.Array) -> jax.Array:
    """Shape a vector [H] as the last axis of x [..., H], in x's type."""
    return vector.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


def begin(cell: CellWeights, start: jax.Array) -> State:
    """Begin with `start` [..., H] as output and, in an LSTM, as memory."""
    return (start,) * (2 if cell.new_bias is None else 1)


def recur(
    cell: CellWeights,
    x: jax.Array,
    is_start: jax.Array,
    start: jax.Array | None = None,
    fixed: jax.Array | None = None,
    *,
    is_reverse: bool = False,
) -> jax.Array:
    """Compute a layer's outputs [B, L, H] for inputs x [B, L, D], in x's type.

    Where `is_start`, bool [B, L], the state before the step is `start`, float32
    [B, L, H], or zeros. `fixed` [B, L, G H] is added to the products of the inputs.
    """
    products = multiply(x.swapaxes(0, 1), cell.input, x.dtype)
    products += along(cell.bias, products)
    if fixed is not None:
        products += fixed.swapaxes(0, 1)
    start = None if start is None else start.swapaxes(0, 1)
    starts = is_start.swapaxes(0, 1)[..., None], start
    output = loop(gate, cell.recurrent, cell.new_bias, products, starts, is_reverse)
    return output.swapaxes(0, 1)
