"""Decoding one token at a time against the forward pass of training."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import BOS, EOS, PAD, Batch
from jaxformer.models.sequence_model import resize_ring
from tests.models.tiny import VOCABULARY, model_of, params_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

PUBLISHED = {"attention_bias": True, "activation": "swish", "logits_bias": True}
MODELS = {
    "paper": model_of(layers=2, d_v=4),  # d_k is d_model / h, d_v another
    "odd sizes": model_of(num_heads=3, d_k=4, d_v=6, d_ff=20, encoder_layers=2),
    "published": model_of(layers=2, **PUBLISHED),
    "all others": model_of(
        num_heads=1, positions="learned", norm_first=True, layer_norm_epsilon=1e-2,
        decoder_layers=3, **PUBLISHED,
    ),
    "window": model_of(layers=2, attention_window=4),
    "itself": model_of(layers=2, attention_window=1, norm_first=True),
    "wide window": model_of(layers=2, attention_window=30),
}  # fmt: skip
SOURCES = np.array(
    [[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, 12, 13, EOS, PAD]], np.int32
)
LONGEST = 6  # tokens of a target in these tests
MOST = 128  # hypotheses that one test grows


@partial(jax.jit, static_argnums=0)
def encode(decoder, params):
    """The weights of decoding, and the memory of SOURCES."""
    weights = decoder.weights(params)
    return weights, decoder.encode(weights, SOURCES)


@partial(jax.jit, static_argnums=0)
def teach(model, params, batch):
    return model.logits(params, batch)


@partial(jax.jit, static_argnums=0)
def step(decoder, *arguments):
    return decoder.step(*arguments)


class Walk:
    """Random hypotheses, grown step by step as a search would.

    Row b begins at step `starts[b]`, and again when its hypotheses have LONGEST tokens.
    At each step the parent of a hypothesis is any of its sentence's.
    """

    def __init__(
        self, model, memory=None, *, width, length, starts=(0, 3, 4), params=None
    ):
        self.decoder, self.starts, self.width = model.decoder, starts, width
        self.weights, own_memory = encode(self.decoder, params or params_of(model))
        self.memory = own_memory if memory is None else memory
        rows = len(starts)
        self.draw = np.random.default_rng(7)
        self.clock, self.steps = 0, 0
        self.ages = np.zeros(rows, np.int32)
        self.tokens = np.full((rows, width), BOS, np.int32)
        self.paths = [[()] * width for _ in range(rows)]
        self.ancestors = np.zeros((rows, width, length), np.int32)
        cache = self.decoder.empty_cache(batch=rows, width=width, length=length)
        # A step must not read slots that no step has written.
        self.cache = jax.tree.map(lambda leaf: np.full_like(leaf, 100), cache)
        self.seen = []  # (source row, tokens so far, logits of the next)

    def go(self, steps: int):
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        self.ancestors[:, :, self.clock % self.ancestors.shape[2]] = range(self.width)
        logits, self.cache = step(
            self.decoder, self.weights, self.memory, self.tokens, self.ages,
            np.int32(self.clock), self.ancestors, self.cache,
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
        words = self.draw.integers(EOS + 1, VOCABULARY, self.width)
        self.ages[row] += 1
        self.tokens[row] = words
        self.ancestors[row] = self.ancestors[row, parents]
        self.paths[row] = [
            (*self.paths[row][parent], int(word))
            for parent, word in zip(parents, words, strict=True)
        ]

    def resize(self, length: int) -> None:
        clock = jnp.int32(self.clock)
        self.cache = self.decoder.resize_cache(
            self.cache, clock, width=self.width, length=length
        )
        self.ancestors = np.array(
            resize_ring(jnp.asarray(self.ancestors), clock, axis=2, length=length)
        )
        self.clock = length

    def assert_like_teacher_forcing(self, model, params=None, atol=2e-5) -> None:
        """Each logit that was seen, from one forward pass over all paths."""
        rows = np.zeros(MOST, np.int32)
        target = np.full((MOST, LONGEST), EOS, np.int32)
        for index, (row, path, _) in enumerate(self.seen):
            rows[index] = row
            target[index, : len(path)] = path
        source = SOURCES[rows]
        segments = (source != PAD).astype(np.int32)
        batch = Batch(source, target, segments, np.ones_like(target))
        expected = np.asarray(teach(model, params or params_of(model), batch))
        for own, (_, path, logits) in zip(expected, self.seen, strict=False):
            np.testing.assert_allclose(logits, own[len(path)], rtol=0, atol=atol)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_has_the_logits_of_teacher_forcing(name, width):
    """For rows that begin at different steps, over several turns of the ring."""
    walk = Walk(MODELS[name], width=width, length=LONGEST).go(14)
    assert walk.ages.tolist() == [2, 5, 4]
    assert len(walk.seen) == (14 + 11 + 10) * width
    walk.assert_like_teacher_forcing(MODELS[name])


@pytest.mark.parametrize("window", [None, 4, 9])
def test_a_ring_may_grow_and_shrink_between_two_steps(window):
    model = model_of(layers=2, attention_window=window)
    walk = Walk(model, width=3, length=8)
    for length in (8, 11, 6, 8):
        walk.resize(length)
        walk.go(4)
    walk.assert_like_teacher_forcing(model)


def test_resizing_a_ring_moves_the_newest_to_the_end():
    """Five slots that hold steps 0 to 6: the oldest is 2, in slot 2."""
    ring = jnp.array([[5, 6, 2, 3, 4]])

    def resize(length):
        return resize_ring(ring, jnp.int32(7), axis=1, length=length).tolist()

    assert resize(5) == [[2, 3, 4, 5, 6]]
    assert resize(3) == [[4, 5, 6]]
    assert resize(7) == [[0, 0, 2, 3, 4, 5, 6]]
    whole = resize_ring(ring.T, jnp.int32(7), axis=0, length=5)
    assert whole.tolist() == [[2], [3], [4], [5], [6]]


def test_a_memory_may_grow_and_shrink_by_padding():
    model = MODELS["paper"]
    _, memory = encode(model.decoder, params_of(model))
    resize = model.decoder.resize_memory
    wide = resize(memory, length=9)
    assert wide.is_real.shape == (3, 9)
    jax.tree.map(np.testing.assert_array_equal, resize(wide, length=5), memory)

    def seen(memory):
        walk = Walk(model, memory, width=3, length=6, starts=(0, 0, 0)).go(3)
        return np.stack([logits for _, _, logits in walk.seen])

    expected = seen(memory)
    np.testing.assert_allclose(seen(wide), expected, rtol=0, atol=1e-5)
    narrow = seen(resize(memory, length=4))  # the first source has five tokens
    difference = np.abs(narrow - expected).reshape(3, 3, 3, -1).max(axis=(0, 2, 3))
    assert difference[0] > 1e-3
    assert (difference[1:] < 1e-5).all()


def test_empty_memories_and_caches_have_the_shape_of_full_ones():
    model = MODELS["odd sizes"]
    _, memory = encode(model.decoder, params_of(model))
    empty = model.decoder.empty_memory(batch=3, length=5)
    assert jax.tree.map(jax.typeof, empty) == jax.tree.map(jax.typeof, memory)
    assert not empty.is_real.any()
    for own, slots in ((model, 10), (MODELS["window"], 3)):  # a window sees no more
        (key, value), *_ = own.decoder.empty_cache(batch=4, width=2, length=10)
        assert key.shape[3] == value.shape[2] == slots * 2


def test_bfloat16_decodes_nearly_the_same():
    model = model_of(layers=2, dtype="bfloat16", **PUBLISHED)
    walk = Walk(model, width=3, length=LONGEST).go(6)
    held = (walk.weights.embedding, walk.memory.layers, walk.cache)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(held)} == {"bfloat16"}
    walk.assert_like_teacher_forcing(model, atol=0.15)
    walk.assert_like_teacher_forcing(MODELS["published"], atol=0.2)
    with pytest.raises(AssertionError):
        walk.assert_like_teacher_forcing(MODELS["published"], atol=1e-4)
