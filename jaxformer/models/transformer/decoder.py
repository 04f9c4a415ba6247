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
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.batch import PAD
from jaxformer.models.layers import ACTIVATIONS, residual, sinusoidal_positions
from jaxformer.models.masks import MASKED
from jaxformer.models.sequence_model import Parameters, pad, resize_ring
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.decoding_weights import (
    LayerWeights,
    Weights,
    decoding_weights,
)
from jaxformer.models.transformer.transformer import SUBLAYERS, Transformer


class Attended(NamedTuple):
    """Keys and values in the layout of batched products."""

    key: jax.Array  # [B, H, K, M]
    value: jax.Array  # [B, H, M, U]


AXES = 3, 2  # M of keys and values


class Memory(NamedTuple):
    """Keys and values of B sources, constant while they are decoded."""

    layers: tuple[Attended, ...]  # M = S
    is_real: jax.Array  # bool [B, S]


Cache = tuple[Attended, ...]  # of each layer; M = P x W, slot first, then hypothesis


@dataclass(frozen=True)
class TransformerDecoder:
    """The Transformer's `jaxformer.models.sequence_model.Decoder`."""

    config: TransformerConfig
    network: Transformer

    def weights(self, params: Parameters) -> Weights:
        return decoding_weights(self.config, params)

    def encode(self, weights: Weights, source: jax.Array) -> Memory:
        ids = source
        if self.config.positions == "learned":  # padding may exceed the table
            ids = source[:, : self.config.max_positions]
        is_real = ids != PAD
        encoded = self.network.apply(
            {"params": weights.params}, ids, is_real.astype(jnp.int32), method="encode"
        )
        x = encoded.reshape(-1, self.config.d_model).T  # [D, B S]
        layers = tuple(
            Attended(*self._heads(layer.cross_memory(x), ids.shape, "kv"))
            for layer in weights.layers
        )
        return self.resize_memory(Memory(layers, is_real), length=source.shape[1])

    def empty_memory(self, *, batch: int, length: int) -> Memory:
        is_real = jnp.zeros((batch, length), bool)
        return Memory(self._zeros(batch, length), is_real)

    def resize_memory(self, memory: Memory, *, length: int) -> Memory:
        def resize(leaf: jax.Array, axis: int) -> jax.Array:
            return pad(leaf, 0, length - leaf.shape[axis], axis=axis)

        return Memory(_each(memory.layers, resize), resize(memory.is_real, 1))

    def empty_cache(self, *, batch: int, width: int, length: int) -> Cache:
        return self._zeros(batch, self._slots(length) * width)

    def resize_cache(
        self, cache: Cache, clock: jax.Array, *, width: int, length: int
    ) -> Cache:
        slots = self._slots(length)

        def resize(leaf: jax.Array, axis: int) -> jax.Array:
            leaf = resize_ring(leaf, clock * width, axis=axis, length=slots * width)
            return jnp.roll(leaf, length % slots * width, axis=axis)

        return _each(cache, resize)

    def step(
        self,
        weights: Weights,
        memory: Memory,
        tokens: jax.Array,
        ages: jax.Array,
        clock: jax.Array,
        ancestors: jax.Array,
        cache: Cache,
    ) -> tuple[jax.Array, Cache]:
        config, params = self.config, weights.params
        batch, width, length = ancestors.shape
        if config.positions == "learned":
            positions = params["position_embedding"]
        else:
            positions = jnp.asarray(sinusoidal_positions(length, config.d_model))
        x = jnp.take(weights.embedding, tokens, axis=0) * config.d_model**0.5
        x = x + positions[ages][:, None]  # [B, W, D]
        x = x.reshape(batch * width, -1).T.astype(config.dtype)  # [D, R]
        self_mask = self._self_mask(ages, clock, ancestors)
        masks = self_mask, memory.is_real[:, None, None, :]  # [B, 1, 1, S]
        index, new_cache = clock % self._slots(length) * width, []
        for layer, *own in zip(weights.layers, memory.layers, cache, strict=True):
            x, past = self._layer(x, layer, *own, index, masks, (batch, width))
            new_cache.append(past)
        if config.norm_first:
            x = self._norm(x, params["decoder"]["norm"])
        logits = jnp.matmul(weights.embedding, x, preferred_element_type=jnp.float32)
        if config.logits_bias:
            logits = logits + params["logits_bias"][:, None]
        return logits.reshape(-1, batch, width), tuple(new_cache)

    def _layer(
        self,
        x: jax.Array,
        layer: LayerWeights,
        source: Attended,
        past: Attended,
        index: jax.Array,
        masks: tuple[jax.Array, jax.Array],
        rows: tuple[int, int],
    ) -> tuple[jax.Array, Attended]:
        """Map x [D, R] to [D, R]; store new keys and values at `index` of the cache."""
        self_mask, cross_mask = masks

        def self_attention(y: jax.Array) -> jax.Array:
            nonlocal past
            query, *new = self._heads(layer.self_input(y), rows, "qkv")
            put = jax.lax.dynamic_update_slice_in_dim
            past = Attended(*map(put, past, new, (index, index), AXES))
            return layer.self_output(_attend(query, past, self_mask))

        def cross_attention(y: jax.Array) -> jax.Array:
            (query,) = self._heads(layer.cross_query(y), rows, "q")
            return layer.cross_output(_attend(query, source, cross_mask))

        def feed_forward(y: jax.Array) -> jax.Array:
            return layer.output(ACTIVATIONS[self.config.activation](layer.hidden(y)))

        functions = {
            "self_attention": self_attention,
            "cross_attention": cross_attention,
            "feed_forward": feed_forward,
        }
        for name in SUBLAYERS["decoder"]:
            norm = functools.partial(self._norm, norm=layer.norms[name])
            x = residual(
                x, functions[name], norm=norm, norm_first=self.config.norm_first
            )
        return x, past

    def _slots(self, length: int) -> int:
        """P, the number of the last L = `length` positions that the newest one sees."""
        if self.config.attention_window is None:
            return length
        return min(length, self.config.attention_window // 2 + 1)

    def _zeros(self, batch: int, size: int) -> Cache:
        config, heads = self.config, self.config.num_heads
        return tuple(
            Attended(
                jnp.zeros((batch, heads, config.d_k, size), config.dtype),
                jnp.zeros((batch, heads, size, config.d_v), config.dtype),
            )
            for _ in range(config.decoder_layers)
        )

    def _self_mask(
        self, ages: jax.Array, clock: jax.Array, ancestors: jax.Array
    ) -> jax.Array:
        """Mask the slots that each hypothesis may see: bool [B, 1, W, P W]."""
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
) -> tuple[Attended, ...]:
    """Apply a function of a leaf and its axis M."""
    return tuple(Attended(*map(function, layer, AXES)) for layer in layers)


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
