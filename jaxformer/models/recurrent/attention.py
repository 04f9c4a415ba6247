"""Attention of a recurrent decoder: Bahdanau et al. 2015 and Luong et al. 2015."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Float32

from jaxformer.models.arrays import Sources, Targets, Vector
from jaxformer.models.masks import MASKED
from jaxformer.models.recurrent.cells import Kernel
from jaxformer.models.recurrent.config import RecurrentConfig

CHUNK = 4  # queries whose additive scores are computed at a time
AttentionWeights = dict[str, Float[Array, "D D"] | Vector]  # by name
Mask = Bool[Array, " B #T S"]
Scores = Float32[Array, "B T S"]
LogChoice = Float32[Array, "B T"]


class RecurrentAttention(nn.Module):
    """The parameters of attention by name, in the type of products.

    The two vectors are 0 at first (Bahdanau et al. 2015, B.1), the matrices Xavier's.
    """

    kind: str  # model.attention
    d_model: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self) -> AttentionWeights:
        names = {
            "additive": ("query", "key", "score"),  # W_a, U_a, v_a of A.1.2
            "general": ("key",),  # W_a of Luong's equation 8
            "local": ("key", "position", "position_score"),  # W_a, W_p, v_p
        }

        def parameter(name: str) -> Float[Array, "D D"] | Vector:
            if not name.endswith("score"):
                shape, axes = (self.d_model,) * 2, ("embed", "gates")
                return Kernel(shape, axes, self.dtype, name=name)()
            init = nn.with_logical_partitioning(nn.initializers.zeros, ("gates",))
            return self.param(name, init, (self.d_model,)).astype(self.dtype)

        return {name: parameter(name) for name in names.get(self.kind, ())}


class Source(NamedTuple):
    """What queries attend to."""

    states: Sources  # of the encoder
    keys: Sources  # of which queries make scores


def source_of(weights: AttentionWeights, states: Sources) -> Source:
    """Compute the keys once for all queries."""
    return Source(states, states @ weights["key"] if "key" in weights else states)


class Draws(NamedTuple):
    """What hard attention draws with in training (Xu et al. 2015, section 4.1)."""

    noise: Float32[Array, "... S"]  # [B, T, S], of Gumbel
    is_soft: Bool[Array, "..."]  # [B, T]: read the average, as half of the rows do


class Attended(NamedTuple):
    """What queries read."""

    context: Targets  # in the source's type
    shares: Scores  # the weights, which sum to less than one in a local window
    log_choice: LogChoice | None  # of hard attention, log P of what it drew; 0: nothing


def attend(
    config: RecurrentConfig,
    weights: AttentionWeights,
    query: Targets,
    source: Source,
    mask: Mask,
    draws: Draws | None = None,
) -> Attended:
    """Read the source's states, each query by its own weights.

    Soft attention averages them. Hard attention reads one: with `draws` a sample by the
    weights, without them the state of the largest weight.
    """
    window = config.attention_window
    query = query.astype(source.keys.dtype)
    if "score" in weights:
        scores = _additive(query @ weights["query"], source.keys, weights["score"])
    else:
        scores = jnp.einsum(
            "btd,bsd->bts", query, source.keys, preferred_element_type=jnp.float32
        )
    distance = None
    if window is not None:
        distance = _distance(weights, query, mask)
        mask = mask & (jnp.abs(distance) <= window)
    scores = jnp.where(mask, scores, MASKED)
    shares = jax.nn.softmax(scores, axis=-1)
    if distance is not None:  # equation 10
        shares *= jnp.exp(-jnp.square(distance) / (2 * (window / 2) ** 2))
    if config.is_hard and draws is None:
        best = scores.argmax(-1)[..., None]
        return Attended(jnp.take_along_axis(source.states, best, axis=1), shares, None)
    average = shares.astype(source.states.dtype) @ source.states
    if draws is None:
        return Attended(average, shares, None)
    choice = (scores + draws.noise).argmax(-1)[..., None]
    log_choice = jnp.take_along_axis(jax.nn.log_softmax(scores), choice, axis=-1)
    drawn = jnp.take_along_axis(source.states, choice, axis=1)
    context = jnp.where(draws.is_soft[..., None], average, drawn)
    return Attended(context, shares, jnp.where(draws.is_soft, 0.0, log_choice[..., 0]))


def _additive(query: Targets, keys: Sources, vector: Vector) -> Scores:
    """Compute v tanh(query + key) for all pairs.

    The sums [B, T, S, D] exist for a few queries at a time, also for the gradient.
    """

    @jax.checkpoint
    def scores(query: Float[Array, "B D"]) -> Float32[Array, "B S"]:
        return jnp.einsum(
            "bsd,d->bs", jnp.tanh(query[:, None] + keys), vector,
            preferred_element_type=jnp.float32,
        )  # fmt: skip

    queries = query.swapaxes(0, 1)
    if len(queries) <= CHUNK:
        return jax.vmap(scores)(queries).swapaxes(0, 1)
    return jax.lax.map(scores, queries, batch_size=CHUNK).swapaxes(0, 1)


def _distance(weights: AttentionWeights, query: Targets, mask: Mask) -> Scores:
    """Subtract the position that each query predicts, equation 9.

    Positions are those of the source that the query may see, whose length is S.
    """
    hidden = jnp.tanh(query @ weights["position"])
    place = jnp.einsum(
        "btd,d->bt", hidden, weights["position_score"],
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    centre = mask.argmax(axis=-1) + mask.sum(axis=-1) * nn.sigmoid(place)
    return jnp.arange(mask.shape[-1])[None, None] - centre[..., None]
