"""Operations and activations of the Transformer's train step."""

import numpy as np

from jaxformer.data.plan import Plan, Shape
from jaxformer.models.local_attention import keys_computed
from jaxformer.models.transformer.config import TransformerConfig


def microbatches_by_shape(plan: Plan) -> np.ndarray:
    """Count the microbatches that an epoch has of each shape: int [shapes]."""
    shape_of = plan.row_shapes[plan.microbatch_starts[:-1]]
    return np.bincount(shape_of, minlength=len(plan.shapes))


def flops_per_update(model: TransformerConfig, plan: Plan) -> int:
    """Floating-point operations of an average update, those of matrix products.

    Without those that rematerialisation repeats.
    """
    epoch = sum(
        int(count) * train_flops(model, shape)
        for shape, count in zip(plan.shapes, microbatches_by_shape(plan), strict=True)
    )
    return epoch // plan.updates_per_epoch


def train_flops(model: TransformerConfig, shape: Shape) -> int:
    """Floating-point operations of a microbatch's matrix products, both passes.

    Padding is computed like tokens. A product takes 2 operations for each weight and
    token forward and twice that backward. Arithmetic and not XLA's cost analysis, which
    counts the body of a loop once however often it runs (`projected_loss_sums`).
    """
    rows, s, t = shape
    d, head_pair = model.d_model, model.num_heads * (model.d_k + model.d_v)
    # Self-attention projects every token four times and cross-attention projects the
    # target twice and the source twice: three times d * head_pair for each side.
    layer = 3 * d * head_pair + 2 * d * model.d_ff
    source = s * model.num_layers * layer
    target = t * (model.num_layers * layer + d * model.vocab_size)
    window = model.attention_window
    scores = (
        s * keys_computed(s, window=window, is_causal=False)
        + t * keys_computed(t, window=window, is_causal=True)
        + t * s
    )
    attention = model.num_layers * head_pair * scores
    return 6 * rows * (source + target + attention)


def activations(model: TransformerConfig, shape: Shape) -> int:
    """Numbers that a layer keeps for the backward pass, to compare shapes by."""
    rows, s, t = shape
    projected = model.num_heads * (model.d_k + model.d_v)
    width = 4 * model.d_model + 2 * projected + 2 * model.d_ff
    return rows * ((s + t) * width + model.num_heads * (s * s + t * t + s * t))


def largest_shape(model: TransformerConfig, plan: Plan) -> Shape:
    """The shape of a plan that takes most memory."""
    return max(plan.shapes, key=lambda shape: activations(model, shape))
