"""The layers of the base model as one long program, and as a loop: for startup.py.

Both apply the same functions to the same parameters: unrolled, as training does, one
layer's operations follow another's; scanned, the parameters of all layers are stacked
and `jax.lax.scan` runs one layer's program over them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from configs import wmt_base
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.transformer import Layer as Module

Layer = Callable[[Any, jax.Array, jax.Array], jax.Array]  # params, x, key -> x


def config_of(**changes: int) -> TransformerConfig:
    """The base model in float32, with some sizes changed."""
    values = wmt_base.get_config().model.to_dict()
    return TransformerConfig(**values | {"dtype": "float32"} | changes)


def unrolled(layer: Layer, params: Any, x: jax.Array, keys: jax.Array) -> jax.Array:
    """Apply the layers one by one; params [N, ...] stacked, keys [N]."""
    for number in range(len(keys)):
        x = layer(jax.tree.map(lambda p, i=number: p[i], params), x, keys[number])
    return x


def scanned(layer: Layer, params: Any, x: jax.Array, keys: jax.Array) -> jax.Array:
    """Apply the layers in a loop of the program."""

    def body(x: jax.Array, each: tuple) -> tuple[jax.Array, None]:
        return layer(each[0], x, each[1]), None

    return jax.lax.scan(body, x, (params, keys))[0]


def gradients_of(
    run: Callable, config: TransformerConfig, rows: int, length: int
) -> tuple[Callable, tuple]:
    """A function of arguments, and these: gradients through both stacks, dropout on."""
    encoder, decoder = Module(config, "encoder"), Module(config, "decoder")
    x = jax.random.normal(jax.random.key(0), (rows, length, config.d_model))
    mask = jnp.ones((rows, 1, length, length), bool)
    causal = jnp.tril(mask)
    keys = jax.random.split(jax.random.key(1), config.encoder_layers)

    def encode(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        variables = {"params": params}
        return encoder.apply(variables, x, mask, train=True, rngs={"dropout": key})

    def loss(params: tuple, x: jax.Array) -> jax.Array:
        memory = run(encode, params[0], x, keys)

        def decode(params: Any, y: jax.Array, key: jax.Array) -> jax.Array:
            return decoder.apply(
                {"params": params}, y, causal, memory, mask, train=True,
                rngs={"dropout": key},
            )  # fmt: skip

        return jnp.square(run(decode, params[1], x, keys)).sum()

    def born(module: Any, *inputs: jax.Array) -> Any:
        def one(key: jax.Array) -> Any:
            return nn.unbox(module.init(key, *inputs, train=False)["params"])

        return jax.jit(jax.vmap(one))(keys)

    params = born(encoder, x, mask), born(decoder, x, causal, x, mask)
    return jax.jit(jax.grad(loss)), (params, x)
