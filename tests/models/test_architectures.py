"""Every architecture but the Transformer, which others test in depth.

Their updates on meshes, their diagnosis and their searches.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.batch import Batch
from jaxformer.decoding import shapes
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.translator import Translator
from jaxformer.tokens import EOS, PAD
from jaxformer.training.divergence import diagnose_update
from jaxformer.training.sharding import (
    batch_sharding,
    born_sharded,
    make_mesh,
    on_mesh,
    put_batch,
)
from tests.decoding.tables import VOCABULARY, WORDS, Wanted, assert_same, plain_search
from tests.decoding.tiny import Numbers, teacher_forced
from tests.models import tiny
from tests.models.tiny import VALUES, model_of
from tests.training.setups import init_of, mesh_of, optimizer_of, step_of, training_of

OPTIMIZER, SCHEDULE = optimizer_of(
    peak_learning_rate=2 * (16 * 20) ** -0.5, epsilon=1e-4
)


KINDS = [{"architecture": name} for name in sorted(VALUES.keys() - {"transformer"})]
SEPARABLE = pytest.param(
    {"architecture": "convolutional", "separable": True}, marks=pytest.mark.slow
)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind["architecture"])
def model(request):
    return model_of(VOCABULARY, **request.param)


def params_of(model, seed: int) -> dict:
    """Parameters with which different sentences have different translations."""
    if model.config.architecture != "recurrent":
        return tiny.params_of(model, seed)
    params = tiny.params_of(model, seed + 1)
    larger = jax.tree.map(lambda leaf: 4 * leaf if leaf.ndim > 1 else leaf, params)
    return {**larger, "embedding": 8 * params["embedding"]}


def copies(rows: int) -> Batch:
    """Sentences of 1 to 5 words, EOS included, to be copied."""
    draw = np.random.default_rng(0)
    is_real = np.arange(5)[None] < draw.integers(1, 6, (rows, 1))
    ids = np.where(is_real, draw.choice(WORDS, (rows, 5)), PAD).astype(np.int32)
    ids[np.arange(rows), is_real.sum(axis=1) - 1] = EOS
    return Batch(ids, ids, *[is_real.astype(np.int32)] * 2)


# Training -------------------------------------------------------------------------


@functools.cache
def on_one_device(model):
    """The first state, and the result of an update with all rows."""
    init = jax.jit(lambda: nn.unbox(init_of(model, OPTIMIZER)()))
    return init(), step_of(model, OPTIMIZER)(init(), (copies(16),))


@pytest.mark.slow
def test_a_mesh_makes_the_update_of_one_device(model):
    mesh = make_mesh(data=2, fsdp=4, tensor=1)
    with on_mesh(mesh):
        state = born_sharded(mesh, init_of(model, OPTIMIZER))
        assert not state.params["embedding"].is_fully_replicated
        step = step_of(model, OPTIMIZER, mesh=mesh)
        found = step(state, (put_batch(mesh, copies(16)),))
    whole = on_one_device(model)[1]
    np.testing.assert_allclose(found[1].sums, whole[1].sums, rtol=1e-5)
    for ours, theirs in zip(*map(jax.tree.leaves, (found[0], whole[0])), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.01 * float(SCHEDULE(0)))


@pytest.mark.parametrize("model", [*KINDS, SEPARABLE], indirect=True, scope="module")
def test_what_is_not_finite_is_named(model):
    """Every matrix but the embeddings has an output that is watched."""
    state, batch = on_one_device(model)[0], copies(4)
    names = model.watch(state.params, batch, jax.random.key(0))
    assert all(names.values())
    leaves = jax.tree_util.tree_flatten_with_path(state.params)[0]
    for path, leaf in leaves:
        owner = "/".join(key.key for key in path)
        if leaf.ndim > 1 and "embedding" not in owner:
            assert any(owner.startswith(f"{name}/") for name in names)
    path, leaf = leaves[0]
    owner = functools.reduce(dict.__getitem__, (k.key for k in path[:-1]), state.params)
    owner[path[-1].key] = leaf.at[..., 0].set(jnp.inf)
    finding = diagnose_update(model, state, (batch,), training_of())
    assert finding.parameter in "/".join(key.key for key in path)


# Decoding -------------------------------------------------------------------------


def score_of(members, source: str):
    """Log-probabilities of the next token by teacher forcing, the members' mean."""

    @functools.cache
    def score(tokens):
        target = " ".join(map(str, tokens))
        each = [
            teacher_forced(model, params, source, target, 12)[-1]
            for model, params in members
        ]
        return np.log(np.exp(each).mean(axis=0))

    return score


@pytest.mark.parametrize(
    ("others", "search"),
    [
        ([], {"beam_size": 1, "temperature": 0.8, "seed": 1}),
        ([model_of(VOCABULARY)], {"beam_size": 3, "n_best": 3}),
    ],
    ids=["samples", "beam of an ensemble with a Transformer"],
)
def test_continuous_batching_finds_what_a_plain_search_finds(
    model, others, search, monkeypatch
):
    """For three times as many sentences as slots, of several lengths."""
    bucket = 16 if others else 4
    monkeypatch.setattr(shapes, "SHORTEST_BUCKET", bucket)
    options = {"extra_length": 3, "batch_tokens": 4 * bucket, **search}
    options = TranslateOptions(alpha=1.0, **options)
    members = [(model, params_of(model, 0))]
    members += [(other, params_of(other, 3)) for other in others]
    models, params = zip(*members, strict=True)
    translator = Translator(
        models,
        params,
        Numbers(),
        language="en",
        options=options,
        rows=batch_sharding(mesh_of((1, 1, 1))),
    )
    draw = np.random.default_rng(2)
    lengths = draw.integers(1, 6, 12)
    sentences = [" ".join(map(str, draw.choice(WORDS, n))) for n in lengths]
    found = translator.translate(sentences)
    assert len({each[0].text for each in found}) > 4
    for number, (sentence, hypotheses) in enumerate(zip(sentences, found, strict=True)):
        limit = len(sentence.split()) + 1 + options.extra_length
        wanted = Wanted(limit, seed=options.seed * 1_000_003 + number)
        expected = plain_search(score_of(members, sentence), wanted, options)
        expected = sorted(expected, reverse=True)[: options.n_best]
        ours = [(h.score, (*map(int, h.text.split()), EOS)) for h in hypotheses]
        assert_same(ours, expected)
