"""Restricted self-attention: its masks, and equation 1 without an array [L, L]."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.models.kernels.attention import attend
from jaxformer.models.local_attention import (
    Neighbourhood,
    keys_computed,
    local_attention,
    self_attention_mask,
)
from tests.models.tiny import model_of, params_of

BAND = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
BLOCKS = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("segments", "window", "expected"),
    [
        ([1, 1, 1, 1], 1, np.eye(4)),
        ([1, 1, 1, 1], 2, BAND),
        ([1, 1, 1, 1], 3, BAND),
        ([1, 1, 1, 1], 8, np.ones((4, 4))),
        ([1, 1, 1, 1], 1000, np.ones((4, 4))),
        ([1, 1, 1, 1], None, np.ones((4, 4))),
        ([1, 1, 2, 0], 5, BLOCKS),
    ],
)
def test_masks(segments, window, expected):
    for is_causal in (False, True):
        ids = jnp.array([segments])
        mask = self_attention_mask(ids, window=window, is_causal=is_causal)
        wanted = np.tril(expected) if is_causal else expected
        np.testing.assert_array_equal(mask[0, 0], wanted)


@pytest.mark.parametrize(
    ("window", "length", "keys"),  # of the shortest row that is cut into blocks
    [(1, 64, 32), (64, 192, 64), (65, 192, 64), (200, 600, 200)],
)
def test_rows_twice_as_long_as_what_a_block_sees_are_cut(window, length, keys):
    for n, expected in ((length - 1, length - 1), (length, keys)):
        how = {"window": window, "is_causal": True}
        mask = self_attention_mask(jnp.ones((1, n), int), **how)
        assert isinstance(mask, Neighbourhood) == (n == length)
        assert keys_computed(n, **how) == expected


def segments_of(length: int) -> np.ndarray:
    """Three rows: full, packed and padded, nearly empty: int [3, L]."""
    index = np.arange(length)
    packed = 1 + 3 * index // length
    packed[length - length // 5 :] = 0
    return np.stack([np.ones_like(index), packed, index < 1]).astype(np.int32)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("length", "window"),
    [(1, 9), (97, 64), (100, 5), (70, 140)],
)
def test_values_and_gradients_are_those_of_equation_1_under_the_mask(
    length, window, is_causal
):
    """For any length and any window; with padding, packing and d_v unlike d_k."""
    segments, draw = segments_of(length), np.random.default_rng(length)
    near = Neighbourhood(segments, window // 2, is_causal)
    *inputs, cotangent = (
        draw.normal(size=(3, length, 2, size)).astype(np.float32)
        for size in (4, 4, 6, 6)
    )
    is_real = (segments != 0)[:, :, None, None]  # outputs at padding have no meaning

    @jax.jit
    def run(mask):
        heads, pull = jax.vjp(lambda *qkv: attend(*qkv, mask), *inputs)
        return heads, *pull(cotangent * is_real)

    heads, *gradients = run(near)
    expected, *expected_gradients = run(near.as_mask())
    assert np.isfinite(heads).all()
    np.testing.assert_allclose(heads * is_real, expected * is_real, atol=2e-6)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-6)


def test_bfloat16_stays_bfloat16_and_near():
    draw = np.random.default_rng(0)
    qkv = [jnp.asarray(draw.normal(size=(1, 80, 2, 4)), "bfloat16") for _ in range(3)]
    near = Neighbourhood(jnp.ones((1, 80), int), 3, False)
    heads = local_attention(*qkv, near)
    assert heads.dtype == jnp.bfloat16
    wide = [leaf.astype("float32") for leaf in qkv]
    np.testing.assert_allclose(heads, local_attention(*wide, near), atol=0.03)


def sizes_in(text: str) -> list[int]:
    """Elements of each array type in a jaxpr or in HLO, such as f32[8,16]."""
    shapes = re.findall(r"\b(?:pred|bool|bf16|[fsui]\d+)\[([\d,]+)\]", text)
    return [math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes]


@pytest.mark.parametrize("lengths", [(2048, 4), (4, 2048)])
@pytest.mark.parametrize("window", [64, None])
def test_no_array_has_a_number_for_each_pair_of_positions(window, lengths):
    """In the jaxpr and the HLO of a loss's gradient; one side is long."""
    model = model_of(attention_window=window)
    source, target = (jax.ShapeDtypeStruct((1, n), "int32") for n in lengths)

    def loss(params, batch):
        return model.features(params, batch, jax.random.key(0)).hidden.var()

    batch = Batch(source, target, source, target)
    traced = jax.jit(jax.grad(loss)).trace(params_of(model), batch)
    for text in (str(traced.jaxpr), traced.lower().compile().as_text()):
        largest = max(sizes_in(text))
        assert largest >= 2048**2 if window is None else largest < 2048**2 / 4
