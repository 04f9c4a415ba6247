"""Decoding one position at a time against the forward pass of training."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.batch import BOS, EOS, PAD, Batch
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.decode import (
    decode_step,
    empty_cache,
    empty_memory,
    project_memory,
    resize_cache,
    resize_memory,
    resize_ring,
)
from jaxformer.models.transformer.decoding_weights import decoding_weights
from jaxformer.models.transformer.transformer import Transformer
from tests.models.test_transformer import CONFIG, VARIANTS

CONFIGS = {
    "paper": CONFIG,  # d_k is d_model / h, d_v another
    "odd sizes": dataclasses.replace(CONFIG, num_heads=3, d_k=4, d_v=6, d_ff=20),
    "published": VARIANTS["published"],
    "all others": dataclasses.replace(
        VARIANTS["published"], num_heads=1, positions="learned", norm_first=True,
        layer_norm_epsilon=1e-2,
    ),
    "window": dataclasses.replace(CONFIG, attention_window=4),
    "itself": dataclasses.replace(CONFIG, attention_window=1, norm_first=True),
    "wide window": dataclasses.replace(CONFIG, attention_window=30),
}  # fmt: skip
SOURCES = np.array(
    [[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, 12, 13, EOS, PAD]], np.int32
)
LONGEST = 6  # tokens of a target in these tests
MOST = 128  # hypotheses that one test grows


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Most of the time would go into optimising programs that run a few times."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@cache
def params_of(config: TransformerConfig) -> dict:
    """Parameters none of which is zero, one or otherwise easy to miss."""
    row = jnp.ones((1, 2), jnp.int32)
    init = partial(Transformer(config).init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), Batch(row, row, row, row))
    draw = np.random.default_rng(1)

    def leaf(shape):
        mean, deviation = (0.5, 0.3) if len(shape.shape) == 1 else (0.0, 0.25)
        return draw.normal(mean, deviation, shape.shape).astype(np.float32)

    return jax.tree.map(leaf, nn.unbox(shapes)["params"])


@partial(jax.jit, static_argnums=0)
def remember(config, params, source):
    """What decoding keeps of a model, and of sources [B, S]."""
    is_real = source != PAD
    encoded = Transformer(config).apply(
        {"params": params}, source, is_real.astype(jnp.int32), method="encode"
    )
    weights = decoding_weights(config, params)
    return weights, project_memory(config, weights, encoded, is_real)


@partial(jax.jit, static_argnums=0)
def teach(config, params, batch):
    return Transformer(config).apply({"params": params}, batch, train=False)


step_fn = jax.jit(decode_step, static_argnums=0)


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
        cache = empty_cache(config, batch=rows, width=width, length=length)
        # Nobody may read what nobody wrote.
        self.cache = jax.tree.map(lambda leaf: np.full_like(leaf, 100), cache)
        self.seen = []  # (source row, tokens so far, logits of the next)

    def step(self) -> None:
        length = self.ancestors.shape[2]
        self.ancestors[:, :, self.clock % length] = np.arange(self.width)
        logits, self.cache = step_fn(
            self.config, self.weights, self.memory, self.cache, tokens=self.tokens,
            ages=self.ages, clock=np.int32(self.clock), ancestors=self.ancestors,
        )  # fmt: skip
        assert logits.dtype == jnp.float32
        logits = np.asarray(logits)
        for row, paths in enumerate(self.paths):
            if self.steps >= self.starts[row]:
                for slot, path in enumerate(paths):
                    self.seen.append((row, path, logits[:, row, slot]))
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
        self.cache = resize_cache(
            self.config, self.cache, clock, width=self.width, length=length
        )
        self.ancestors = np.array(
            resize_ring(jnp.asarray(self.ancestors), clock, axis=2, length=length)
        )
        self.clock = length

    def assert_like_teacher_forcing(self, config, atol=2e-5) -> None:
        """Each logit that was seen, from one forward pass over all paths."""
        rows = np.zeros(MOST, np.int32)
        target = np.full((MOST, LONGEST), EOS, np.int32)
        for place, (row, path, _) in enumerate(self.seen):
            rows[place] = row
            target[place, : len(path)] = path
        source = SOURCES[rows]
        segments = (source != PAD).astype(np.int32)
        batch = Batch(source, target, segments, np.ones_like(target))
        expected = np.asarray(teach(config, params_of(config), batch))
        for own, (_, path, logits) in zip(expected, self.seen, strict=False):
            np.testing.assert_allclose(logits, own[len(path)], rtol=0, atol=atol)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_has_the_logits_of_teacher_forcing(name, width):
    """Of rows that begin apart and share their past, round and round the ring."""
    config = CONFIGS[name]
    remembered = remember(config, params_of(config), SOURCES)
    walk = Walk(config, *remembered, width=width, length=LONGEST)
    for _ in range(14):
        walk.step()
    assert walk.ages.tolist() == [2, 5, 4]
    assert len(walk.seen) == (14 + 11 + 10) * width
    walk.assert_like_teacher_forcing(config)


@pytest.mark.parametrize("window", [None, 4, 9])
def test_a_ring_may_grow_and_shrink_between_two_steps(window):
    config = dataclasses.replace(CONFIG, attention_window=window)
    remembered = remember(config, params_of(config), SOURCES)
    walk = Walk(config, *remembered, width=3, length=8)
    for length in (8, 11, 6, 8):
        walk.resize(length)
        for _ in range(4):
            walk.step()
    walk.assert_like_teacher_forcing(config)


def test_a_window_keeps_no_more_than_it_sees():
    config = CONFIGS["window"]
    for length, places in ((2, 2), (10, 3)):
        (key, value), *_ = empty_cache(config, batch=1, width=2, length=length)
        assert key.shape[3] == value.shape[2] == places * 2


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
    weights, memory = remember(CONFIG, params_of(CONFIG), SOURCES)
    wide = resize_memory(memory, length=9)
    assert wide.is_real.shape == (3, 9)
    jax.tree.map(np.testing.assert_array_equal, resize_memory(wide, length=5), memory)

    def seen(memory):
        walk = Walk(CONFIG, weights, memory, width=3, length=6, starts=(0, 0, 0))
        for _ in range(3):
            walk.step()
        return np.stack([logits for _, _, logits in walk.seen])

    expected = seen(memory)
    np.testing.assert_allclose(seen(wide), expected, rtol=0, atol=1e-5)
    narrow = seen(resize_memory(memory, length=4))  # the first source has five pieces
    difference = np.abs(narrow - expected).reshape(3, 3, 3, -1).max(axis=(0, 2, 3))
    assert difference[0] > 1e-3
    assert (difference[1:] < 1e-5).all()


def test_room_has_the_shape_of_what_comes_in():
    config = CONFIGS["odd sizes"]
    _, memory = remember(config, params_of(config), SOURCES)
    room = empty_memory(config, batch=3, length=5)
    shapes = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), each)
        for each in (room, memory)
    ]
    assert shapes[0] == shapes[1]
    assert not room.is_real.any()
    (key, value), *_ = empty_cache(config, batch=4, width=2, length=10)
    assert key.shape == (4, 3, 4, 20)
    assert value.shape == (4, 3, 20, 6)


def test_bfloat16_decodes_nearly_the_same():
    exact = CONFIGS["published"]
    config = dataclasses.replace(exact, dtype="bfloat16")
    weights, memory = remember(config, params_of(config), SOURCES)
    walk = Walk(config, weights, memory, width=3, length=LONGEST)
    for _ in range(6):
        walk.step()
    held = jax.tree.leaves((weights.embedding, memory.layers, walk.cache))
    assert {str(leaf.dtype) for leaf in held} == {"bfloat16"}
    walk.assert_like_teacher_forcing(config, atol=0.15)
    walk.assert_like_teacher_forcing(exact, atol=0.2)
    with pytest.raises(AssertionError):
        walk.assert_like_teacher_forcing(exact, atol=1e-4)
