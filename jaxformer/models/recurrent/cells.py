"""Recurrent cells, and a layer of them over whole rows.

Gates have the order of PyTorch. A layer's input products are computed for all positions
at once; its loop multiplies states only. G counts gates and H is the width of a state.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
    feed: jax.Array | None  # [H, G H], of what a decoder is fed besides tokens


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
            return Matrix(shape, axes, self.dtype, *init, name=name)()

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
    return gate(x, _own(cell.recurrent, state), state, cell.new_bias)


def _own(recurrent: jax.Array, state: State) -> jax.Array:
    """Multiply the output of the step before: float32 [..., G H]."""
    output = state[0].astype(recurrent.dtype)
    return jnp.matmul(output, recurrent, preferred_element_type=jnp.float32)


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
    output = _loop(cell.recurrent, cell.new_bias, products, starts, is_reverse)
    return output.swapaxes(0, 1)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _loop(
    recurrent: jax.Array,
    bias: jax.Array | None,
    x: jax.Array,
    starts: tuple[jax.Array, jax.Array | None],
    is_reverse: bool,
) -> jax.Array:
    """Compute the outputs [L, B, H] for products of inputs x [L, B, G H].

    The gradient of the recurrent matrix is one product after the loop; JAX's would add
    one of few rows at each step.
    """
    return _scan(recurrent, bias, x, starts, is_reverse, lambda output, *_: output)


def _scan(
    recurrent: jax.Array,
    bias: jax.Array | None,
    x: jax.Array,
    starts: tuple,
    is_reverse: bool,
    keep: Callable,
) -> Any:
    """Stack `keep(output, own, state before)` of all steps."""

    def step(state: State, inputs: tuple) -> tuple[State, Any]:
        x, (is_start, start) = inputs
        start = 0.0 if start is None else start
        before = tuple(jnp.where(is_start, start, each) for each in state)
        own = _own(recurrent, before)
        state = gate(x, own, before, bias)
        return state, keep(state[0].astype(x.dtype), own.astype(x.dtype), before)

    zeros = jnp.zeros((x.shape[1], len(recurrent)))
    first = (zeros,) * (2 if bias is None else 1)
    return jax.lax.scan(step, first, (x, starts), reverse=is_reverse)[1]


def _forward(*arguments: Any) -> tuple[jax.Array, tuple]:
    outputs, own, before = _scan(*arguments, lambda *kept: kept)
    return outputs, (*arguments[:-1], own, before)


def _backward(is_reverse: bool, kept: tuple, gradient: jax.Array) -> tuple:
    recurrent, bias, x, starts, own, before = kept
    is_start, start = starts

    def step(grads: State, inputs: tuple) -> tuple[State, tuple]:
        gradient, x, own, before, is_start = inputs
        _, pullback = jax.vjp(partial(gate, bias=bias), x, own, before)
        grads = (grads[0] + gradient.astype(jnp.float32), *grads[1:])
        grad_x, grad_own, (grad, *rest) = pullback(grads)
        grad += jnp.einsum(
            "bg,hg->bh", grad_own, recurrent, preferred_element_type=jnp.float32
        )
        grads = (grad, *rest)
        grad_start = None if start is None else jnp.where(is_start, sum(grads), 0.0)
        grads = tuple(jnp.where(is_start, 0.0, each) for each in grads)
        return grads, (grad_x if bias is not None else None, grad_own, grad_start)

    last = tuple(jnp.zeros_like(each[0]) for each in before)
    inputs = gradient, x, own, before, is_start
    _, (grad_x, grad_own, grad_start) = jax.lax.scan(
        step, last, inputs, reverse=not is_reverse
    )
    outputs = before[0].astype(recurrent.dtype)
    grad_recurrent = jax.lax.dot_general(
        outputs, grad_own, (((0, 1), (0, 1)), ((), ()))
    )
    grad_bias = None
    if bias is not None:
        grad_bias = grad_own[..., -len(bias) :].sum((0, 1), dtype=bias.dtype)
    else:
        grad_x = grad_own  # both are added
    return grad_recurrent, grad_bias, grad_x, (None, grad_start)


_loop.defvjp(_forward, _backward)
