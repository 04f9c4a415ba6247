"""Recurrent cells, and a layer of them over whole rows.

Gates have the order of PyTorch. A layer's input products are computed for all positions
at once; its loop multiplies states only. G counts gates and H is the width of a state.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.models.linear import multiply

GATES = {"lstm": 4, "gru": 3}
State = tuple[jax.Array, ...]  # float32 [..., H]; the first is the cell's output


class CellWeights(NamedTuple):
    """The parameters of a cell; matrices are in the type of products."""

    input: jax.Array  # [D, G H]
    recurrent: jax.Array  # [H, G H]
    bias: jax.Array  # float32 [G H]
    new_bias: jax.Array | None  # float32 [H], of the GRU's product that is reset


class Matrix(nn.Module):
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

    Recurrent matrices are orthogonal at first (Saxe et al. 2014; Bahdanau et al. 2015,
    B.1), those of inputs Xavier's. Biases are 0, but 1 for the forget gate, so that a
    cell remembers at first (Jozefowicz et al. 2015).
    """

    kind: str
    inputs: int
    width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self) -> CellWeights:
        count, axes = GATES[self.kind], ("embed", "gates")

        def orthogonal(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
            square = nn.initializers.orthogonal()
            keys = jax.random.split(key, count)
            each = [square(key, (self.width, self.width)) for key in keys]
            return jnp.concatenate(each, axis=1)

        def remember(key: jax.Array, shape: tuple[int]) -> jax.Array:
            is_second = jnp.arange(shape[0]) // self.width == 1
            return (is_second & (self.kind == "lstm")).astype(jnp.float32)

        def vector(name: str, init: nn.initializers.Initializer, size: int):
            init = nn.with_logical_partitioning(init, ("gates",))
            return self.param(name, init, (size,))

        shape, size = (self.inputs, count * self.width), self.width
        return CellWeights(
            Matrix(shape, axes, self.dtype, name="input")(),
            Matrix((size, shape[1]), axes, self.dtype, orthogonal, name="recurrent")(),
            vector("bias", remember, shape[1]),
            vector("new_bias", nn.initializers.zeros, size)
            if self.kind == "gru"
            else None,
        )


def update(cell: CellWeights, x: jax.Array, state: State) -> State:
    """Make one step of a cell, torch.nn.LSTM's or torch.nn.GRU's.

    x [..., G H] is the product of the input, with the bias.
    """
    output, *rest = state
    own = jnp.matmul(
        output.astype(cell.recurrent.dtype), cell.recurrent,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    if cell.new_bias is None:
        into, forget, new, out = jnp.split(x + own, 4, axis=-1)
        (memory,) = rest
        memory = nn.sigmoid(forget) * memory + nn.sigmoid(into) * jnp.tanh(new)
        return nn.sigmoid(out) * jnp.tanh(memory), memory
    reset, keep, new = jnp.split(x, 3, axis=-1)
    own_reset, own_keep, own_new = jnp.split(own, 3, axis=-1)
    reset, keep = nn.sigmoid(reset + own_reset), nn.sigmoid(keep + own_keep)
    new = jnp.tanh(new + reset * (own_new + along(cell.new_bias, own)))
    return ((1 - keep) * new + keep * output,)


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
    start: jax.Array,
    more: jax.Array | None = None,
    *,
    is_reverse: bool = False,
) -> jax.Array:
    """Compute a layer's outputs [B, L, H] for inputs x [B, L, D], in x's type.

    Where `is_start`, bool [B, L], the state before the step is `start`, float32
    [B, L, H], or [B, 1, H] at all positions. `more` [B, L, G H] is added to the inputs'
    products.
    """
    x = x.swapaxes(0, 1)
    gates = multiply(x, cell.input) + along(cell.bias, x)
    if more is not None:
        gates += more.swapaxes(0, 1)
    start = start.swapaxes(0, 1)
    if len(start) == 1:
        start = jnp.broadcast_to(start, (len(x), *start.shape[1:]))

    def step(state: State, inputs: tuple) -> tuple[State, jax.Array]:
        gates, is_start, start = inputs
        begun = begin(cell, start)
        state = tuple(
            jnp.where(is_start[:, None], new, old)
            for new, old in zip(begun, state, strict=True)
        )
        state = update(cell, gates, state)
        return state, state[0].astype(x.dtype)

    first = begin(cell, jnp.zeros_like(start[0]))
    inputs = gates, is_start.swapaxes(0, 1), start
    return jax.lax.scan(step, first, inputs, reverse=is_reverse)[1].swapaxes(0, 1)
