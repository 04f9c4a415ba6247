"""A port in the manner of flax's WMT example as a contestant.

That manner is: pre-norm layers around `nn.MultiHeadDotProductAttention`, dropout from
threefry bits, also on attention weights and inside the feed-forward layer, a one-hot
target for the smoothed loss, logits of all positions at once, accuracy by argmax,
optax's AdamW. Written here; the example itself needs its data pipeline to run.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from benchmarks.models import BETA1, BETA2, DROPOUT, EPSILON, LABEL_SMOOTHING, Sizes
from jaxformer.batch import Batch
from jaxformer.models.layers import sinusoidal_positions
from jaxformer.tokens import BOS, PAD

LEARNING_RATE = 1e-4  # of the peers; a schedule costs no time


class Block(nn.Module):
    """A layer of either stack; with `memory` that of the decoder."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x, mask, memory=None, memory_mask=None) -> jax.Array:
        """Map x [B, L, D] to [B, L, D]."""
        sizes = self.sizes

        attention = functools.partial(
            nn.MultiHeadDotProductAttention, sizes.num_heads, dtype=sizes.dtype,
            use_bias=False, dropout_rate=DROPOUT, deterministic=False,
            broadcast_dropout=False,
        )  # fmt: skip
        norm = functools.partial(nn.LayerNorm, dtype=sizes.dtype)
        dense = functools.partial(nn.Dense, dtype=sizes.dtype)
        drop = nn.Dropout(DROPOUT, deterministic=False)
        y = norm()(x)
        x = x + drop(attention()(y, y, mask=mask))
        if memory is not None:
            x = x + drop(attention()(norm()(x), memory, mask=memory_mask))
        y = drop(nn.relu(dense(sizes.d_ff)(norm()(x))))
        return x + drop(dense(sizes.d_model)(y))


class Model(nn.Module):
    """Encoder, decoder and one embedding; sentences have at most `longest` pieces."""

    sizes: Sizes
    longest: int

    @nn.compact
    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        """Score target ids [B, T]: logits [B, T, V]."""
        sizes = self.sizes
        embedding = nn.Embed(sizes.vocabulary, sizes.d_model, dtype=sizes.dtype)
        table = sinusoidal_positions(self.longest, sizes.d_model)

        def embed(ids: jax.Array) -> jax.Array:
            x = embedding(ids) + jnp.asarray(table[None, : ids.shape[1]], sizes.dtype)
            return nn.Dropout(DROPOUT, deterministic=False)(x)

        source_real, target_real = source != PAD, target != PAD
        x, mask = embed(source), nn.make_attention_mask(source_real, source_real)
        for _ in range(sizes.layers):
            x = Block(sizes)(x, mask)
        memory = nn.LayerNorm(dtype=sizes.dtype)(x)
        padding = nn.make_attention_mask(target_real, target_real)
        mask = nn.combine_masks(padding, nn.make_causal_mask(target))
        memory_mask = nn.make_attention_mask(target_real, source_real)
        x = embed(jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS))
        for _ in range(sizes.layers):
            x = Block(sizes)(x, mask, memory, memory_mask)
        x = nn.LayerNorm(dtype=sizes.dtype)(x)
        return embedding.attend(x) / np.sqrt(sizes.d_model)


def flax_update(sizes: Sizes, *, longest: int) -> Callable[[Batch], jax.Array]:
    """Draw parameters and give the update."""
    model = Model(sizes, longest)
    optimizer = optax.adamw(
        LEARNING_RATE, b1=BETA1, b2=BETA2, eps=EPSILON, weight_decay=0.0
    )

    @jax.jit
    def init(key: jax.Array) -> tuple:
        row = jnp.ones((1, 2), jnp.int32)
        params = model.init({"params": key, "dropout": key}, row, row)["params"]
        return params, optimizer.init(params)

    def mean_loss(params: dict, batch: Batch, key: jax.Array) -> tuple:
        logits = model.apply(
            {"params": params}, batch.source, batch.target, rngs={"dropout": key}
        ).astype(jnp.float32)
        low = LABEL_SMOOTHING / (sizes.vocabulary - 1)
        one_hot = jax.nn.one_hot(batch.target, sizes.vocabulary)
        targets = one_hot * (1.0 - LABEL_SMOOTHING - low) + low
        real = batch.target != PAD
        loss = -(targets * jax.nn.log_softmax(logits)).sum(-1)
        correct = (logits.argmax(-1) == batch.target) * real
        return (loss * real).sum() / real.sum(), correct.sum()

    def step(params: dict, opt_state: tuple, batch: Batch, number: jax.Array) -> tuple:
        key = jax.random.fold_in(jax.random.key(0), number)
        gradient = jax.value_and_grad(mean_loss, has_aux=True)
        (loss, correct), grads = gradient(params, batch, key)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss, correct

    compiled = jax.jit(step, donate_argnums=(0, 1))
    state, number = init(jax.random.key(0)), 0

    def update(batch: Batch) -> jax.Array:
        nonlocal state, number
        *state, loss, _ = compiled(*state, batch, np.int32(number))
        number += 1
        return loss

    return update
