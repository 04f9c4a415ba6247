"""Looks into a forward pass: where each head looks, and what is not finite."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.models.attention import MultiHeadAttention
from jaxformer.models.layers import Sublayer
from jaxformer.models.transformer.transformer import Transformer


def _plain(model: Transformer) -> Transformer:
    """The same without rematerialisation, out of whose traces nothing may be kept."""
    return model.clone(rematerialise=False)


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
        _plain(model).apply(
            {"params": params},
            batch,
            train=True,
            rngs={"dropout": key},
            method="hidden",
        )
    return found


def attention_maps(
    model: Transformer, params: dict, batch: Batch
) -> dict[str, jax.Array]:
    """Where each head looks (section 3.2), of a forward pass without dropout.

    "encoder" f32 [N, B, H, S, S], "decoder" [N, B, H, T, T] and "cross" [N, B, H, T, S]
    for N layers; each row is a query, and sums to one. Row t of the last two is the
    position that predicts target piece t.
    """
    found: dict[str, list[jax.Array]] = {"encoder": [], "decoder": [], "cross": []}

    def watch(function, args, kwargs, context):
        module = context.module
        if isinstance(module, MultiHeadAttention) and context.method_name == "attend":
            stack, _, name = module.path[:3]
            kind = "cross" if name == "cross_attention" else stack
            found[kind].append(module.weights(*args, **kwargs))
        return function(*args, **kwargs)

    with nn.intercept_methods(watch):
        _plain(model).apply({"params": params}, batch, train=False, method="hidden")
    return {kind: jnp.stack(maps) for kind, maps in found.items()}
