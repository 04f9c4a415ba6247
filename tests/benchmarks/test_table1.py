"""Table 1: counts by formula, chains, and paths."""

import math

import jax
import pytest

from benchmarks import table1
from benchmarks.table1 import KERNEL, KEYS, KINDS, WINDOW, count, inputs_of, path

N, D = 128, 8
SEEN = 32 + WINDOW  # positions that a block of restricted self-attention sees
OPERATIONS = {
    "self-attention": 4 * N * N * D,
    "restricted": 4 * N * SEEN * D,
    "recurrent": 16 * N * D * D,
    "convolutional": 2 * KERNEL * N * D * D,
    "dilated": 2 * KERNEL * N * D * D,
    "linear": 8 * N * KEYS * D,
}
CHAINS = {"recurrent": N, "convolutional": 1, "dilated": 1, "linear": 3}
PATHS = {
    "self-attention": 1,
    "restricted": math.ceil((N - 1) / (WINDOW // 2)),
    "recurrent": N,
    "convolutional": math.ceil((N - 1) / (KERNEL - 1)),
    "dilated": math.ceil(math.log(N, KERNEL)),
    "linear": 1,
}


@pytest.mark.parametrize("name", KINDS)
def test_counts_are_those_of_the_formulas(name):
    """Where no loop is, also those of XLA for products."""
    params, x = inputs_of(N, D)

    def layer(params, x):
        return KINDS[name].apply(params, x, 0)

    jaxpr = jax.make_jaxpr(layer)(params, x).jaxpr
    counted = count(jaxpr, [0] * len(jaxpr.invars))
    assert counted.operations == OPERATIONS[name]
    assert max(counted.chains) == CHAINS.get(name, 2)
    assert path(KINDS[name], N, D, counted.steps) == PATHS[name]
    if name != "recurrent":
        flops = jax.jit(layer).lower(params, x).cost_analysis()["flops"]
        softmax = 0.25  # of few products, with D = 8
        assert counted.operations == pytest.approx(flops, rel=softmax)


def test_exponents_are_those_of_a_power_law():
    sizes = {(n, d): 3.0 * n**2 * d for n in (128, 512) for d in (16, 64)}
    assert table1.fit(sizes | {(16, 16): 1.0}) == (2.0, 1.0)


def test_lines_cross_where_self_attention_is_first_more():
    costs = {16: (1, 2), 64: (3, 3), 256: (9, 4)}
    sizes = {
        (n, 8): {"self-attention": {"operations": a}, "recurrent": {"operations": b}}
        for n, (a, b) in costs.items()
    }
    assert table1.crossings(sizes, "operations") == {8: 256}
