"""The decoder of `transformer.py` one position at a time, laid out for speed.

Training multiplies many rows by a matrix, decoding few. Therefore:

- Features are the first axis: x is [D, R] for R = B x W hypotheses and weights are
  [out, in], so a step is W @ x (with 32 rows twice as fast on a CPU as x @ W).
- Queries, keys and values of self-attention are one product; keys and values of the
  source are projected once per sentence.
- The layouts of keys, values and queries are those of `cached_attention`.
- The cache is not re-ordered. All W hypotheses attend to the keys of all W, and a mask
  from `ancestors` keeps those of the hypothesis's own past.
- The cache is a ring of P slots, with an attention window r at most r // 2 + 1.
- The cache of an SSRU is its state, which is re-ordered: it is no larger than x.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, PyTree

from jaxformer.models.arrays import AnyArray, Columns, Floats, Ids, Integer, Table
from jaxformer.models.kernels.mixed_precision import transposed
from jaxformer.models.kernels.norm import mean_and_variance
from jaxformer.models.layers import ACTIVATIONS, residual
from jaxformer.models.linen_model import LinenModel
from jaxformer.models.positions import position_table
from jaxformer.models.sequence_model import (
    Newest,
    Parameters,
    pad,
    resize_ring,
    step_logits,
)
from jaxformer.models.ssru import next_state
from jaxformer.models.transformer.cached_attention import (
    AllHeads,
    Attended,
    Change,
    EachHead,
    cached_attention,
)
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.ring import (
    rotate_newest,
    self_mask,
    state_before,
    vectors_of_slots,
)
from jaxformer.models.transformer.transformer import Transformer
from jaxformer.tokens import BOS, EOS, PAD


class DecodingLinear(NamedTuple):
    """A linear map with features first, whose factors have the weight's type."""

    weight: Float[Array, "out in"]  # in the config's dtype
    bias: Float[Array, " out"] | None  # in the type of activations

    def __call__(self, x: Float[Array, "in R"]) -> Float[Array, "out R"]:
        factor = x.astype(self.weight.dtype)
        y = jnp.matmul(self.weight, factor, preferred_element_type=x.dtype)
        return y if self.bias is None else y + self.bias[:, None]


Arranged = dict[str, DecodingLinear | tuple | PyTree[Float32[Array, " D"]]]
State = Float32[Array, "B W D"]  # of an SSRU
Cache = list[Attended | State]  # of each layer; M = P x W, slot first, then hypothesis


class TransformerWeights(NamedTuple):
    """Parameters, and the matrices of decoding."""

    params: Parameters  # the encoder's matrices in the config's dtype
    embedding: Table  # in the config's dtype, of targets
    output: Table | None  # None: it is the embedding
    layers: list[Arranged]  # see `TransformerDecoder._arranged`


class TransformerMemory(NamedTuple):
    """Keys and values of B sources, constant while they are decoded."""

    layers: list[Attended]  # M = S
    is_real: Bool[Array, "B S"]


@dataclass(frozen=True)
class TransformerDecoder:
    """The Transformer's `jaxformer.models.sequence_model.Decoder`."""

    config: TransformerConfig
    network: Transformer
    model: LinenModel  # which encodes

    def weights(self, params: Parameters) -> TransformerWeights:
        stack, layers = params["decoder"], range(self.config.decoder_layers)

        def cast(leaf: Floats) -> Floats:
            return leaf.astype(self.config.dtype)

        def as_multiplied(path: tuple, leaf: Floats) -> Floats:
            return cast(leaf) if path[-1].key == "kernel" else leaf

        encoder = jax.tree.map_with_path(as_multiplied, params["encoder"])
        return TransformerWeights(
            {**params, "encoder": encoder},
            cast(params["embedding"]),
            jax.tree.map(cast, params.get("output_embedding")),
            [self._arranged(stack[f"layer_{n}"]) for n in layers],
        )

    def _arranged(self, layer: Mapping[str, Parameters]) -> Arranged:
        """Return a layer's maps, stacked where inputs are equal, and its norms."""
        d_model, heads = self.config.d_model, self.config.num_heads * self.config.d_v
        names, has_ssru = self.config.sublayers("decoder"), self.config.has_ssru
        own, cross, feed = (layer[name] for name in names)
        of_self = ("forget", "value") if has_ssru else ("query", "key", "value")
        relative = own.get("relative_key"), own.get("relative_value")

        def linear(
            inputs: int, *projections: Mapping[str, Float[Array, "..."]]
        ) -> DecodingLinear:
            kernels = [p["kernel"].reshape(inputs, -1).T for p in projections]
            weight = jnp.concatenate(kernels).astype(self.config.dtype)
            if not any("bias" in p for p in projections):
                return DecodingLinear(weight, None)
            biases = [
                p["bias"].reshape(-1) if "bias" in p else jnp.zeros(len(kernel))
                for p, kernel in zip(projections, kernels, strict=True)
            ]
            biases = jnp.concatenate(biases).astype(self.network.activation_dtype)
            return DecodingLinear(weight, biases)

        return {
            "self_input": linear(d_model, *(own[name] for name in of_self)),
            "self_output": None if has_ssru else linear(heads, own["output"]),
            "cross_query": linear(d_model, cross["query"]),
            "cross_memory": linear(d_model, cross["key"], cross["value"]),
            "cross_output": linear(heads, cross["output"]),
            "hidden": linear(d_model, feed["hidden"]),
            "output": linear(self.config.d_ff, feed["output"]),
            "relative": jax.tree.map(
                lambda table: table.astype(self.network.activation_dtype), relative
            ),
            "norms": {name: layer[f"{name}_sublayer"]["norm"] for name in names},
        }

    def encode(self, weights: TransformerWeights, source: Ids) -> TransformerMemory:
        states = self.model.encode(weights.params, source).states
        x = self._features_first(states.reshape(-1, self.config.d_model))
        layers = []
        for layer in weights.layers:
            both = jnp.split(layer["cross_memory"](x), [self._query_size])
            layers.append(self._attention.attended(*both, len(source)))
        return TransformerMemory(layers, source != PAD)

    def resize_memory(
        self, memory: TransformerMemory, *, length: int
    ) -> TransformerMemory:
        def resize(leaf: AnyArray, axis: int) -> AnyArray:
            return pad(leaf, 0, length - leaf.shape[axis], axis=axis)

        return TransformerMemory(
            self._each(memory.layers, resize), resize(memory.is_real, 1)
        )

    def empty_cache(self, *, batch: int, width: int, length: int) -> Cache:
        config, slots = self.config, self._slots(length)
        if config.has_ssru:
            return [jnp.zeros((batch, width, config.d_model))] * config.decoder_layers
        empty = self._attention.empty(batch, slots, width, config.d_k, config.d_v)
        empty = jax.tree.map(
            lambda leaf: leaf.astype(self.network.activation_dtype), empty
        )
        return [empty] * config.decoder_layers

    def resize_cache(
        self, cache: Cache, clock: Integer, *, width: int, length: int
    ) -> Cache:
        if self.config.has_ssru:
            return cache
        slots = self._slots(length)

        def resize(leaf: AnyArray, axis: int) -> AnyArray:
            leaf = resize_ring(leaf, clock * width, axis=axis, length=slots * width)
            return jnp.roll(leaf, length % slots * width, axis=axis)

        return self._each(cache, resize, width)

    def step(
        self,
        weights: TransformerWeights,
        memory: TransformerMemory,
        cache: Cache,
        newest: Newest,
    ) -> tuple[Float32[Array, "V B W"], Cache]:
        config, params = self.config, weights.params
        batch, width, length = newest.ancestors.shape
        slots = self._slots(length)
        index = newest.clock % slots * width  # of the cache
        attention, cut = self._attention, self._query_size
        names = config.sublayers("decoder")
        past_mask = None
        if not config.has_ssru:
            past_mask = attention.shared(self_mask(newest, slots), newest.clock)
        cross_mask = memory.is_real[:, None, :]  # [B, 1, S]

        def apply(
            x: Columns, layer: Arranged, source: Attended, past: Attended | State
        ) -> tuple[Columns, Attended | State]:
            """Apply a layer; add new keys and values to `past`, or renew the state."""

            def self_attention(y: Columns) -> Columns:
                nonlocal past
                query, key, value = jnp.split(layer["self_input"](y), [cut, 2 * cut])
                if config.positions == "rotary":
                    query, key = (
                        rotate_newest(each, newest, config.d_k) for each in (query, key)
                    )
                new = attention.attended(key, value, batch)
                past = attention.put(past, new, index)
                operands = attention.query(query, batch), past, past_mask
                if config.positions == "relative":
                    of_slots = vectors_of_slots(layer["relative"], newest, slots)
                    return layer["self_output"](attention.attend(*operands, of_slots))
                return layer["self_output"](attention.attend(*operands))

            def ssru(y: Columns) -> Columns:
                nonlocal past
                rows = layer["self_input"](y).T.reshape(batch, width, -1)
                forget, value = jnp.split(rows.astype(jnp.float32), 2, axis=2)
                before = state_before(past, newest)
                past = next_state(jax.nn.sigmoid(forget), value, before)
                return self._features_first(
                    jax.nn.relu(past).reshape(batch * width, -1).astype(y.dtype)
                )

            def cross_attention(y: Columns) -> Columns:
                query = attention.query(layer["cross_query"](y), batch)
                heads = attention.attend(query, source, cross_mask)
                return layer["cross_output"](heads)

            def feed_forward(y: Columns) -> Columns:
                hidden = ACTIVATIONS[config.activation](layer["hidden"](y))
                return layer["output"](hidden)

            own = ssru if config.has_ssru else self_attention
            functions = own, cross_attention, feed_forward
            for name, function in zip(names, functions, strict=True):
                norm = functools.partial(self._norm, norm=layer["norms"][name])
                x = residual(x, function, norm=norm, norm_first=config.norm_first)
            return x, past

        dtype, first = self.network.activation_dtype, config.first_input
        table = weights.embedding
        table = table if table.dtype == dtype else params["embedding"]
        tokens, is_first = newest.tokens, newest.tokens == BOS
        tokens = jnp.where(is_first, EOS, tokens) if first == "eos" else tokens
        x = jnp.take(table, tokens, axis=0) * jnp.float32(config.embedding_scale)
        x = jnp.where(is_first[..., None], 0.0, x) if first == "zeros" else x
        if config.adds_positions:
            positions = params.get("position_embedding")
            if positions is None:
                table = position_table(config.positions, length, config.d_model)
                positions = jnp.asarray(table)
            x = x + positions[newest.ages][:, None]  # [B, W, D]
        x = self._features_first(x.reshape(batch * width, -1).astype(dtype))
        new_cache = []
        for each in zip(weights.layers, memory.layers, cache, strict=True):
            x, past = apply(x, *each)
            new_cache.append(past)
        if config.norm_first:
            x = self._norm(x, params["decoder"]["norm"])
        table = weights.embedding if weights.output is None else weights.output
        logits = step_logits(table, x, params.get("logits_bias"))
        return logits.reshape(-1, batch, width), new_cache

    @property
    def _attention(self) -> EachHead | AllHeads:
        heads = self.config.num_heads
        is_relative = self.config.positions == "relative"
        return EachHead(heads) if is_relative else cached_attention(heads)

    @property
    def _query_size(self) -> int:
        return self.config.num_heads * self.config.d_k

    def _each(
        self, layers: Sequence[Attended], change: Change, width: int | None = None
    ) -> list[Attended]:
        """Change M of all layers; `width` is that of a cache."""
        return [self._attention.changed(each, change, width) for each in layers]

    def _slots(self, length: int) -> int:
        """P, the number of the last L = `length` positions that the newest one sees."""
        window = self.config.attention_window
        return length if window is None else min(length, window // 2 + 1)

    def _features_first(self, x: Float[Array, "R D"]) -> Columns:
        # All arrays of [D, R] computed from x get its layout, see `mixed_precision`.
        is_mixed = self.config.dtype != self.network.activation_dtype
        return transposed(x) if is_mixed else x.T

    def _norm(self, x: Columns, norm: Mapping[str, Float32[Array, " D"]]) -> Columns:
        """Compute `layers.layer_norm` over the first axis."""
        wide = x.astype(jnp.float32)
        mean, variance = mean_and_variance(wide)
        epsilon = self.config.layer_norm_epsilon
        normal = (wide - mean) * jax.lax.rsqrt(variance + epsilon)
        return (normal * norm["scale"][:, None] + norm["bias"][:, None]).astype(x.dtype)
