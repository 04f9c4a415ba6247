"""Operations are those that XLA counts, and the largest shape is found."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.data.plan import Shape
from jaxformer.estimates import largest_shape
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.step import TrainStep, init_state
from tests.models.tiny import model_of

SIZES = {  # matrices that outweigh the rest
    "vocab_size": 512, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 32,
    "d_v": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def lower():
    """Lower the train step for a shape of microbatches."""
    optimizer, _ = make_optimizer(
        d_model=128, warmup_steps=4, learning_rate_scale=1.0, beta1=0.9, beta2=0.98,
        epsilon=1e-9, clip_norm=None,
    )  # fmt: skip

    def lower(shape: Shape, *, accumulate: bool, window: int | None = None):
        model = model_of(**SIZES, attention_window=window)
        step = TrainStep(
            model, optimizer, label_smoothing=0.1, ema_decay=None, max_bad_steps=3
        )
        init = functools.partial(init_state, model, optimizer, seed=0, ema=False)
        state = jax.eval_shape(lambda: nn.unbox(init()))
        source, target = (
            jax.ShapeDtypeStruct((shape.rows, length), jnp.int32)
            for length in (shape.source_length, shape.target_length)
        )
        batch = Batch(source, target, source, target)
        return model, state, step.lower(state, batch, accumulate=accumulate)

    return lower


@pytest.mark.parametrize(
    ("shape", "window"), [(Shape(8, 24, 32), None), (Shape(1, 512, 256), 16)]
)
def test_operations_are_those_that_xla_counts(lower, shape, window):
    """At 256 target positions the loop over the logits runs once, as XLA assumes."""
    model, _, lowered = lower(shape, accumulate=False, window=window)
    counted = lowered.cost_analysis()["flops"]
    assert model.flops(*shape) == pytest.approx(counted, rel=0.1)


def test_accumulating_holds_gradients_beside_the_state(lower):
    _, state, lowered = lower(Shape(8, 24, 32), accumulate=True)
    total, same_state, batch, index = lowered.args_info[0]
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.params)]
    assert [leaf.shape for leaf in jax.tree.leaves(total.grads)] == shapes
    assert all(leaf.donated for leaf in jax.tree.leaves(total))
    assert not any(leaf.donated for leaf in jax.tree.leaves((same_state, batch, index)))


def test_the_largest_shape_has_the_longest_rows():
    """Of equal positions: attention grows with the square of a row."""
    shapes = (Shape(64, 32, 32), Shape(16, 128, 128), Shape(32, 64, 64))
    assert largest_shape(model_of(**SIZES), SimpleNamespace(shapes=shapes)) == shapes[1]
