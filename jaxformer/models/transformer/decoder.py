"""The decoder of `transformer.py` one position at a time, laid out for speed.

Training multiplies many rows by a matrix, decoding few. Therefore:

- Features are the first axis: x is [D, R] for R = B x W hypotheses and weights are
  [out, in], so a step is W @ x (with 32 rows twice as fast on a CPU as x @ W).
- Queries, keys and values of self-attention are one product; keys and values of the
  source are projected once per sentence.
- The cache is not re-ordered. All W hypotheses attend to the keys of all W, and a mask
  from `ancestors` keeps those of the hypothesis's own past.
- The cache is a ring of P slots, with an attention window r at most r // 2 + 1.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import PAD
from jaxformer.models.layers import ACTIVATIONS, residual, sinusoidal_positions
from jaxformer.models.masks import MASKED
from jaxformer.models.sequence_model import Newest, Parameters, pad, resize_ring
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.transformer import SUBLAYERS, Transformer


class Linear(NamedTuple):
    """A linear map with features first."""

    weight: jax.Array  # [out, in] in the config's dtype
    bias: jax.Array | None  # float32 [out]

    def __call__(self, x: jax.Array) -> jax.Array:  # [in, R] -> [out, R]
        y = self.weight @ x
        return y if self.bias is None else y + self.bias.astype(y.dtype)[:, None]


class Weights(NamedTuple):
    """Parameters, and the matrices of decoding."""

    params: Parameters
    embedding: jax.Array  # [V, D] in the config's dtype
    layers: list[dict[str, Any]]  # of each layer, see `TransformerDecoder._arranged`


class Attended(NamedTuple):
    """Keys and values in the layout of batched products."""

    key: jax.Array  # [B, H, K, M]
    value: jax.Array  # [B, H, M, U]


AXES = 3, 2  # M of keys and values
Cache = list[Attended]  # of each layer; M = P x W, slot first, then hypothesis


class Memory(NamedTuple):
    """Keys and values of B sources, constant while they are decoded."""

    layers: list[Attended]  # M = S
    is_real: jax.Array  # bool [B, S]


@dataclass(frozen=True)
class TransformerDecoder:
    """The Transformer's `jaxformer.models.sequence_model.Decoder`."""

    config: TransformerConfig
    network: Transformer

    def weights(self, params: Parameters) -> Weights:
        stack, layers = params["decoder"], range(self.config.decoder_layers)
        embedding = params["embedding"].astype(self.config.dtype)
        arranged = [self._arranged(stack[f"layer_{n}"]) for n in layers]
        return Weights(params, embedding, arranged)

    def _arranged(self, layer: Mapping[str, Any]) -> dict[str, Any]:
        """Return a layer's `Linear` maps, stacked where inputs are equal, and norms."""
        d_model, heads = self.config.d_model, self.config.num_heads * self.config.d_v
        own, cross, feed = (layer[name] for name in SUBLAYERS["decoder"])

        def linear(inputs: int, *projections: Mapping[str, jax.Array]) -> Linear:
            kernels = [p["kernel"].reshape(inputs, -1).T for p in projections]
            biases = [p["bias"].reshape(-1) for p in projections if "bias" in p]
            weight = jnp.concatenate(kernels).astype(self.config.dtype)
            return Linear(weight, jnp.concatenate(biases) if biases else None)

        return {
            "self_input": linear(d_model, own["query"], own["key"], own["value"]),
            "self_output": linear(heads, own["output"]),
            "cross_query": linear(d_model, cross["query"]),
            "cross_memory": linear(d_model, cross["key"], cross["value"]),
            "cross_output": linear(heads, cross["output"]),
            "hidden": linear(d_model, feed["hidden"]),
            "output": linear(self.config.d_ff, feed["output"]),
            "norms": {
                name: layer[f"{name}_sublayer"]["norm"] for name in SUBLAYERS["decoder"]
            },
        }

    def encode(self, weights: Weights, source: jax.Array) -> Memory:
        ids = source
        if self.config.positions == "learned":  # padding may exceed the table
            ids = source[:, : self.config.max_positions]
        is_real = ids != PAD
        encoded = self.network.apply(
            {"params": weights.params}, ids, is_real.astype(jnp.int32), method="encode"
        )
        x = encoded.reshape(-1, self.config.d_model).T  # [D, B S]
        layers = [
            Attended(*self._heads(layer["cross_memory"](x), ids.shape, "kv"))
            for layer in weights.layers
        ]
        return self.resize_memory(Memory(layers, is_real), length=source.shape[1])

    def resize_memory(self, memory: Memory, *, length: int) -> Memory:
        def resize(leaf: jax.Array, axis: int) -> jax.Array:
            return pad(leaf, 0, length - leaf.shape[axis], axis=axis)

        return Memory(_each(memory.layers, resize), resize(memory.is_real, 1))

    def empty_cache(self, *, batch: int, width: int, length: int) -> Cache:
        config, size = self.config, self._slots(length) * width
        key = jnp.zeros((batch, config.num_heads, config.d_k, size), config.dtype)
        value = jnp.zeros((batch, config.num_heads, size, config.d_v), config.dtype)
        return [Attended(key, value)] * config.decoder_layers

    def resize_cache(
        self, cache: Cache, clock: jax.Array, *, width: int, length: int
    ) -> Cache:
        slots = self._slots(length)

        def resize(leaf: jax.Array, axis: int) -> jax.Array:
            leaf = resize_ring(leaf, clock * width, axis=axis, length=slots * width)
            return jnp.roll(leaf, length % slots * width, axis=axis)

        return _each(cache, resize)

    def step(
        self, weights: Weights, memory: Memory, cache: Cache, newest: Newest
    ) -> tuple[jax.Array, Cache]:
        config, params = self.config, weights.params
        batch, width, length = newest.ancestors.shape
        index = newest.clock % self._slots(length) * width  # of the cache
        self_mask = self._self_mask(newest)
        cross_mask = memory.is_real[:, None, None, :]  # [B, 1, 1, S]

        def apply(
            x: jax.Array, layer: Mapping[str, Any], source: Attended, past: Attended
        ) -> tuple[jax.Array, Attended]:
            """Map x [D, R] to [D, R]; add new keys and values to `past`."""

            def self_attention(y: jax.Array) -> jax.Array:
                nonlocal past
                query, *new = self._heads(layer["self_input"](y), (batch, width), "qkv")
                put = jax.lax.dynamic_update_slice_in_dim
                past = Attended(*map(put, past, new, (index, index), AXES))
                return layer["self_output"](_attend(query, past, self_mask))

            def cross_attention(y: jax.Array) -> jax.Array:
                (query,) = self._heads(layer["cross_query"](y), (batch, width), "q")
                return layer["cross_output"](_attend(query, source, cross_mask))

            def feed_forward(y: jax.Array) -> jax.Array:
                hidden = ACTIVATIONS[config.activation](layer["hidden"](y))
                return layer["output"](hidden)

            functions = self_attention, cross_attention, feed_forward
            for name, function in zip(SUBLAYERS["decoder"], functions, strict=True):
                norm = functools.partial(self._norm, norm=layer["norms"][name])
                x = residual(x, function, norm=norm, norm_first=config.norm_first)
            return x, past

        positions = params.get("position_embedding")
        if positions is None:
            positions = jnp.asarray(sinusoidal_positions(length, config.d_model))
        x = jnp.take(weights.embedding, newest.tokens, axis=0) * config.d_model**0.5
        x = x + positions[newest.ages][:, None]  # [B, W, D]
        x = x.reshape(batch * width, -1).T.astype(config.dtype)  # [D, R]
        new_cache = []
        for each in zip(weights.layers, memory.layers, cache, strict=True):
            x, past = apply(x, *each)
            new_cache.append(past)
        if config.norm_first:
            x = self._norm(x, params["decoder"]["norm"])
        logits = jnp.matmul(weights.embedding, x, preferred_element_type=jnp.float32)
        if config.logits_bias:
            logits = logits + params["logits_bias"][:, None]
        return logits.reshape(-1, batch, width), new_cache

    def _slots(self, length: int) -> int:
        """P, the number of the last L = `length` positions that the newest one sees."""
        window = self.config.attention_window
        return length if window is None else min(length, window // 2 + 1)

    def _self_mask(self, newest: Newest) -> jax.Array:
        """Mask the slots that each hypothesis may see: bool [B, 1, W, P W]."""
        _, ages, clock, ancestors = newest
        batch, width, length = ancestors.shape
        slots = self._slots(length)
        steps_ago = (clock - jnp.arange(slots)) % slots  # [P]
        if slots != length:
            ancestors = jnp.take(ancestors, (clock - steps_ago) % length, axis=2)
        is_past = steps_ago[None, :] <= ages[:, None]  # [B, P]
        writers = jnp.arange(width)[None, None, None]
        is_own = ancestors[..., None] == writers  # [B, W, P, W]
        mask = is_own & is_past[:, None, :, None]
        return mask.reshape(batch, 1, width, slots * width)

    def _heads(
        self, x: jax.Array, rows: tuple[int, int], parts: str
    ) -> list[jax.Array]:
        """Cut x [sum(H size), B L] into heads for each of `parts`, "q", "k" and "v".

        Returns queries [B, H, L, K], keys [B, H, K, L] and values [B, H, L, U].
        """
        heads, start, cut = self.config.num_heads, 0, []
        for part in parts:
            size = self.config.d_v if part == "v" else self.config.d_k
            piece = x[start : start + heads * size].reshape(heads, size, *rows)
            cut.append(piece.transpose((2, 0, 1, 3) if part == "k" else (2, 0, 3, 1)))
            start += heads * size
        return cut

    def _norm(self, x: jax.Array, norm: Mapping[str, jax.Array]) -> jax.Array:
        """Compute `layers.layer_norm` over the first axis of x [D, R]."""
        wide = x.astype(jnp.float32)
        # A product with ones sums faster on a CPU than a reduction of the first axis.
        average = jnp.full((1, len(wide)), 1 / len(wide), jnp.float32)
        mean = average @ wide  # [1, R]
        variance = average @ jnp.square(wide - mean)
        epsilon = self.config.layer_norm_epsilon
        normal = (wide - mean) * jax.lax.rsqrt(variance + epsilon)
        return (normal * norm["scale"][:, None] + norm["bias"][:, None]).astype(x.dtype)


def _each(
    layers: Sequence[Attended], function: Callable[[jax.Array, int], jax.Array]
) -> list[Attended]:
    """Apply a function of a leaf and its axis M."""
    return [Attended(*map(function, layer, AXES)) for layer in layers]


def _attend(query: jax.Array, past: Attended, mask: jax.Array) -> jax.Array:
    """Equation 1 for queries [B, H, W, K]: [H U, B W], features first."""
    query = query * (query.shape[-1] ** -0.5)
    scores = jnp.einsum(
        "bhwk,bhkm->bhwm", query, past.key, preferred_element_type=jnp.float32
    )
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)
    heads = jnp.einsum("bhwm,bhmu->bhwu", weights.astype(past.value.dtype), past.value)
    batch, count, width, size = heads.shape
    return heads.transpose(1, 3, 0, 2).reshape(count * size, batch * width)
