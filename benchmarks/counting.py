"""Count the matrix products of a program as JAX traces it.

XLA counts the body of a loop once; here a loop counts by its length.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params


class Counts(NamedTuple):
    """What a program multiplies."""

    operations: int  # of matrix products, two for each multiplication
    chain: int  # products that depend on each other, in the longest chain


def count(function: Callable, *arguments: Any) -> Counts:
    """Count the products of a function, which is traced and not run."""
    program = jax.make_jaxpr(function)(*arguments)
    inputs = [0] * len(program.jaxpr.invars)
    return Counts(_operations(program.jaxpr), max(_chains(program.jaxpr, inputs)))


def _size(product: Any) -> int:
    """Count the operations of one equation: 0 if it is no product."""
    output = product.outvars[0].aval
    if product.primitive.name == "dot_general":
        (summed, _), _ = product.params["dimension_numbers"]
        shape = product.invars[0].aval.shape
        return 2 * output.size * math.prod(shape[axis] for axis in summed)
    if product.primitive.name == "conv_general_dilated":
        kernel, numbers = product.invars[1].aval, product.params["dimension_numbers"]
        return 2 * output.size * kernel.size // kernel.shape[numbers.rhs_spec[0]]
    return 0


def _inner(equation: Any) -> list[Jaxpr]:
    """Return the programs that an equation calls."""
    programs = [*jaxprs_in_params(equation.params)]
    if programs and equation.primitive.name == "while":
        raise ValueError("the trips of a while loop are not known; use lax.scan")
    return programs


def _operations(program: Jaxpr) -> int:
    total = 0
    for equation in program.eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        inner = [_operations(each) for each in _inner(equation)]
        total += _size(equation) + times * max(inner, default=0)
    return total


def _chains(program: Jaxpr, inputs: Sequence[int]) -> list[int]:
    """Return the longest chain that ends in each output, given those of the inputs."""
    chains = dict(zip(program.invars, inputs, strict=True))

    def of(variable: Any) -> int:
        return 0 if isinstance(variable, Literal) else chains.get(variable, 0)

    for equation in program.eqns:
        given = [of(each) for each in equation.invars]
        if equation.primitive.name == "scan":
            found = _scan_chains(equation, given)
        elif inner := _inner(equation):
            each = [_chains(body, given[-len(body.invars) :]) for body in inner]
            found = list(map(max, *each)) if len(each) > 1 else each[0]
        else:
            found = [max(given, default=0) + (_size(equation) > 0)]
            found *= len(equation.outvars)
        chains |= zip(equation.outvars, found, strict=True)
    return [of(each) for each in program.outvars]


def _scan_chains(equation: Any, given: Sequence[int]) -> list[int]:
    """Return what `_chains` does, of a loop: constants, carries, then stacked arrays.

    How many of each there are is found from ranks, because the names of the parameters
    that say it differ between versions of JAX.
    """
    (body,) = _inner(equation)
    carried = sum(map(_have_same_rank, equation.outvars, body.outvars))
    whole = sum(map(_have_same_rank, equation.invars, body.invars))
    fixed, carry = given[: whole - carried], given[whole - carried : whole]
    stacked: list[int] = []
    for _ in range(equation.params["length"]):
        found = _chains(body, [*fixed, *carry, *given[whole:]])
        carry, stacked = found[:carried], found[carried:]
    return [*carry, *stacked]


def _have_same_rank(outside: Any, inside: Any) -> bool:
    return outside.aval.ndim == inside.aval.ndim
