"""A second architecture, GRUs with attention, to test that others depend on no first.

One gated recurrent layer encodes the source, another decodes the target, and each of
its states attends to the source's by dot products (Luong et al. 2015).
"""

import functools
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.batch import PAD, shift_right, starts_of_segments
from jaxformer.models.layers import dropout, look_up
from jaxformer.models.masks import MASKED, segment_mask
from jaxformer.models.sequence_model import AttentionMaps, Features, pad
from jaxformer.settings import Section, setting


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Section, name="model"):
    """The config section `model`."""

    architecture: str = setting("Kind of model.", choices=("recurrent",))
    d_model: int = setting("Width.", least=1)
    dropout: float = setting("Of embeddings.", least=0, below=1)


class Memory(NamedTuple):
    states: jax.Array  # [B, S, D]
    is_real: jax.Array  # bool [B, S]
    start: jax.Array  # [B, D], the decoder's first state


def cell(layer, x, state):
    """One step of a gated recurrent unit: x and state [..., D], layer of a GRU."""
    update, reset, new = jnp.split(x @ layer["input"], 3, axis=-1)
    of_update, of_reset, of_new = jnp.split(state @ layer["state"], 3, axis=-1)
    update, reset = nn.sigmoid(update + of_update), nn.sigmoid(reset + of_reset)
    return update * state + (1 - update) * jnp.tanh(new + reset * of_new)


def scan(layer, x, is_start, starts):
    """All states [B, L, D] of x [B, L, D]; `starts` [B, L, D] where segments begin."""

    def step(state, inputs):
        x, is_start, start = inputs
        state = cell(layer, x, jnp.where(is_start[:, None], start, state))
        return state, state

    first = jnp.zeros_like(x[:, 0])
    inputs = (x.swapaxes(0, 1), is_start.swapaxes(0, 1), starts.swapaxes(0, 1))
    return jax.lax.scan(step, first, inputs)[1].swapaxes(0, 1)


def read(params, states, memory, mask):
    """Combine states [B, T, D] with their context; also the weights [B, T, S]."""
    scores = jnp.einsum("btd,bsd->bts", states, memory)
    weights = nn.softmax(jnp.where(mask, scores, MASKED))
    both = jnp.concatenate([states, weights @ memory], -1)
    return jnp.tanh(both @ params["output"]["kernel"]), weights


def mean_of(states, mask):
    """The mean over S of states [B, S, D] under a mask [B, T, S]: [B, T, D]."""
    return mask / jnp.maximum(mask.sum(axis=-1, keepdims=True), 1) @ states


@dataclass(frozen=True)
class RecurrentModel:
    """See `jaxformer.models.sequence_model.Model`."""

    config: RecurrentConfig
    vocab_size: int
    rematerialise: bool
    dtype: ClassVar[str] = "float32"
    longest: ClassVar[None] = None

    @property
    def d_model(self):
        return self.config.d_model

    @property
    def decoder(self):
        return RecurrentDecoder(self.d_model)

    def init(self, key):
        d, keys = self.d_model, iter(jax.random.split(key, 6))

        def draw(*shape, axes=("embed", "mlp")):
            value = jax.random.normal(next(keys), shape) * shape[-1] ** -0.5
            return nn.LogicallyPartitioned(value, axes)

        return {
            "embedding": draw(self.vocab_size, d, axes=("vocab", "embed")),
            "encoder": {"input": draw(d, 3 * d), "state": draw(d, 3 * d)},
            "decoder": {"input": draw(d, 3 * d), "state": draw(d, 3 * d)},
            "output": {"kernel": draw(2 * d, d, axes=("mlp", "embed"))},
        }

    def _run(self, params, batch, key=None):
        """Compute outputs by layer, the output table, and attention weights."""
        inputs = shift_right(batch.target, batch.target_segments)
        source, table = look_up(params["embedding"], batch.source, jnp.float32)
        target, table = look_up(table, inputs, jnp.float32)
        if key is not None and self.config.dropout:
            drop = functools.partial(dropout, rate=self.config.dropout)
            of_source, of_target = jax.random.split(key)
            source, target = drop(source, key=of_source), drop(target, key=of_target)
        begins = starts_of_segments(batch.source_segments)
        memory = scan(params["encoder"], source, begins, jnp.zeros_like(source))
        mask = segment_mask(batch.target_segments, batch.source_segments)[:, 0]
        begins = starts_of_segments(batch.target_segments)
        states = scan(params["decoder"], target, begins, mean_of(memory, mask))
        hidden, weights = read(params, states, memory, mask)
        return {"encoder": memory, "decoder": states, "output": hidden}, table, weights

    def features(self, params, batch, key):
        outputs, table, _ = self._run(params, batch, key)
        return Features(outputs["output"], table, None)

    def logits(self, params, batch):
        return self._run(params, batch)[0]["output"] @ params["embedding"].T

    def attention(self, params, batch):
        weights = self._run(params, batch)[2]
        rows, target, source = weights.shape
        none = (jnp.zeros((0, rows, 1, length, length)) for length in (source, target))
        return AttentionMaps(*none, weights[None, :, None])

    def watch(self, params, batch, key):
        outputs = self._run(params, batch, key)[0]
        return {name: jnp.isfinite(x).all() for name, x in outputs.items()}

    def flops(self, rows, source, target):
        d = self.d_model
        of_target = 6 * d * d + 2 * d * d + 2 * source * d + d * self.vocab_size
        return 6 * rows * (source * 6 * d * d + target * of_target)

    def activations(self, rows, source, target):
        return rows * (9 * self.d_model * (source + target) + source * target)


@dataclass(frozen=True)
class RecurrentDecoder:
    """See `jaxformer.models.sequence_model.Decoder`; the cache is the newest states."""

    d_model: int

    def weights(self, params):
        return params

    def encode(self, weights, source):
        x, is_real = weights["embedding"][source], source != PAD
        begins = jnp.arange(source.shape[1])[None] == jnp.zeros_like(source)
        states = scan(weights["encoder"], x, begins, jnp.zeros_like(x))
        return Memory(states, is_real, mean_of(states, is_real[:, None])[:, 0])

    def resize_memory(self, memory, *, length):
        after = length - memory.states.shape[1]
        resized = (pad(leaf, 0, after, axis=1) for leaf in memory[:2])
        return Memory(*resized, memory.start)

    def empty_cache(self, *, batch, width, length):
        return jnp.zeros((batch, width, self.d_model))

    def resize_cache(self, cache, clock, *, width, length):
        return cache

    def step(self, weights, memory, cache, newest):
        tokens, ages, clock, ancestors = newest
        parents = ancestors[:, :, (clock - 1) % ancestors.shape[2]]  # [B, W]
        states = jnp.take_along_axis(cache, parents[:, :, None], axis=1)
        is_new = (ages == 0)[:, None, None]
        states = jnp.where(is_new, memory.start[:, None], states)
        states = cell(weights["decoder"], weights["embedding"][tokens], states)
        hidden, _ = read(weights, states, memory.states, memory.is_real[:, None])
        return jnp.einsum("bwd,vd->vbw", hidden, weights["embedding"]), states
