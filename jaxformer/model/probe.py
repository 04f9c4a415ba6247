"""Looks into a forward pass: which sub-layer's output is the first not finite."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.model.layers import Sublayer
from jaxformer.model.transformer import Transformer


def are_finite_outputs(
    model: Transformer, params: dict, batch: Batch, key: jax.Array
) -> dict[str, jax.Array]:
    """Whether the output of each sub-layer is finite in training, in forward order.

    Names such as "decoder/layer_0/cross_attention", each with a bool []. `key` is that
    of dropout.
    """
    found = {}

    def watch(function, args, kwargs, context):
        output = function(*args, **kwargs)
        if isinstance(context.module, Sublayer) and context.method_name == "__call__":
            name = "/".join(context.module.path).removesuffix("_sublayer")
            found[name] = jnp.isfinite(output).all()
        return output

    with nn.intercept_methods(watch):
        model.apply(
            {"params": params},
            batch,
            train=True,
            rngs={"dropout": key},
            method="hidden",
        )
    return found
