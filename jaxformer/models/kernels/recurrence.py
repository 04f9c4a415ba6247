"""The loop over positions of a layer with state; its gradient is few large products."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, PyTree

Matrix = Float[Array, "H GH"]
Bias = Float32[Array, " H"] | None  # of the GRU
Inputs = Float[Array, "L B GH"]
Outputs = Float[Array, "L B H"]
State = tuple[Float32[Array, "*B H"], ...]  # the first is the cell's output
Gate = Callable[..., State]  # of products of the input and of the state, and the state
Starts = tuple[Bool[Array, "L B 1"], Float32[Array, "L B H"] | None]


def product_of_output(matrix: Matrix, state: State) -> Float32[Array, "*B GH"]:
    """Multiply the output of the step before."""
    output = state[0].astype(matrix.dtype)
    return jnp.matmul(output, matrix, preferred_element_type=jnp.float32)


def begin(matrix: Matrix, start: Float32[Array, "*B H"]) -> State:
    """Begin with `start` as output and, in an LSTM (four gates), as memory."""
    return (start,) * (2 if matrix.shape[1] == 4 * len(matrix) else 1)


@partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def loop(
    gate: Gate, matrix: Matrix, bias: Bias, x: Inputs, starts: Starts, is_reverse: bool
) -> Outputs:
    """Compute the outputs for products x of inputs.

    `gate` makes a step of the cell. Where `starts` says so, the state before the step
    is that of `starts`, or zeros.

    The gradient of the matrix is one product after the loop; JAX's would add
    one of few rows at each step.
    """
    return _scan(gate, matrix, bias, x, starts, is_reverse, lambda output, *_: output)


def _scan(
    gate: Gate,
    matrix: Matrix,
    bias: Bias,
    x: Inputs,
    starts: Starts,
    is_reverse: bool,
    keep: Callable,
) -> PyTree[Array]:
    """Stack `keep(output, own, state before)` of all steps."""

    def step(state: State, inputs: tuple) -> tuple[State, PyTree[Array]]:
        x, (is_start, start) = inputs
        start = 0.0 if start is None else start
        before = tuple(jnp.where(is_start, start, each) for each in state)
        own = product_of_output(matrix, before)
        state = gate(x, own, before, bias)
        return state, keep(state[0].astype(x.dtype), own.astype(x.dtype), before)

    first = begin(matrix, jnp.zeros((x.shape[1], len(matrix))))
    return jax.lax.scan(step, first, (x, starts), reverse=is_reverse)[1]


def _forward(*arguments: PyTree) -> tuple[Outputs, tuple]:
    outputs, own, before = _scan(*arguments, lambda *kept: kept)
    return outputs, (*arguments[1:-1], own, before)


def _backward(gate: Gate, is_reverse: bool, kept: tuple, gradient: Outputs) -> tuple:
    matrix, bias, x, starts, own, before = kept
    is_start, start = starts

    def step(grads: State, inputs: tuple) -> tuple[State, tuple]:
        gradient, x, own, before, is_start = inputs
        _, pullback = jax.vjp(partial(gate, bias=bias), x, own, before)
        grads = (grads[0] + gradient.astype(jnp.float32), *grads[1:])
        grad_x, grad_own, (grad, *rest) = pullback(grads)
        grad += jnp.einsum(
            "bg,hg->bh", grad_own, matrix, preferred_element_type=jnp.float32
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
    outputs = before[0].astype(matrix.dtype)
    grad_matrix = jax.lax.dot_general(outputs, grad_own, (((0, 1), (0, 1)), ((), ())))
    grad_bias = None
    if bias is not None:
        grad_bias = grad_own[..., -len(bias) :].sum((0, 1), dtype=bias.dtype)
    else:
        grad_x = grad_own  # both are added
    return grad_matrix, grad_bias, grad_x, (None, grad_start)


loop.defvjp(_forward, _backward)
