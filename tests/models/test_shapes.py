"""Annotations of arrays raise where a shape or a dtype is another one."""

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.search import length_penalty
from jaxformer.models.attention import dot_product_attention
from jaxformer.models.layers import residual
from jaxformer.models.masks import segment_mask
from jaxformer.models.sequence_model import Newest
from jaxformer.models.transformer.ring import steps_ago
from tests.models.tiny import model_of

HEADS = jnp.zeros((2, 3, 4, 8))
TOKENS = jnp.zeros((2, 3), jnp.int32)
NEWEST = Newest(TOKENS, TOKENS[:, 0], jnp.int32(0), jnp.zeros((2, 3, 5), jnp.int32))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (dot_product_attention, (HEADS, HEADS[..., :7], HEADS)),  # head sizes
        (dot_product_attention, (HEADS, HEADS, HEADS, HEADS > 0)),  # mask
        (segment_mask, (TOKENS, TOKENS[:1])),  # rows
        (segment_mask, (TOKENS, TOKENS.astype(float))),  # dtype
        (segment_mask, (np.zeros((2, 3), int), np.zeros(3, int))),  # of NumPy
        (steps_ago, (NEWEST._replace(ages=TOKENS), 4)),  # field of a tuple
        (model_of().logits, ({}, {"source": TOKENS})),  # not a batch
        (length_penalty, (TOKENS > 0, SearchOptions(beam_size=1, alpha=0.6))),
    ],
)
def test_a_wrong_argument_raises(function, arguments):
    with pytest.raises(TypeCheckError):
        function(*arguments)


def test_a_wrong_result_raises():
    def same(x):
        return x

    with pytest.raises(TypeCheckError, match="return value"):
        residual(HEADS[:1], lambda _: HEADS, norm=same, norm_first=True)
