"""Decoding one token at a time against the forward pass of training."""

import functools
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from jaxformer.batch import Batch
from jaxformer.models.sequence_model import Newest, resize_ring
from jaxformer.models.transformer import cached_attention
from jaxformer.tokens import BOS, EOS, PAD
from tests.models.tiny import HYBRIDS, VOCABULARY, model_of, params_of

PUBLISHED = {"biases": "all", "activation": "swish"}
recurrent_of = functools.partial(model_of, architecture="recurrent")
MODELS = {
    "paper": model_of(layers=2, d_v=4),  # d_k is d_model / h, d_v another
    "odd sizes": model_of(
        num_heads=3, d_k=4, d_v=6, d_ff=20, source_vocab_size=14, tied_embeddings="none"
    ),
    "many heads": model_of(num_heads=16, d_k=2, d_v=3),
    "all others": model_of(
        num_heads=1, positions="learned", norm_first=True, layer_norm_epsilon=1e-2,
        decoder_layers=2, **PUBLISHED,
    ),
    "window": model_of(decoder_layers=2, attention_window=4),
    "itself": model_of(attention_window=1, norm_first=True),
    "wide window": model_of(attention_window=30),
    "dilated": model_of(
        architecture="convolutional", decoder_layers=2, kernel_width=5, max_dilation=2
    ),
    "fixed context": recurrent_of(
        cell="gru", attention="none", feeding="context", source_vocab_size=14,
        tied_embeddings="none",
    ),
    "deep and local": recurrent_of(
        decoder_layers=2, attention="local", attention_window=2
    ),
    "attentional": recurrent_of(attention="general", feeding="attentional"),
    "context first": recurrent_of(
        decoder_layers=2, cell="gru", attention="additive", feeding="context"
    ),
    "separable": model_of(
        architecture="convolutional", decoder_layers=2, max_dilation=2, separable=True
    ),
    "forwards": recurrent_of(cell="tanh", bidirectional=False, feeding="context"),
    "hard": recurrent_of(
        attention="general", attention_reading="hard", feeding="attentional"
    ),
    "dilated, separate": model_of(
        architecture="convolutional", source_vocab_size=14, tied_embeddings="none"
    ),
    "relative": model_of(positions="relative", max_positions=2, d_v=4),
    "far relative": model_of(positions="relative", max_positions=40, num_heads=1),
    "projected keys": model_of(encoder_projected_keys=3),
    "global": model_of(
        attention_window=2, encoder_global_positions=2, positions="rotary", **PUBLISHED
    ),
    "rotary window": model_of(
        positions="rotary", d_k=6, attention_window=4, norm_first=True
    ),
    "ssru": model_of(decoder_layers=2, decoder_self_attention="ssru", **PUBLISHED),
    **{name: model_of(**changes) for name, changes in HYBRIDS.items()},
}  # fmt: skip
SOURCES = np.array(
    [[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, 12, 13, EOS, PAD]], np.int32
)
LIMITS = (4, 6, 5)  # tokens of the hypotheses of each row, BOS included
LONGEST = max(LIMITS)
MOST = 144  # hypotheses that one test grows


@functools.partial(jax.jit, static_argnums=0)
def begin(decoder, params):
    """The weights of a decoder, and its memory of SOURCES."""
    weights = decoder.weights(params)
    return weights, decoder.encode(weights, SOURCES)


step = jax.jit(lambda decoder, *args: decoder.step(*args), static_argnums=0)
teach = jax.jit(lambda model, *args: model.logits(*args), static_argnums=0)


class Walk:
    """Random hypotheses, grown step by step as a search would.

    When those of row b have LIMITS[b] tokens, new ones begin. At each step the parent
    of a hypothesis is any of its sentence's.
    """

    def __init__(self, model, *, width, length, memory=None):
        self.model, self.params = model, params_of(model)
        self.weights, encoded = begin(model.decoder, self.params)
        self.memory = memory or encoded
        self.draw, self.clock = np.random.default_rng(7), 0
        self.ages = np.zeros(3, np.int32)
        self.tokens = np.full((3, width), BOS, np.int32)
        self.paths = [[()] * width] * 3
        self.ancestors = np.zeros((3, width, length), np.int32)
        cache = model.decoder.empty_cache(batch=3, width=width, length=length)
        # A step must not read slots that no step has written.
        self.cache = jax.tree.map(lambda leaf: np.full_like(leaf, 100), cache)
        self.seen = []  # (source row, tokens so far, logits of the next)

    def go(self, steps: int):
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        _, width, length = self.ancestors.shape
        self.ancestors[:, :, self.clock % length] = range(width)
        newest = Newest(self.tokens, self.ages, np.int32(self.clock), self.ancestors)
        logits, self.cache = step(
            self.model.decoder, self.weights, self.memory, self.cache, newest
        )
        assert logits.dtype == jnp.float32
        logits = np.asarray(logits)
        self.clock += 1
        for row, (paths, limit) in enumerate(zip(self.paths, LIMITS, strict=True)):
            self.seen += [
                (row, *each) for each in zip(paths, logits[:, row].T, strict=True)
            ]
            parents = self.draw.integers(width, size=width)
            words = self.draw.integers(EOS + 1, VOCABULARY, width)
            grown = [(*paths[p], int(w)) for p, w in zip(parents, words, strict=True)]
            is_end = self.ages[row] == limit - 1
            self.paths[row] = [()] * width if is_end else grown
            self.tokens[row] = BOS if is_end else words
            self.ages[row] = 0 if is_end else self.ages[row] + 1
            self.ancestors[row] = self.ancestors[row, parents]

    def resize(self, length: int) -> None:
        clock, width = jnp.int32(self.clock), self.ancestors.shape[1]
        self.cache = self.model.decoder.resize_cache(
            self.cache, clock, width=width, length=length
        )
        ancestors = resize_ring(
            jnp.asarray(self.ancestors), clock, axis=2, length=length
        )
        self.ancestors, self.clock = np.array(ancestors), length

    def batch(self) -> Batch:
        """The paths that were seen, one a row."""
        rows = np.zeros(MOST, np.int32)
        target = np.full((MOST, LONGEST), EOS, np.int32)
        for index, (row, path, _) in enumerate(self.seen):
            rows[index] = row
            target[index, : len(path)] = path
        source = SOURCES[rows]
        segments = (source != PAD).astype(np.int32)
        return Batch(source, target, segments, np.ones_like(target))

    def assert_like(self, forced, atol) -> None:
        """Each logit that was seen, by the logits [MOST, T, V] of `batch`."""
        for own, (_, path, logits) in zip(np.asarray(forced), self.seen, strict=False):
            np.testing.assert_allclose(logits, own[len(path)], 0, atol, equal_nan=False)

    def assert_like_teacher_forcing(self) -> None:
        self.assert_like(teach(self.model, self.params, self.batch()), 2e-5)


FEWER = {name for name in HYBRIDS if name.endswith("to convolutional")}
SIZES = [
    ("paper", 1),
    *(pytest.param(n, 3, marks=[pytest.mark.slow] * (n in FEWER)) for n in MODELS),
]


@pytest.mark.parametrize(("name", "width"), SIZES)
def test_a_step_has_the_logits_of_teacher_forcing(name, width):
    """For rows that begin at different steps, over several turns of the ring."""
    walk = Walk(MODELS[name], width=width, length=LONGEST).go(14)
    assert walk.ages.tolist() == [2, 2, 4]
    walk.assert_like_teacher_forcing()


@pytest.mark.parametrize("name", ["odd sizes", "many heads", "window", "rotary window"])
def test_the_operations_for_tpus_have_the_same_logits(name, branches_of_tpu):
    device = AbstractDevice("TPU v5 lite", num_cores=1, platform="tpu")
    mesh = AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        walk = Walk(MODELS[name], width=3, length=LONGEST).go(5)
        walk.resize(LONGEST + 2)
        walk.go(3)
    assert walk.cache[0].key.ndim == 3
    walk.assert_like_teacher_forcing()


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("paper", [(4, 6), (11, 3), (3, 6)]),
        ("many heads", [(4, 6), (11, 3), (3, 6)]),
        ("rotary window", [(3, 3)] * 3),  # of three slots
    ],
)
def test_blocks_of_keys_for_cpus_have_the_same_logits(name, blocks, monkeypatch):
    monkeypatch.setattr(cached_attention, "BLOCK", (3, 6))
    device = AbstractDevice("cpu", num_cores=1, platform="cpu")
    mesh, found = AbstractMesh((), (), abstract_device=device), []
    with jax.sharding.use_abstract_mesh(mesh):
        walk = Walk(MODELS[name], width=3, length=8)
        for length in (8, 11, 6):
            walk.resize(length)
            walk.go(4)
            _, count, _, size = walk.cache[0].key.shape
            found.append((count // MODELS[name].config.num_heads, size))
    assert found == blocks
    walk.assert_like_teacher_forcing()


@pytest.mark.parametrize(
    ("model", "slots"),
    [
        (model_of(decoder_layers=2), 11),
        (model_of(attention_window=4), 3),  # a window keeps what it sees
        (MODELS["ssru"], 1),  # the state
        (
            model_of(architecture="convolutional", decoder_layers=2, max_dilation=2),
            3,  # and 5 of the second layer
        ),
        (model_of(architecture="convolutional", kernel_width=11), 11),
    ],
)
def test_a_ring_may_grow_and_shrink_between_two_steps(model, slots):
    walk = Walk(model, width=3, length=8)
    for length in (8, 6, 8, 11):
        walk.resize(length)
        walk.go(4)
    walk.assert_like_teacher_forcing()
    key = jax.tree.leaves(walk.cache)[0]
    assert key.size == 3 * 3 * slots * model.d_model


def test_a_memory_may_grow_and_shrink_by_padding():
    model = MODELS["paper"]
    memory, resize = Walk(model, width=3, length=6).memory, model.decoder.resize_memory
    wide = resize(memory, length=9)
    assert wide.is_real.shape == (3, 9)
    jax.tree.map(np.testing.assert_array_equal, resize(wide, length=5), memory)

    def seen(memory):
        walk = Walk(model, width=3, length=6, memory=memory).go(3)
        return np.stack([logits for _, _, logits in walk.seen])

    expected = seen(memory)
    np.testing.assert_allclose(seen(wide), expected, rtol=0, atol=1e-5)
    narrow = seen(resize(memory, length=4))  # the first source has five tokens
    difference = np.abs(narrow - expected).reshape(3, 3, 3, -1).max(axis=(0, 2, 3))
    assert difference[0] > 1e-3
    assert (difference[1:] < 1e-5).all()


@functools.partial(jax.jit, static_argnums=0)
def forced_and_gradients(model, params, batch):
    """Logits, and the gradient of the sum of log-probabilities of the targets."""

    def loss(params):
        logits = model.logits(params, batch)
        scores = jax.nn.log_softmax(logits)
        return jnp.take_along_axis(scores, batch.target[..., None], -1).sum(), logits

    grads, logits = jax.grad(loss, has_aux=True)(params)
    return logits, grads


@pytest.mark.parametrize(
    ("name", "activations"),
    [
        ("relative", "bfloat16"), ("projected keys", "bfloat16"),
        ("global", "bfloat16"), ("dilated", "bfloat16"),
        ("deep and local", "bfloat16"), ("context first", "bfloat16"),
        pytest.param("separable", "bfloat16", marks=pytest.mark.slow),
        ("relative", "float32"), ("global", "float32"),
        pytest.param("ssru", "bfloat16", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_bfloat16_decodes_and_trains_nearly_the_same(name, activations):
    """Logits are within 0.06 of their standard deviation, 15 times 2^-8.

    A number in bfloat16 is within 2^-9 of what it rounds. The largest difference
    measured is 0.036 of the deviation, that of "global".
    """
    exact = MODELS[name]
    config = replace(exact.config, dtype="bfloat16")
    model = replace(exact, config=config, activation_dtype=activations)
    walk = Walk(model, width=3, length=LONGEST).go(6)
    held = {str(leaf.dtype) for leaf in jax.tree.leaves((walk.memory, walk.cache))}
    has_states = exact.config.architecture == "recurrent" or "ssru" in name  # float32
    assert held - {"bool"} == {activations} | ({"float32"} if has_states else set())
    assert walk.weights.embedding.dtype == jnp.bfloat16
    forced, grads = forced_and_gradients(model, walk.params, walk.batch())
    expected = teach(exact, walk.params, walk.batch())
    atol = 0.06 * np.std(expected)
    walk.assert_like(forced, atol)
    walk.assert_like(expected, atol)
    with pytest.raises(AssertionError):
        walk.assert_like(expected, 1e-4)
    for leaf in jax.tree.leaves(grads):
        assert leaf.dtype == jnp.float32
        assert np.isfinite(leaf).all()
        assert np.any(leaf)


def factors(lowered: jax.stages.Lowered) -> list[str]:
    """The types of the factors of all products in bfloat16, with their layouts."""
    text = lowered.compiler_ir("hlo").as_hlo_text()
    types = dict(re.findall(r"^ *(?:ROOT )?(\S+) = (\S+) ", text, re.MULTILINE))
    products = re.findall(r" dot\((\S+), (\S+)\)", text)
    found = [types[name] for pair in products for name in pair]
    return [each for each in found if each.startswith("bf16")]


@pytest.mark.parametrize("name", ["paper", "relative", "all others", "ssru"])
def test_factors_in_bfloat16_lie_by_rows_on_cpus(name):
    """XLA's CPU compiler casts others to float32 (see `mixed_precision`)."""
    exact = MODELS[name]
    config = replace(exact.config, dtype="bfloat16")
    model = replace(exact, config=config, activation_dtype="float32")
    walk = Walk(model, width=3, length=LONGEST)
    newest = Newest(walk.tokens, walk.ages, np.int32(0), walk.ancestors)
    state = walk.weights, walk.memory, walk.cache, newest
    stack = model.config
    of_encoder = 6 * stack.encoder_layers + stack.decoder_layers
    found = factors(begin.lower(model.decoder, walk.params))
    assert len(found) == 2 * of_encoder
    of_step = factors(step.lower(model.decoder, *state))
    of_layer = 5 if stack.has_ssru else 6
    assert len(of_step) == 2 * (of_layer * stack.decoder_layers + 1)
    for each in [*found, *of_step]:
        layout = re.search(r"{(.*)}", each)[1].split(",")
        assert layout == sorted(layout, reverse=True), each
