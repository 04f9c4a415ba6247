"""The decoder of `transformer.py` one position at a time, laid out for speed.

Training multiplies many rows by a matrix, decoding a few. What is fast there:

- Features come first: x is [D, R] for R = B x W hypotheses, and every weight is stored
  [out, in], so a step is W @ x (with 32 rows twice as fast on a CPU as x @ W).
- Queries, keys and values of self-attention are one product; keys and values of the
  source are projected once a sentence.
- The cache never moves. A hypothesis does not own its past: `ancestors` says which of
  the W hypotheses of its sentence wrote each position. All W attend to the keys of all
  W and a mask keeps the ancestors, which costs less than re-ordering the cache.
- The cache is a ring of L positions with one clock for all rows. Rows may have started
  at different times: position p of a row that is `age` tokens old was written age - p
  steps ago, whatever the others did. With an attention window r the ring has no more
  than the r // 2 + 1 places that a position sees, and so nothing else to mask.

The numbers are those of teacher forcing with `Transformer.__call__` (tests/models/
test_decode.py). Used by `jaxformer.decoding`. U is the head size of values (d_v).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.models.layers import (
    ACTIVATIONS,
    embedding_scale,
    sinusoidal_positions,
)
from jaxformer.models.local_attention import reach_of
from jaxformer.models.masks import MASKED
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.decoding_weights import (
    DecodingWeights,
    LayerWeights,
    Linear,
    Norm,
)


class Attended(NamedTuple):
    """Keys and values where a batched product wants them."""

    key: jax.Array  # [B, H, K, M]
    value: jax.Array  # [B, H, M, U]


class Memory(NamedTuple):
    """What every step needs of B sources; constant while they are decoded."""

    layers: tuple[Attended, ...]  # M = S
    is_real: jax.Array  # bool [B, S]


# One a layer; M = P x W, position first, then hypothesis, of a ring of P places.
Cache = tuple[Attended, ...]


def project_memory(
    config: TransformerConfig,
    weights: DecodingWeights,
    encoded: jax.Array,
    is_real: jax.Array,
) -> Memory:
    """Keys and values of encoded sources [B, S, D]; is_real bool [B, S]."""
    batch, length, d_model = encoded.shape
    x = encoded.reshape(-1, d_model).T  # [D, B S]
    sizes = (config.d_k, config.d_v)

    def attended(layer: LayerWeights) -> Attended:
        parts = _heads(_apply(layer.cross_memory, x), config, sizes, (batch, length))
        return _as_attended(*parts)

    return Memory(tuple(map(attended, weights.layers)), is_real)


def empty_memory(config: TransformerConfig, *, batch: int, length: int) -> Memory:
    """Room for `batch` sources of `length` pieces."""
    layers = _room(config, batch, length)
    return Memory(layers, jnp.zeros((batch, length), bool))


def resize_memory(memory: Memory, *, length: int) -> Memory:
    """Cut or pad the sources to `length` pieces; what is cut must be padding."""

    def resize(leaf: jax.Array, axis: int) -> jax.Array:
        leaf = jax.lax.slice_in_dim(leaf, 0, min(length, leaf.shape[axis]), axis=axis)
        widths = [(0, 0)] * leaf.ndim
        widths[axis] = (0, length - leaf.shape[axis])
        return jnp.pad(leaf, widths)

    return Memory(
        tuple(Attended(resize(a.key, 3), resize(a.value, 2)) for a in memory.layers),
        resize(memory.is_real, 1),
    )


def empty_cache(
    config: TransformerConfig, *, batch: int, width: int, length: int
) -> Cache:
    """Room for `length` positions of batch x width hypotheses."""
    return _room(config, batch, _places(config, length) * width)


def _places(config: TransformerConfig, length: int) -> int:
    """P: of L = `length` positions those that the newest one sees, itself included."""
    if config.attention_window is None:
        return length
    return min(length, reach_of(config.attention_window) + 1)


def _room(config: TransformerConfig, batch: int, places: int) -> Cache:
    dtype, heads = jnp.dtype(config.dtype), config.num_heads
    return tuple(
        Attended(
            jnp.zeros((batch, heads, config.d_k, places), dtype),
            jnp.zeros((batch, heads, places, config.d_v), dtype),
        )
        for _ in range(config.num_layers)
    )


def resize_cache(
    config: TransformerConfig,
    cache: Cache,
    clock: jax.Array,
    *,
    width: int,
    length: int,
) -> Cache:
    """Move a ring whose newest is at clock - 1 into one for L = `length` positions.

    The newest comes to where it is when the clock stands at `length`; what is older
    than `length` steps is lost.
    """
    places = _places(config, length)

    def resize(leaf: jax.Array, axis: int) -> jax.Array:
        leaf = resize_ring(leaf, clock * width, axis=axis, length=places * width)
        return jnp.roll(leaf, length % places * width, axis=axis)

    return tuple(Attended(resize(a.key, 3), resize(a.value, 2)) for a in cache)


def resize_ring(
    ring: jax.Array, clock: jax.Array, *, axis: int, length: int
) -> jax.Array:
    """Turn `ring` so that its newest entry, at clock - 1, is last; cut or pad it."""
    ring = jnp.roll(ring, -clock, axis=axis)  # the oldest first
    old = ring.shape[axis]
    if length <= old:
        return jax.lax.slice_in_dim(ring, old - length, old, axis=axis)
    widths = [(0, 0)] * ring.ndim
    widths[axis] = (length - old, 0)
    return jnp.pad(ring, widths)


def decode_step(
    config: TransformerConfig,
    weights: DecodingWeights,
    memory: Memory,
    cache: Cache,
    *,
    tokens: jax.Array,
    ages: jax.Array,
    clock: jax.Array,
    ancestors: jax.Array,
) -> tuple[jax.Array, Cache]:
    """Score the piece after `tokens`, the newest of each hypothesis.

    tokens int [B, W] (BOS at age 0); ages int [B], how many tokens each row's
    hypotheses have; clock int [], the number of this step; ancestors int [B, W, L],
    which hypothesis wrote at each step for each hypothesis, step t at place t mod L,
    this step included. Returns float32 logits [V, B, W], and the cache with this step
    at place clock mod P.
    """
    batch, width, length = ancestors.shape
    places = _places(config, length)
    place = clock % places
    own_mask = _own_mask(ages, clock, ancestors, places)
    cross_mask = memory.is_real[:, None, None, :]  # [B, 1, 1, S]
    sizes = (config.d_k, config.d_k, config.d_v)
    rows = (batch, width)
    activation = ACTIVATIONS[config.activation]

    x = jnp.take(weights.embedding, tokens.reshape(-1), axis=0)  # [R, D]
    x = x * embedding_scale(config.d_model)
    positions = weights.positions
    if positions is None:
        positions = jnp.asarray(sinusoidal_positions(length, config.d_model))
    x = x.reshape(batch, width, -1) + positions[ages][:, None]  # [B, W, D]
    x = x.reshape(batch * width, -1).T.astype(config.dtype)  # [D, R]
    new_cache = []
    for layer, source, past in zip(weights.layers, memory.layers, cache, strict=True):

        def self_attention(
            y: jax.Array, layer: LayerWeights = layer, past: Attended = past
        ) -> jax.Array:
            projected = _heads(_apply(layer.self_input, y), config, sizes, rows)
            query, new = projected[0], _as_attended(*projected[1:])
            past = Attended(
                jax.lax.dynamic_update_slice_in_dim(
                    past.key, new.key, place * width, axis=3
                ),
                jax.lax.dynamic_update_slice_in_dim(
                    past.value, new.value, place * width, axis=2
                ),
            )
            new_cache.append(past)
            return _apply(layer.self_output, _attend(query, past, own_mask))

        def cross_attention(
            y: jax.Array, layer: LayerWeights = layer, source: Attended = source
        ) -> jax.Array:
            (query,) = _heads(_apply(layer.cross_query, y), config, (config.d_k,), rows)
            return _apply(layer.cross_output, _attend(query, source, cross_mask))

        def feed_forward(y: jax.Array, layer: LayerWeights = layer) -> jax.Array:
            return _apply(layer.output, activation(_apply(layer.hidden, y)))

        for norm, function in zip(
            layer.norms, (self_attention, cross_attention, feed_forward), strict=True
        ):
            x = _sublayer(config, norm, x, function)
    if weights.norm is not None:
        x = _layer_norm(config, x, weights.norm)
    logits = jnp.matmul(weights.embedding, x, preferred_element_type=jnp.float32)
    if weights.logits_bias is not None:
        logits = logits + weights.logits_bias[:, None]
    return logits.reshape(-1, batch, width), tuple(new_cache)


def _own_mask(
    ages: jax.Array, clock: jax.Array, ancestors: jax.Array, places: int
) -> jax.Array:
    """Which places of the ring each hypothesis may see: bool [B, 1, W, P W]."""
    batch, width, length = ancestors.shape
    steps_ago = (clock - jnp.arange(places)) % places  # [P]
    if places != length:
        ancestors = jnp.take(ancestors, (clock - steps_ago) % length, axis=2)
    is_past = steps_ago[None, :] <= ages[:, None]  # [B, P]
    writers = jnp.arange(width)
    is_own = ancestors[..., None] == writers[None, None, None]  # [B, W, P, W]
    mask = is_own & is_past[:, None, :, None]
    return mask.reshape(batch, 1, width, places * width)


def _sublayer(
    config: TransformerConfig, norm: Norm, x: jax.Array, function: Any
) -> jax.Array:
    """Section 3.1 without dropout, features first: `layers.Sublayer`."""
    if config.norm_first:
        return x + function(_layer_norm(config, x, norm))
    return _layer_norm(config, x + function(x), norm)


def _apply(linear: Linear, x: jax.Array) -> jax.Array:
    y = linear.weight @ x
    return y if linear.bias is None else y + linear.bias.astype(y.dtype)[:, None]


def _layer_norm(config: TransformerConfig, x: jax.Array, norm: Norm) -> jax.Array:
    """`layers.layer_norm` over the first axis of x [D, R]."""
    wide = x.astype(jnp.float32)
    # A product with ones sums faster on a CPU than a reduction of the first axis.
    average = jnp.full((1, len(wide)), 1 / len(wide), jnp.float32)
    mean = average @ wide  # [1, R]
    variance = average @ jnp.square(wide - mean)
    normal = (wide - mean) * jax.lax.rsqrt(variance + config.layer_norm_epsilon)
    return (normal * norm.scale[:, None] + norm.bias[:, None]).astype(x.dtype)


def _heads(
    x: jax.Array,
    config: TransformerConfig,
    sizes: tuple[int, ...],
    rows: tuple[int, int],
) -> list[jax.Array]:
    """Cut x [sum(H size), B W] into one [B, H, W, size] for each size."""
    edges = np.cumsum([config.num_heads * size for size in sizes])[:-1]
    return [
        part.reshape(config.num_heads, size, *rows).transpose(2, 0, 3, 1)
        for part, size in zip(jnp.split(x, edges.tolist()), sizes, strict=True)
    ]


def _as_attended(key: jax.Array, value: jax.Array) -> Attended:
    """Keys [B, H, M, K] and values [B, H, M, U] as they are attended to."""
    return Attended(key.swapaxes(2, 3), value)


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
