"""Table 1: operations, chains and paths of layers whose values are known."""

import json
import math

import jax
import jax.numpy as jnp
import pytest

from benchmarks import table1
from benchmarks.counting import count
from benchmarks.table1_layers import HEADS, KERNEL, KEYS, LAYERS

N, D = 32, 16
LINEAR = f"linear attention, {KEYS} keys"
RESTRICTED = "self-attention, r = 64"


def counted(name):
    params, apply = LAYERS[name].make(D, 0, jnp.dtype("float32"))
    return count(apply, params, jnp.zeros((1, N, D)))


@pytest.mark.parametrize(
    ("name", "multiplications", "chain"),
    [
        ("self-attention", 4 * N * D * D + 2 * N * N * D, 4),
        (LINEAR, 4 * N * D * D + 4 * N * KEYS * D, 5),
        ("LSTM", 2 * N * D * 4 * D, N),
        (f"convolution, k = {KERNEL}", KERNEL * N * D * D, 1),
        (f"dilated convolution, k = {KERNEL}", KERNEL * N * D * D, 1),
        (f"separable convolution, k = {KERNEL}", N * D * D, 1),  # of matrix products
    ],
)
def test_operations_and_chains_are_those_of_the_formulas(name, multiplications, chain):
    assert counted(name) == (2 * multiplications, chain)


def test_a_loop_counts_by_its_length_and_a_call_by_its_largest_program():
    square = jnp.ones((4, 4))

    def loop(x):
        return jax.lax.scan(lambda x, _: (jax.jit(jnp.matmul)(x, x), None), x, length=5)

    assert count(loop, square) == (5 * 2 * 4**3, 5)

    def branches(x):
        return jax.lax.cond(x.sum() > 0, lambda x: x @ x @ x, lambda x: x, x)

    assert count(branches, square) == (2 * 2 * 4**3, 2)


def test_a_loop_of_unknown_length_is_refused():
    def loop(x):
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x)

    with pytest.raises(ValueError, match="trips"):
        count(loop, jnp.ones((4, 4)))


PATHS = {
    "self-attention": 1, "LSTM": 9, f"convolution, k = {KERNEL}": 8 / (KERNEL - 1),
    f"dilated convolution, k = {KERNEL}": math.log(9, KERNEL), RESTRICTED: 1,
    LINEAR: 1, f"separable convolution, k = {KERNEL}": 8 / (KERNEL - 1),
}  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_paths_are_those_of_table_1(name):
    assert table1.longest_path(LAYERS[name], 9) == pytest.approx(PATHS[name])


def test_the_exponent_of_a_power_is_found():
    assert table1.slope({n: 3 * n**2 for n in (2, 4, 8)}) == pytest.approx(2)


@pytest.mark.slow
def test_it_prints_tables(monkeypatch, capsys):
    monkeypatch.setattr(table1, "LENGTHS", (8, 16))
    monkeypatch.setattr(table1, "WIDTHS", (HEADS, 2 * HEADS))
    monkeypatch.setattr(table1, "PATHS", (9,))
    names = "self-attention", "LSTM"
    monkeypatch.setattr(table1, "LAYERS", {name: LAYERS[name] for name in names})
    assert table1.main(["--repeats=1"]) == 0
    printed = capsys.readouterr().out
    assert "LSTM | n d² | n^1.00, d^2.00 | n | 8, 16 | n | 9 |" in printed
    found = json.loads(printed.splitlines()[-1])["cells"]
    assert len(found) == 2 * 4
    assert all(cell["seconds"] > 0 for cell in found)
