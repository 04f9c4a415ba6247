"""Translator: static shapes, the order of sentences, and the cache, on a tiny model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.batch import BOS, EOS, PAD, Batch
from jaxformer.decoding import translate
from jaxformer.decoding.search import beam_search
from jaxformer.decoding.translate import (
    Translator,
    bucket_length,
    search_translations,
    source_batches,
)
from jaxformer.model.config import TransformerConfig
from jaxformer.model.transformer import Transformer, init_cache

VOCABULARY = 24
MODEL = Transformer(
    TransformerConfig(
        vocab_size=VOCABULARY, num_layers=2, d_model=16, d_ff=32, num_heads=2, d_k=8,
        d_v=8, dropout=0.1, positions="sinusoidal", max_positions=64, norm_first=False,
        dtype="float32", attention_bias=False, activation="relu", logits_bias=False,
        layer_norm_epsilon=1e-6,
    )
)  # fmt: skip
FIRST_WORD = EOS + 1


class Numbers:
    """Stands in for a tokeniser: a sentence is numbers, and each of them is an id."""

    def encode(self, sentences):
        return [[*map(int, sentence.split()), EOS] for sentence in sentences]

    def decode(self, ids):
        ids = list(ids)
        return " ".join(map(str, ids[: ids.index(EOS)]))


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Most of the time would go into optimising programs that run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def params():
    """Random parameters; the last norm keeps a model from repeating what it reads."""
    row, key = jnp.ones((1, 2), jnp.int32), jax.random.key(5)
    params = nn.unbox(MODEL.init(key, Batch(row, row, row, row), train=False))["params"]
    last = params["decoder"]["layer_1"]["feed_forward_sublayer"]["norm"]
    last["scale"] = 2 * jax.random.normal(key, last["scale"].shape)
    return params


@pytest.fixture(scope="module")
def make_translator(params):
    """Make a translator, the same one for the same settings."""

    @functools.cache
    def make(*, batch_tokens, beam_size=3, rows=None):
        return Translator(
            MODEL, params, Numbers(), beam_size=beam_size, alpha=0.6,
            extra_length=5, batch_tokens=batch_tokens, rows=rows,
        )  # fmt: skip

    return make


@pytest.fixture(scope="module")
def sentences():
    """Sixteen sentences of 1 to 15 words: all of one bucket."""
    draw = np.random.default_rng(0)
    lengths = [1, 15, *draw.integers(1, 16, 14)]
    words = [draw.integers(FIRST_WORD, VOCABULARY, n) for n in lengths]
    return [" ".join(map(str, row)) for row in words]


def sequences_of(lengths):
    return [[FIRST_WORD] * (length - 1) + [EOS] for length in lengths]


# Shapes ---------------------------------------------------------------------------


def test_bucket_lengths_climb_by_about_half():
    ladder = sorted({bucket_length(length) for length in range(1, 200)})
    assert ladder == [16, 24, 40, 64, 96, 144, 216]
    assert bucket_length(16) == 16
    assert bucket_length(17) == 24


@pytest.mark.parametrize("budget", [1, 64, 100, 1000])
def test_batches_hold_every_sequence_once_in_few_shapes(budget):
    lengths = np.random.default_rng(1).integers(1, 60, 150)
    sequences = sequences_of(lengths)
    seen, shapes, widths = [], set(), []
    for indices, source in source_batches(sequences, batch_tokens=budget):
        rows, length = source.shape
        assert source.dtype == np.int32
        assert rows & (rows - 1) == 0
        assert rows == 1 or rows * length <= budget
        assert len(indices) <= rows
        assert rows == 1 or len(indices) > rows // 2
        assert {bucket_length(lengths[i]) for i in indices} == {length}
        for row, index in zip(source, indices, strict=False):
            assert row[: lengths[index]].tolist() == sequences[index]
            assert (row[lengths[index] :] == PAD).all()
        assert (source[len(indices) :] == PAD).all()
        seen += indices.tolist()
        shapes.add(source.shape)
        widths.append(length)
    assert sorted(seen) == list(range(150))
    assert widths == sorted(widths, reverse=True)
    # A bucket has its full batches, and one rest.
    assert len(shapes) <= 2 * len(set(widths))


def test_no_sequences_are_no_batches():
    assert list(source_batches([], batch_tokens=100)) == []


# Sentences ------------------------------------------------------------------------


def test_translations_do_not_depend_on_batches_or_neighbours(
    make_translator, sentences
):
    one_by_one = make_translator(batch_tokens=16)(sentences)
    assert len(set(one_by_one)) > len(sentences) / 2
    together = make_translator(batch_tokens=256)
    assert together(sentences) == one_by_one
    order = np.random.default_rng(2).permutation(len(sentences))
    shuffled = together([sentences[i] for i in order])
    assert shuffled == [one_by_one[i] for i in order]


def test_blank_sentences_stay_blank_and_take_no_place(make_translator, sentences):
    one, two = sentences[:2]
    translator = make_translator(batch_tokens=16)
    found = translator(["", one, "  ", two, "\t"])
    assert found == ["", *translator([one]), "", *translator([two]), ""]
    assert translator([" "]) == [""]
    assert translator([]) == []


def test_rows_on_several_devices_change_nothing(make_translator, params, sentences):
    """Three devices divide no batch of 1, 2, 4, ... rows: empty ones fill it up."""
    mesh = jax.make_mesh((3,), ("data",), (AxisType.Auto,), devices=jax.devices()[:3])
    spread = make_translator(batch_tokens=64, rows=NamedSharding(mesh, P("data")))
    before = spread.params
    try:
        spread.params = jax.device_put(params, NamedSharding(mesh, P()))
        found = spread(sentences)
    finally:
        spread.params = before
    assert found == make_translator(batch_tokens=64)(sentences)


@pytest.mark.parametrize("of", [1, 2, 3, 40])
def test_parts_make_the_whole_in_the_same_batches(
    make_translator, sentences, of, monkeypatch
):
    sentences = [*sentences[:9], " ", *sentences[9:], ""]
    translator = make_translator(batch_tokens=16)
    batches = []
    search = translator._search

    def record(params, source):
        batches.append(np.asarray(source).tolist())
        return search(params, source)

    whole = translator(sentences)
    monkeypatch.setattr(translator, "_search", record)
    translator(sentences)
    expected, heeded, found = sorted(batches), [], {}
    batches.clear()
    for number in range(of):
        calls = []
        heed = functools.partial(calls.append, number)
        share = translator.translate_part(sentences, (number, of), heed)
        assert not set(found) & set(dict(share))
        found |= dict(share)
        heeded.append(len(calls))
    assert sorted(batches) == expected
    assert {index: whole[index] for index in found} == found
    assert [whole[index] for index in range(len(whole)) if index not in found] == [
        ""
    ] * 2
    assert len(set(heeded)) == 1  # equally often, so that all can agree
    assert heeded[0] == -(-len(expected) // of)


def test_whoever_is_heeded_before_a_batch_may_end_the_work(make_translator, sentences):
    class Enough(Exception):
        pass

    left = iter([None, None])

    def heed():
        if next(left, Enough) is Enough:
            raise Enough

    with pytest.raises(Enough):
        make_translator(batch_tokens=16).translate_part(sentences, (0, 1), heed)


def test_new_parameters_are_used(make_translator, params, sentences):
    translator = make_translator(batch_tokens=16)
    before = translator(sentences[:1])
    try:
        translator.params = jax.tree.map(lambda leaf: -leaf, params)
        assert translator(sentences[:1]) != before
    finally:
        translator.params = params
    assert translator(sentences[:1]) == before


@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_sentence_has_its_own_limit(params, beam_size):
    never_ends = {**params, "embedding": params["embedding"].at[EOS].set(0.0)}
    lengths = [2, 9, 0, 16]
    source = np.full((4, 16), PAD, np.int32)
    for row, length in zip(source, lengths, strict=True):
        row[:length] = FIRST_WORD
    limits = {n: n + 5 for n in lengths if n}
    found = jax.jit(
        functools.partial(
            search_translations, MODEL, beam_size=beam_size, alpha=9.0, extra_length=5
        )
    )(never_ends, source)
    best = found.lengths[:, 0].tolist()
    assert best == [limits[2], limits[9], 0, limits[16]]
    assert (found.tokens[2] == PAD).all()


def test_a_beam_of_one_is_greedy(make_translator, params, sentences, monkeypatch):
    greedy = make_translator(beam_size=1, batch_tokens=256)(sentences)
    as_beam = functools.partial(beam_search, beam_size=1, alpha=0.0)
    monkeypatch.setattr(translate, "greedy_search", as_beam)
    beam = Translator(
        MODEL, params, Numbers(), beam_size=1, alpha=0.6, extra_length=5,
        batch_tokens=256, rows=None,
    )  # fmt: skip
    assert beam(sentences) == greedy


# The cache ------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3])
def test_cached_decoding_equals_teacher_forcing(params, width):
    draw = np.random.default_rng(4)
    rows, length, steps = 2, 9, 7
    lengths = np.array([length, 4])  # the second source is padded
    segments = (np.arange(length) < lengths[:, None]).astype(np.int32)
    source = draw.integers(FIRST_WORD, VOCABULARY, (rows, length)) * segments
    target = draw.integers(FIRST_WORD, VOCABULARY, (rows, width, steps))  # [B, W, T]

    def repeat(array):  # one row a hypothesis, as training would see them
        return jnp.repeat(jnp.asarray(array, jnp.int32), width, axis=0)

    flat = jnp.asarray(target.reshape(rows * width, steps), jnp.int32)
    batch = Batch(repeat(source), flat, repeat(segments), jnp.ones_like(flat))
    variables = {"params": params}
    teach = jax.jit(functools.partial(MODEL.apply, train=False))
    expected = teach(variables, batch)  # [B*W, T, V]
    expected = expected.reshape(rows, width, steps, VOCABULARY)

    remember = jax.jit(functools.partial(MODEL.apply, method="source_memory"))
    memory = remember(variables, jnp.asarray(source, jnp.int32), segments)
    step_fn = jax.jit(functools.partial(MODEL.apply, method="decode_step"))
    cache = init_cache(MODEL.config, batch=rows, width=width, length=steps)
    tokens = jnp.full((rows, width), BOS, jnp.int32)
    for step in range(steps):
        logits, cache = step_fn(variables, tokens, jnp.int32(step), memory, cache)
        np.testing.assert_allclose(logits, expected[:, :, step], rtol=0, atol=1e-5)
        tokens = jnp.asarray(target[:, :, step], jnp.int32)
