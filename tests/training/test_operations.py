"""Operations are those that XLA counts, and the largest shape is found."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.data.plan import Shape
from jaxformer.estimates import largest_shape
from tests.models.tiny import model_of
from tests.training.setups import init_of, optimizer_of, step_of

SIZES = {  # matrices that outweigh the rest
    "vocab_size": 512, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 32,
    "d_v": 32,
}  # fmt: skip


def lower(model, shape, *, accumulate):
    """Lower the train step for a shape of microbatches; returns the state, too."""
    optimizer, _ = optimizer_of(d_model=128)
    state = jax.eval_shape(lambda: nn.unbox(init_of(model, optimizer)()))
    rows, *lengths = shape
    sides = [jax.ShapeDtypeStruct((rows, length), jnp.int32) for length in lengths]
    batch = Batch(*sides, *sides)
    lowered = step_of(model, optimizer).lower(state, batch, accumulate=accumulate)
    return state, lowered


@pytest.mark.parametrize(
    ("shape", "window"), [(Shape(8, 24, 32), None), (Shape(1, 512, 256), 16)]
)
def test_operations_are_those_that_xla_counts(shape, window):
    """At 256 target positions the loop over the logits runs once, as XLA assumes."""
    model = model_of(**SIZES, attention_window=window)
    _, lowered = lower(model, shape, accumulate=False)
    counted = lowered.cost_analysis()["flops"]
    assert model.flops(*shape) == pytest.approx(counted, rel=0.1)


def test_accumulating_holds_gradients_beside_the_state():
    state, lowered = lower(model_of(**SIZES), Shape(8, 24, 32), accumulate=True)
    total, *others = lowered.args_info[0]
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.params)]
    assert [leaf.shape for leaf in jax.tree.leaves(total.grads)] == shapes
    assert all(leaf.donated for leaf in jax.tree.leaves(total))
    assert not any(leaf.donated for leaf in jax.tree.leaves(others))


def test_the_largest_shape_has_the_longest_rows():
    """Of equal positions: attention grows with the square of a row."""
    shapes = (Shape(64, 32, 32), Shape(16, 128, 128), Shape(32, 64, 64))
    assert largest_shape(model_of(**SIZES), SimpleNamespace(shapes=shapes)) == shapes[1]
