"""What all models share: the logits of a step."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.sequence_model import product_blocks, step_logits

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize(("vocabulary", "blocks"), [(520, 13), (521, 1)])
def test_logits_of_a_step_are_a_product_whether_the_blocks_are_whole_or_not(
    vocabulary, blocks
):
    shapes = (vocabulary, 4), (4, 3), (vocabulary,)
    table, x, bias = (np.float32(DRAW.normal(size=shape)) for shape in shapes)
    assert product_blocks(vocabulary) == blocks
    found = step_logits(*map(jnp.asarray, (table, x, bias)))
    np.testing.assert_allclose(found, table @ x + bias[:, None], rtol=1e-5, atol=1e-5)
