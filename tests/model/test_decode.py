"""Decoding one position at a time against the forward pass of training."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.batch import BOS, EOS, PAD, Batch
from jaxformer.model.config import TransformerConfig
from jaxformer.model.decode import (
    decode_step,
    decoding_weights,
    empty_cache,
    empty_memory,
    project_memory,
    resize_cache,
    resize_memory,
    resize_ring,
)
from jaxformer.model.transformer import Transformer
from tests.model.test_transformer import CONFIG, VARIANTS

CONFIGS = {
    **VARIANTS,  # their d_k is d_model / h, their d_v another
    "odd sizes": dataclasses.replace(CONFIG, num_heads=3, d_k=4, d_v=6, d_ff=20),
    "all at once": dataclasses.replace(
        CONFIG, num_heads=1, d_k=6, d_v=10, positions="learned", norm_first=True,
        attention_bias=True, activation="swish", logits_bias=True,
        layer_norm_epsilon=1e-2,
    ),
}  # fmt: skip
SOURCES = np.array([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, 12, 13, EOS, PAD]])
LONGEST = 6  # tokens of a target in these tests


def make_model(config: TransformerConfig) -> tuple[Transformer, dict]:
    """A model none of whose parameters is zero, one or otherwise easy to miss."""
    model = Transformer(config)
    row = jnp.ones((1, 2), jnp.int32)
    params = model.init(jax.random.key(0), Batch(row, row, row, row), train=False)
    draw = np.random.default_rng(1)

    def disturb(leaf):
        noise = draw.normal(0.0, 0.3, leaf.shape) if leaf.ndim == 1 else 0.0
        return leaf + jnp.asarray(noise, leaf.dtype)

    return model, jax.tree.map(disturb, nn.unbox(params)["params"])


def remember(model, params, source):
    """What decoding keeps of sources [B, S]."""

    @jax.jit
    def project(params, source):
        is_real = source != PAD
        segments = is_real.astype(jnp.int32)
        encoded = model.apply({"params": params}, source, segments, method="encode")
        weights = decoding_weights(model.config, params)
        return weights, project_memory(model.config, weights, encoded, is_real)

    return project(params, jnp.asarray(source, jnp.int32))


class Walk:
    """Random hypotheses, grown step by step as a search would.

    Row b begins at step `starts[b]`, and again when its hypotheses are LONGEST tokens
    long. At each step a hypothesis goes on from any of its sentence's.
    """

    def __init__(self, config, weights, memory, *, width, length, starts=(0, 3, 4)):
        self.config, self.weights, self.memory = config, weights, memory
        self.starts, self.width = starts, width
        rows = len(starts)
        self.draw = np.random.default_rng(7)
        self.clock, self.steps = 0, 0
        self.ages = np.zeros(rows, np.int32)
        self.tokens = np.full((rows, width), BOS, np.int32)
        self.paths = [[()] * width for _ in range(rows)]
        self.ancestors = np.zeros((rows, width, length), np.int32)
        self.cache = empty_cache(config, batch=rows, width=width, length=length)
        # Nobody may read what nobody wrote.
        self.cache = jax.tree.map(lambda leaf: leaf + 100, self.cache)
        self.seen = []  # (source row, tokens so far, logits of the next)
        self.step_fn = jax.jit(partial(decode_step, config))

    def step(self) -> None:
        length = self.ancestors.shape[2]
        self.ancestors[:, :, self.clock % length] = np.arange(self.width)
        logits, self.cache = self.step_fn(
            self.weights, self.memory, self.cache, tokens=self.tokens, ages=self.ages,
            clock=jnp.int32(self.clock), ancestors=self.ancestors,
        )  # fmt: skip
        assert logits.dtype == jnp.float32
        for row, paths in enumerate(self.paths):
            if self.steps >= self.starts[row]:
                for slot, path in enumerate(paths):
                    self.seen.append((row, path, np.asarray(logits[:, row, slot])))
        self.clock, self.steps = self.clock + 1, self.steps + 1
        for row in range(len(self.paths)):
            self.grow(row)

    def grow(self, row: int) -> None:
        if self.steps <= self.starts[row] or self.ages[row] == LONGEST - 1:
            self.ages[row], self.tokens[row] = 0, BOS
            self.paths[row] = [()] * self.width
            return
        parents = self.draw.integers(self.width, size=self.width)
        words = self.draw.integers(EOS + 1, self.config.vocab_size, self.width)
        self.ages[row] += 1
        self.tokens[row] = words
        self.ancestors[row] = self.ancestors[row, parents]
        self.paths[row] = [
            (*self.paths[row][parent], int(word))
            for parent, word in zip(parents, words, strict=True)
        ]

    def resize(self, length: int) -> None:
        clock = jnp.int32(self.clock)
        self.cache = resize_cache(self.cache, clock, width=self.width, length=length)
        self.ancestors = np.array(
            resize_ring(jnp.asarray(self.ancestors), clock, axis=2, length=length)
        )
        self.clock = length

    def assert_like_teacher_forcing(self, model, params, atol=2e-5) -> None:
        """Each logit that was seen, from one forward pass over all paths."""
        target = np.full((len(self.seen), LONGEST), EOS, np.int32)
        for place, (_, path, _) in zip(target, self.seen, strict=True):
            place[: len(path)] = path
        source = SOURCES[[row for row, _, _ in self.seen]].astype(np.int32)
        segments = (source != PAD).astype(np.int32)
        batch = Batch(source, target, segments, np.ones_like(target))
        teach = jax.jit(partial(model.apply, train=False))
        expected = np.asarray(teach({"params": params}, batch))
        for own, (_, path, logits) in zip(expected, self.seen, strict=True):
            np.testing.assert_allclose(logits, own[len(path)], rtol=0, atol=atol)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_has_the_logits_of_teacher_forcing(name, width):
    """Of rows that begin apart and share their past, round and round the ring."""
    model, params = make_model(CONFIGS[name])
    weights, memory = remember(model, params, SOURCES)
    walk = Walk(model.config, weights, memory, width=width, length=LONGEST)
    for _ in range(14):
        walk.step()
    assert walk.ages.tolist() == [2, 5, 4]
    assert len(walk.seen) == (14 + 11 + 10) * width
    walk.assert_like_teacher_forcing(model, params)


def test_a_ring_may_grow_and_shrink_between_two_steps():
    model, params = make_model(CONFIG)
    weights, memory = remember(model, params, SOURCES)
    walk = Walk(model.config, weights, memory, width=2, length=8)
    for length in (8, 11, 7, 6, 9):
        walk.resize(length)
        for _ in range(5):
            walk.step()
    walk.assert_like_teacher_forcing(model, params)


def test_a_ring_turns_so_that_the_newest_is_last():
    """Five places that hold steps 0 to 6: the oldest is 2, at place 2."""
    ring = jnp.array([[5, 6, 2, 3, 4]])

    def resize(length):
        return resize_ring(ring, jnp.int32(7), axis=1, length=length).tolist()

    assert resize(5) == [[2, 3, 4, 5, 6]]
    assert resize(3) == [[4, 5, 6]]
    assert resize(7) == [[0, 0, 2, 3, 4, 5, 6]]
    whole = resize_ring(ring.T, jnp.int32(7), axis=0, length=5)
    assert whole.tolist() == [[2], [3], [4], [5], [6]]


def test_a_memory_may_grow_and_shrink_by_padding():
    model, params = make_model(CONFIG)
    short = SOURCES[:, :4]  # of the second row and the third
    weights, memory = remember(model, params, short)
    wide = resize_memory(memory, length=9)
    assert wide.is_real.shape == (3, 9)
    back = resize_memory(wide, length=4)
    jax.tree.map(np.testing.assert_array_equal, back, memory)

    def walked(memory):
        walk = Walk(model.config, weights, memory, width=1, length=6, starts=(0, 0, 0))
        for _ in range(3):
            walk.step()
        return np.stack([logits for _, _, logits in walk.seen])

    np.testing.assert_allclose(walked(wide), walked(memory), rtol=0, atol=1e-5)
    cut = jax.tree.map(lambda leaf: leaf[1:2], wide)
    seen = walked(jax.tree.map(lambda leaf: jnp.repeat(leaf, 3, axis=0), cut))
    narrow = resize_memory(cut, length=3)  # all that the second source has
    again = walked(jax.tree.map(lambda leaf: jnp.repeat(leaf, 3, axis=0), narrow))
    np.testing.assert_allclose(again, seen, rtol=0, atol=1e-5)


def test_room_has_the_shape_of_what_comes_in():
    model, params = make_model(CONFIGS["odd sizes"])
    _, memory = remember(model, params, SOURCES)
    room = empty_memory(model.config, batch=3, length=5)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (room, memory))
    assert shapes[0] == shapes[1]
    assert not room.is_real.any()
    (key, value), *_ = empty_cache(model.config, batch=4, width=2, length=10)
    assert key.shape == (4, 3, 4, 20)
    assert value.shape == (4, 3, 20, 6)


def test_bfloat16_decodes_nearly_the_same():
    exact = CONFIGS["published"]
    _, params = make_model(exact)
    model = Transformer(dataclasses.replace(exact, dtype="bfloat16"))
    weights, memory = remember(model, params, SOURCES)
    assert weights.embedding.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(memory.layers)} == {jnp.bfloat16}
    walk = Walk(model.config, weights, memory, width=2, length=LONGEST)
    for _ in range(6):
        walk.step()
    assert {leaf.dtype for leaf in jax.tree.leaves(walk.cache)} == {jnp.bfloat16}
    walk.assert_like_teacher_forcing(model, params, atol=0.15)
    walk.assert_like_teacher_forcing(Transformer(exact), params, atol=0.2)
