"""Recurrent models: cells, attention, packing, sizes and operations."""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.extend.core import jaxprs_in_params

from jaxformer.batch import Batch, shift_right
from jaxformer.models.architectures import make_model
from jaxformer.models.recurrent import attention, cells
from jaxformer.models.recurrent.step import first_past
from jaxformer.models.sequence_model import Newest, parameter_count
from jaxformer.system.errors import InputError
from jaxformer.tokens import BOS, PAD
from tests.models import tiny
from tests.models.test_transformer import BATCH, PACKED, VARIANTS
from tests.models.tiny import config_of, params_of, shapes_of

model_of = functools.partial(tiny.model_of, architecture="recurrent")
D, H, ROWS, LENGTH = 6, 5, 3, 7
DRAW = np.random.default_rng(0)
MODELS = {
    name: make_model(config, vocab_size=tiny.VOCABULARY, rematerialise=False)
    for name, config in VARIANTS.items()
    if config.architecture == "recurrent"
}


# Cells against PyTorch ----------------------------------------------------------------


def cell_of(kind: str) -> cells.CellWeights:
    size = cells.GATES[kind] * H
    shapes = (D, size), (H, size), (size,), (H,)
    matrices = [np.float32(DRAW.normal(0.0, 0.5, shape)) for shape in shapes]
    return cells.CellWeights(
        *matrices[:3], matrices[3] if kind == "gru" else None, None
    )


def torch_layer(torch, kind: str, cell: cells.CellWeights):
    kinds = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "tanh": torch.nn.RNN}
    layer = kinds[kind](D, H, batch_first=True)
    own_bias = np.zeros_like(cell.bias)
    if kind == "gru":
        own_bias[2 * H :] = cell.new_bias
    values = cell.input.T, cell.recurrent.T, cell.bias, own_bias
    for parameter, value in zip(layer.parameters(), values, strict=True):
        parameter.data = torch.from_numpy(np.array(value))
    return layer.double()


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("kind", cells.GATES)
def test_a_layer_and_its_gradients_are_those_of_torch(kind, is_reverse):
    """For two sentences in a row, each of which begins with a state of its own."""
    torch = pytest.importorskip("torch", reason="extra `torch` is not installed")
    cell, cut = cell_of(kind), 3
    x = np.float32(DRAW.normal(size=(ROWS, LENGTH, D)))
    start = np.float32(DRAW.normal(size=(ROWS, LENGTH, H)))
    weight = np.float32(DRAW.normal(size=(ROWS, LENGTH, H)))
    is_start = np.zeros((ROWS, LENGTH), bool)
    begins = (cut - 1, LENGTH - 1) if is_reverse else (0, cut)
    is_start[:, begins] = True

    def loss(cell, x, start):
        y = cells.recur(cell, x, is_start, start, is_reverse=is_reverse)
        return (y * weight).sum(), y

    (_, found), grads = jax.jit(
        jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
    )(cell, x, start)  # fmt: skip
    layer = torch_layer(torch, kind, cell)
    inputs = torch.from_numpy(x).double().requires_grad_()
    starts = torch.from_numpy(start).double().requires_grad_()
    parts = []
    for part, begin in zip((inputs[:, :cut], inputs[:, cut:]), begins, strict=True):
        part = part.flip(1) if is_reverse else part
        first = starts[None, :, begin].contiguous()
        y, _ = layer(part.contiguous(), (first, first) if kind == "lstm" else first)
        parts.append(y.flip(1) if is_reverse else y)
    expected = torch.cat(parts, 1)
    (expected * torch.from_numpy(weight)).sum().backward()
    np.testing.assert_allclose(found, expected.detach(), atol=2e-6)
    matrix, own, bias, own_bias = (each.grad.numpy() for each in layer.parameters())
    theirs = [matrix.T, own.T, bias]
    if kind == "gru":
        theirs.append(own_bias[2 * H :])
    theirs += [inputs.grad.numpy(), starts.grad.numpy()]
    for ours, each in zip(jax.tree.leaves(grads), theirs, strict=True):
        np.testing.assert_allclose(ours, each, atol=2e-5)


# Attention against the formulas of the papers -----------------------------------------


def by_formula(weights, query, states, mask, window):
    """Contexts in float64, query by query: Bahdanau A.1.2, Luong 3.1 and 3.2."""
    w = {name: np.float64(each) for name, each in weights.items()}
    contexts = np.zeros_like(query, np.float64)
    for row, t in np.ndindex(query.shape[:2]):
        h, places = np.float64(query[row, t]), np.flatnonzero(mask[row, t])
        source = np.float64(states[row, places])
        if "score" in w:
            scores = [
                w["score"] @ np.tanh(h @ w["query"] + s @ w["key"]) for s in source
            ]
        else:
            scores = [h @ (s @ w["key"] if "key" in w else s) for s in source]
        factor = np.ones(len(places))
        if window is not None:
            place = w["position_score"] @ np.tanh(h @ w["position"])
            centre = len(places) / (1 + np.exp(-place))
            distance = np.arange(len(places)) - centre
            factor = np.exp(-(distance**2) / (2 * (window / 2) ** 2))
            scores = np.where(np.abs(distance) <= window, scores, -np.inf)
        exponentials = np.exp(scores - np.max(scores))
        shares = exponentials / exponentials.sum() * factor
        contexts[row, t] = shares @ source
    return contexts


@pytest.mark.parametrize("queries", [2, 2 * attention.CHUNK + 1])
@pytest.mark.parametrize("kind", ["dot", "additive", "general", "local"])
def test_attention_is_that_of_the_papers(kind, queries):
    window = 2 if kind == "local" else None
    module = attention.RecurrentAttention(kind, D, jnp.dtype("float32"))
    shapes = jax.eval_shape(module.init_with_output, jax.random.key(0))[0]
    weights = {k: np.float32(DRAW.normal(size=v.shape)) for k, v in shapes.items()}
    query = np.float32(DRAW.normal(size=(ROWS, queries, D)))
    states = np.float32(DRAW.normal(size=(ROWS, LENGTH, D)))
    mask = np.zeros((ROWS, queries, LENGTH), bool)
    for row, t in np.ndindex(ROWS, queries):  # segments of several lengths
        mask[row, t, (t + row) % 3 : LENGTH - row] = True
    source = attention.source_of(weights, states)
    config = config_of("recurrent", attention=kind, attention_window=window)
    attend = jax.jit(attention.attend, static_argnums=0)
    found, shares, _ = attend(config, weights, query, source, mask)
    np.testing.assert_array_equal(shares * ~mask, 0.0)
    expected = by_formula(weights, query, states, mask, window)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    if kind == "local":
        return
    hard = replace(config, attention_reading="hard")
    largest, same, _ = attend(hard, weights, query, source, mask)
    np.testing.assert_array_equal(same, shares)
    best = np.argmax(shares, axis=-1)[..., None]
    np.testing.assert_array_equal(largest, np.take_along_axis(states, best, axis=1))
    noise = np.zeros_like(shares)
    is_soft = np.arange(queries)[None] % 2 == np.arange(ROWS)[:, None] % 2
    draws = attention.Draws(noise, is_soft)
    drawn, _, log_choice = attend(hard, weights, query, source, mask, draws)
    both = np.where(is_soft[..., None], found, largest)
    np.testing.assert_allclose(drawn, both, atol=1e-6)
    logs = np.log(np.take_along_axis(shares, best, axis=-1)[..., 0])
    np.testing.assert_allclose(log_choice, np.where(is_soft, 0, logs), atol=1e-5)


# Whole models -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deep recurrent", "forwards"])
def test_a_deep_model_has_the_logits_of_the_same_one_in_torch(name):
    """PyTorch packs sequences, and has layers and attention of its own."""
    torch = pytest.importorskip("torch", reason="extra `torch` is not installed")
    from tests.models.torch_lstm import AttentionalLSTM

    model = MODELS[name]
    params, theirs = params_of(model), AttentionalLSTM(model.config, tiny.VOCABULARY)

    def put(parameter, value):
        parameter.data = torch.from_numpy(np.array(value))

    def copy(layer, **cells):
        for suffix, cell in cells.items():
            put(getattr(layer, f"weight_ih_l0{suffix}"), cell["input"]["kernel"].T)
            put(getattr(layer, f"weight_hh_l0{suffix}"), cell["recurrent"]["kernel"].T)
            put(getattr(layer, f"bias_ih_l0{suffix}"), cell["bias"])
            getattr(layer, f"bias_hh_l0{suffix}").data.zero_()

    for n in range(2):
        encoder = params["encoder"][f"layer_{n}"]
        suffixes = {"forward": "", "backward": "_reverse"}
        copy(theirs.encoder[n], **{suffixes[way]: encoder[way] for way in encoder})
        copy(theirs.decoder[n], **{"": params["decoder"][f"layer_{n}"]})
    put(theirs.embedding.weight, params["embedding"])
    put(theirs.start.weight, params["decoder"]["start"]["kernel"].T)
    put(theirs.start.bias, params["decoder"]["start_bias"])
    put(theirs.key.weight, params["decoder"]["attention"]["key"]["kernel"].T)
    put(theirs.output.weight, params["decoder"]["output"]["kernel"].T)
    ids = BATCH.source, shift_right(BATCH.target, BATCH.target_segments)
    source, target = (torch.from_numpy(np.array(each)).long() for each in ids)
    with torch.no_grad():
        expected = theirs.eval()(source, target, source == PAD)
    found = jax.jit(model.logits)(params, BATCH)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("feeding", ["attentional", "context"])
def test_a_step_feeds_its_output_or_its_last_state(feeding):
    model = model_of(attention="additive", feeding=feeding)
    decoder, ids = model.decoder, np.zeros((2, 1, 4), np.int32)
    weights = decoder.weights(params_of(model))
    memory = decoder.encode(weights, BATCH.source)
    newest = Newest(ids[..., 0] + BOS, ids[:, 0, 0], jnp.int32(0), ids)
    cache = decoder.empty_cache(batch=2, width=1, length=4)
    _, past = jax.jit(decoder.step)(weights, memory, cache, newest)
    is_state = np.array_equal(past.fed, past.states[-1][0])
    assert is_state == (feeding == "context")
    first = first_past(model.config, weights.decoder, memory.start)
    assert first.fed.any() == (feeding == "context")  # else it begins with zeros


def count_of(config) -> int:
    """Parameters by formula, without the embedding."""
    d, gates = config.d_model, cells.GATES[config.cell]
    is_gru, is_fed = config.cell == "gru", config.feeding != "none"

    def layer(inputs, width):
        return gates * width * (inputs + width + 1) + is_gru * width

    matrices = {"none": 0, "dot": 2, "general": 3, "additive": 4, "local": 4}
    vectors = 1 + (config.attention in ("additive", "local"))
    directions = 1 + config.bidirectional
    return (
        config.encoder_layers * directions * layer(d, d // directions)
        + config.decoder_layers * layer(d, d)
        + (1 + matrices[config.attention] + is_fed * gates) * d * d
        + vectors * d
    )


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_arithmetic(name):
    model = MODELS[name]
    found = parameter_count(shapes_of(model))
    assert found == count_of(model.config) + tiny.VOCABULARY * model.d_model


@pytest.mark.parametrize("name", ["forwards", "deep recurrent"])
def test_an_encoder_of_one_direction_does_not_depend_on_later_tokens(name):
    """One of two directions does; earlier tokens matter to both."""
    model, source, changed = MODELS[name], np.full((1, 6), 7), 3
    other = source + (np.arange(6) == changed)
    segments = np.ones((2, 6), np.int32)
    encode = jax.jit(lambda *ids: model.apply(params_of(model), *ids, method="encode"))
    first, second = encode(np.concatenate([source, other]), segments)[0].states
    differs = (first != second).any(axis=-1)
    assert differs[changed:].all()
    assert differs[:changed].all() == model.config.bidirectional


def test_a_model_of_one_direction_may_have_an_odd_width():
    assert model_of(d_model=5, bidirectional=False).d_model == 5
    with pytest.raises(InputError, match=r"it must be even, or set model\.bidirec"):
        model_of(d_model=5)


def test_cells_remember_at_first_and_matrices_have_the_scale_of_their_width():
    model = model_of(d_model=64)
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0)))
    cell = params["decoder"]["layer_0"]
    np.testing.assert_array_equal(cell["bias"], np.repeat([0, 1, 0, 0], 64))
    largest = np.abs(cell["recurrent"]["kernel"]).max()
    assert 0.99 * 64**-0.5 < largest <= 64**-0.5
    assert params["embedding"].std() == pytest.approx(64**-0.5, rel=0.05)


def operations(jaxpr) -> int:
    """Two for each multiplication of a product; a loop's as often as it runs."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (inner, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            contracted = math.prod(left[axis] for axis in inner)
            total += 2 * contracted * math.prod(equation.outvars[0].aval.shape)
        repeats = equation.params.get("length", 1)
        for inside in jaxprs_in_params(equation.params):
            total += repeats * operations(inside)
    return total


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_of_the_program(name):
    """The backward pass has twice as many as the forward pass."""
    model, rows, source, target = MODELS[name], 2, 7, 5
    sides = [jnp.ones((rows, length), jnp.int32) for length in (source, target)]
    program = jax.make_jaxpr(model.logits)(params_of(model), Batch(*sides, *sides))
    assert model.flops(rows, source, target) == 3 * operations(program.jaxpr)


def test_maps_are_of_the_decoder_and_sum_to_one():
    model = MODELS["local"]
    maps = jax.jit(model.attention)(params_of(model), PACKED)
    assert maps.encoder.shape == (0, 1, 1, 9, 9)
    assert maps.cross.shape == (1, 1, 1, 9, 9)
    np.testing.assert_allclose(maps.cross[0, 0, 0, :8].sum(axis=-1), 1.0, rtol=1e-5)
    assert not maps.cross[0, 0, 0, :4, 5:].any()
    fixed = MODELS["fixed context"]
    assert fixed.attention(params_of(fixed), PACKED) is None
