"""Restricted self-attention: its masks, and equation 1 without an array [L, L]."""

import functools
import math
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import EOS, PAD, Batch
from jaxformer.models import local_attention as module
from jaxformer.models.attention import dot_product_attention
from jaxformer.models.local_attention import (
    Neighbourhood,
    local_attention,
    self_attention_mask,
)
from tests.models.tiny import VOCABULARY, model_of, params_of

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
    ("window", "length"),  # of the shortest row that is cut into blocks
    [(1, 64), (64, 192), (65, 192), (200, 600)],
)
def test_rows_twice_as_long_as_what_a_block_sees_are_cut_into_blocks(window, length):
    for n, is_cut in ((length - 1, False), (length, True)):
        mask = self_attention_mask(jnp.ones((1, n)), window=window, is_causal=True)
        assert isinstance(mask, Neighbourhood) == is_cut
    whole = self_attention_mask(jnp.ones((1, 600)), window=None, is_causal=True)
    assert whole.shape == (1, 1, 600, 600)


def segments_of(length: int) -> np.ndarray:
    """Three rows: full, packed and padded, nearly empty: int [3, L]."""
    index = np.arange(length)
    packed = 1 + 3 * index // length
    packed[length - length // 5 :] = 0
    return np.stack([np.ones_like(index), packed, index < 1]).astype(np.int32)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("length", "window"),
    [
        (1, 1), (1, 9), (32, 6), (64, 1), (65, 2), (97, 64), (100, 5), (130, 31),
        (131, 90), (96, 96), (70, 140), (70, 1000),
    ],
)  # fmt: skip
def test_values_and_gradients_are_those_of_equation_1_under_the_mask(
    length, window, is_causal
):
    """For any length and any window; with padding, packing and d_v unlike d_k."""
    segments = segments_of(length)
    near = Neighbourhood(segments, window // 2, is_causal)
    draw = np.random.default_rng(length)

    def normal(size):
        return draw.normal(size=(3, length, 2, size)).astype(np.float32)

    inputs = normal(4), normal(4), normal(6)
    # Outputs at padding have no meaning.
    cotangent = normal(6) * (segments != 0)[:, :, None, None]

    @functools.partial(jax.jit, static_argnums=0)
    def run(function, mask, inputs):
        heads, pull = jax.vjp(lambda *qkv: function(*qkv, mask), *inputs)
        return heads, pull(cotangent)

    heads, gradients = run(local_attention, near, inputs)
    expected, expected_gradients = run(dot_product_attention, near.as_mask(), inputs)
    assert np.isfinite(heads).all()
    is_real = segments != 0
    np.testing.assert_allclose(heads[is_real], expected[is_real], atol=2e-6)
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


def test_a_model_in_blocks_has_the_loss_and_gradients_of_the_masked_one():
    """On a row of three sentences and padding, and on a row of one sentence."""
    model = model_of(layers=2, attention_window=7)  # three on either side
    segments, params = segments_of(90)[[1, 0]], params_of(model)
    draw = np.random.default_rng(1)
    sides = draw.integers(EOS + 1, VOCABULARY, (2, 2, 90), dtype=np.int32)
    batch = Batch(*np.where(segments != 0, sides, PAD), segments, segments)

    def found(*, in_blocks):
        def loss(params):  # a new function, which is traced again
            logits = model.logits(params, batch)
            return jnp.where(segments[..., None] != 0, logits, 0.0).var()

        with mock.patch.object(module, "_is_worth_blocks", return_value=in_blocks):
            traced = jax.jit(jax.value_and_grad(loss)).trace(params)
        assert ("[2,3,38,2,8]" in str(traced.jaxpr)) == in_blocks  # keys beside
        return traced.lower().compile()(params)

    results = found(in_blocks=True), found(in_blocks=False)
    for ours, theirs in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def sizes_in(text: str) -> list[int]:
    """Elements of each array type in a jaxpr or in HLO, such as f32[8,16]."""
    shapes = re.findall(r"\b(?:pred|bool|bf16|[fsui]\d+)\[([\d,]+)\]", text)
    return [math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes]


def programs(side: str, length: int, window: int | None) -> tuple[str, str]:
    """Jaxpr and HLO of a loss's gradient; one side is long."""
    model = model_of(attention_window=window)
    lengths = {"source": 4, "target": 4, side: length}
    source, target = (jax.ShapeDtypeStruct((1, n), "int32") for n in lengths.values())
    batch = Batch(source, target, source, target)

    def loss(params, batch):
        return model.features(params, batch, jax.random.key(0)).hidden.var()

    traced = jax.jit(jax.grad(loss)).trace(params_of(model), batch)
    return str(traced.jaxpr), traced.lower().compile().as_text()


@pytest.mark.parametrize("side", ["source", "target"])
def test_no_array_has_a_number_for_each_pair_of_positions(side):
    length = 2048
    for text in programs(side, length, window=64):
        assert max(sizes_in(text)) < length**2 / 4
    for text in programs(side, length, window=None):
        assert max(sizes_in(text)) >= length**2
