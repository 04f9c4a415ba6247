"""What the devices of a mesh say to each other, and that they learn what one learns.

Eight simulated devices. What crosses between them is read off the compiled update.
"""

import collections
import functools
import itertools
import math
import re
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from benchmarks.collectives import Collective, collectives, shapes_in
from jaxformer.batch import Batch, Rows
from jaxformer.data.pipeline import updates
from jaxformer.data.plan import make_plan
from jaxformer.data.store import Ragged, TokenizedCorpus
from jaxformer.errors import InputError
from jaxformer.models import local_attention
from jaxformer.models.sequence_model import parameter_count
from jaxformer.training import loss_kernel
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import (
    AXES,
    abstract_state,
    copy_to,
    local_mesh,
    make_mesh,
    on_mesh,
    put_batch,
    rows_here,
    abstract_state,
)
from jaxformer.training.step import TrainStep, init_state
from tests.models.tiny import model_of

ONE, DATA, FSDP, ALL, TENSOR = (1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)
MESHES = (ONE, DATA, FSDP, ALL, TENSOR)

# No size is another's multiple by chance: V is the only one with the factor 13.
SIZES = {
    "vocab_size": 520, "d_model": 64, "d_ff": 96, "num_heads": 8, "d_k": 16, "d_v": 24,
    "layers": 2,
}  # fmt: skip
V, D, LAYERS = SIZES["vocab_size"], SIZES["d_model"], SIZES["layers"]
ROWS, LENGTH = 9, 16  # of a batch; 9 rows fill up to 16 on 8 shards, to 12 on 4
BLOCK = 4  # positions, of restricted self-attention
CHUNK = 24  # tokens of the loss's chunks: there are several on each of the meshes

OPTIMIZER, _ = make_optimizer(
    d_model=D,
    warmup_steps=20,
    learning_rate_scale=1.0,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-9,
    clip_norm=None,
)


def make_model(**changed):
    return model_of(**{**SIZES, "dropout": 0.1, **changed})


def init_of(model):
    return functools.partial(init_state, model, OPTIMIZER, seed=0, ema=False)


def mesh_of(sizes):
    """A mesh of the first devices; `make_mesh` always takes all of them."""
    devices = jax.devices()[: math.prod(sizes)]
    return jax.make_mesh(sizes, AXES, (AxisType.Auto,) * 3, devices=devices)


def shards_of(sizes):
    """Into how many parts the rows of a batch are split."""
    data, fsdp, _ = sizes
    return data * fsdp


# --- reading a compiled program ------------------------------------------------------


def arguments_and_results(text):
    """The shapes that one device is given and hands back."""
    layout = re.search(r"entry_computation_layout=\{(.*?)\}\s*(, \w+=|$)", text, re.M)
    arguments, results = layout[1].split("->")
    return shapes_in(arguments), shapes_in(results)


def test_a_program_is_read_right():
    text = """\
HloModule jit_f, entry_computation_layout={(f32[2,3]{1,0}, s32[])->(f32[2]{0})}, x=1

%body.1 (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %g = f32[4]{0} all-gather(%x), channel_id=1, dimensions={0}
}

%add.2 (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b), metadata={op_name="all-reduce(me)"}
}

ENTRY %main.3 (p: f32[2,3], q: s32[]) -> f32[2] {
  %r = (f32[2,3]{1,0}, /*index=1*/bf16[5]{0}) all-reduce(%p, %q), to_apply=%add.2
  %s = f32[] all-reduce-start(%q), channel_id=3
  %t = f32[] all-reduce-done(%s)
  ROOT %get = f32[2]{0} get-tuple-element(%r), index=0
}
"""
    assert collectives(text) == [
        Collective("all-gather", False, ((4,),), 16),
        Collective("all-reduce", True, ((2, 3), (5,)), 34),
        Collective("all-reduce", True, ((),), 4),
    ]
    assert [each.elements for each in collectives(text)] == [4, 11, 1]
    assert arguments_and_results(text) == ([(2, 3), ()], [(2,)])


# --- one update, compiled for each mesh ----------------------------------------------


def random_corpus():
    """Some ids are far more frequent than others: that can be learnt."""
    rng = np.random.default_rng(0)

    def side():
        ends = np.cumsum([0, *rng.integers(3, 9, 800)])
        ids = 3 + rng.random(ends[-1]) ** 4 * (V - 3)
        return Ragged(ids.astype(np.uint16), ends)

    return TokenizedCorpus(side(), side())


CORPUS = random_corpus()
PLAN = make_plan(
    CORPUS.source.lengths,
    CORPUS.target.lengths,
    layout="packed",
    row_length=LENGTH,
    max_shapes=1,
    tokens_per_microbatch=ROWS * LENGTH,
    tokens_per_update=ROWS * LENGTH,
    row_multiple=1,
)


def batches(mesh):
    """The batches of a run from its start on, placed as training places them."""
    every = updates(
        CORPUS, PLAN, seed=0, start=0, executor="python", rows=rows_here(mesh)
    )
    return (put_batch(mesh, batch) for (batch,) in every)


class Program(NamedTuple):
    """The compiled update of a mesh, and what it takes."""

    run: jax.stages.Compiled
    text: str
    state: object  # abstract
    rows: int  # of the batch on one device

    @property
    def collectives(self):
        return collectives(self.text)

    @property
    def parameters(self):
        """The full shape of each."""
        return [leaf.shape for leaf in jax.tree.leaves(self.state.params)]


@functools.cache
def program(sizes, *, has_biases=False, window=None):
    """Of the paper's model, or with biases as published models have, or a window."""
    mesh = mesh_of(sizes)
    model = make_model(
        attention_bias=has_biases, logits_bias=has_biases, attention_window=window
    )
    step = TrainStep(
        model, OPTIMIZER, label_smoothing=0.1, ema_decay=None, max_bad_steps=3
    )
    with (
        on_mesh(mesh),
        mock.patch.object(loss_kernel, "CHUNK_TOKENS", CHUNK),
        mock.patch.object(local_attention, "SMALLEST_BLOCK", BLOCK),
    ):
        state = abstract_state(mesh, init_of(model))
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=leaf.sharding
            ),
            next(batches(mesh)),
        )
        compiled = step.lower(state, batch, accumulate=False).compile()
    rows = batch.source.shape[0] // shards_of(sizes)
    return Program(compiled, compiled.as_text(), state, rows)


def shard_shapes(tree):
    """What one device holds of each leaf."""
    return [leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(tree)]


def counted(shapes):
    """Shapes and how many there are, whichever way round an array lies."""
    return collections.Counter(tuple(sorted(shape)) for shape in shapes)


def as_matrices(shapes):
    """Kernels of heads, [D, H, K] and [H, U, D], as they are multiplied with."""
    return [
        shape
        if len(shape) != 3
        else (shape[0], math.prod(shape[1:]))
        if shape[0] == D
        else (math.prod(shape[:2]), shape[2])
        for shape in shapes
    ]


# --- the same losses on every mesh ---------------------------------------------------


def first_values(abstract):
    """The values of a state with every feed-forward unit far from its kink.

    Half of the hidden units are always on and half always off.
    """
    rng = np.random.default_rng(1)

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        if "hidden" in name and "bias" in name:
            return np.resize(np.float32([4.0, -4.0]), leaf.shape)
        if leaf.ndim == 1:
            return np.full(leaf.shape, float("scale" in name), np.float32)
        deviation = 0.02 if "hidden" in name else 0.1
        return rng.normal(0.0, deviation, leaf.shape).astype(np.float32)

    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    return zeros._replace(
        params=jax.tree_util.tree_map_with_path(fill, abstract.params)
    )


@functools.cache
def twenty_updates(sizes, *, window=None):
    """Loss, NLL, tokens and gradient norm of each; the places that their rows had."""
    mesh, (run, _, abstract, _) = mesh_of(sizes), program(sizes, window=window)
    state = jax.tree.map(
        lambda value, leaf: jax.device_put(value, leaf.sharding),
        first_values(abstract),
        abstract,
    )
    numbers = []
    for batch in itertools.islice(batches(mesh), 20):
        state, report = run(state, batch)
        sums = report.sums
        numbers.append([sums.loss, sums.nll, sums.tokens, report.gradient_norm])
    return np.array(jax.device_get(numbers)), batch.source.shape


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [DATA, FSDP, ALL, TENSOR])
def test_twenty_losses_are_the_same_on_every_mesh(sizes):
    """Dropout is on, epsilon is the paper's, and each mesh adds its empty rows.

    Bound: relative 1e-6, eight units of float32's last place. A loss is a sum of a
    thousand terms in another order (measured: 1.8e-7), and stays so over twenty
    updates because no parameter's gradient is nothing but rounding, which Adam would
    blow up to a full step, and because no unit comes near the kink of its ReLU: where
    rounding decides between on and off there is no bound (measured then: 5e-5).
    """
    expected, _ = twenty_updates(ONE)
    numbers, (rows, _) = twenty_updates(sizes)
    losses, tokens = expected[:, 0], expected[:, 2]
    assert len(set(losses.tolist())) == 20
    assert (losses / tokens)[-1] < (losses / tokens)[0] - 0.1  # it is learning
    assert rows == -(-ROWS // shards_of(sizes)) * shards_of(sizes)
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)


def first_update(sizes):
    """What it reports of a model with biases, none of them zero."""
    run, _, abstract, _ = program(sizes, has_biases=True)
    rng = np.random.default_rng(3)

    def drawn(path, leaf):
        is_bias = "bias" in path[-1].key
        return leaf + is_bias * rng.normal(size=leaf.shape).astype(np.float32)

    state = first_values(abstract)
    params = jax.tree_util.tree_map_with_path(drawn, state.params)
    state = jax.tree.map(
        lambda value, leaf: jax.device_put(value, leaf.sharding),
        state._replace(params=params),
        abstract,
    )
    report = run(state, next(batches(mesh_of(sizes))))[1]
    return np.array([*report.sums, report.gradient_norm])


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [DATA, ALL])
def test_biases_of_published_models_add_up_on_every_mesh(sizes):
    np.testing.assert_allclose(first_update(sizes), first_update(ONE), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 1, 2), ALL])
def test_restricted_attention_is_the_same_on_every_mesh_and_moves_nothing(sizes):
    """Blocks are cut along rows, which no mesh splits: the collectives are the same."""
    window = 4  # a block of four sees itself and two positions on either side
    expected, _ = twenty_updates(ONE, window=window)
    numbers, _ = twenty_updates(sizes, window=window)
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)
    full, _ = twenty_updates(ONE)
    assert np.abs(expected[:, 0] / full[:, 0] - 1).max() > 1e-4
    near = program(sizes, window=window)
    heads = SIZES["num_heads"] // sizes[2]
    scores = (near.rows, LENGTH // BLOCK, heads, BLOCK, BLOCK + window)
    assert tuple(sorted(scores)) in counted(shapes_in(near.text))
    crossing = [
        collections.Counter((each.kind, each.elements) for each in program.collectives)
        for program in (near, program(sizes))
    ]
    assert crossing[0] == crossing[1]


# --- what crosses between devices ----------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("has_biases", [False, True])
def test_with_data_alone_gradients_and_sums_cross_once_and_nothing_else_does(
    has_biases,
):
    """One all-reduce of every parameter's gradient and of the four loss sums.

    The embedding is used three times and crosses once. Nothing is in a loop.
    """
    update = program(DATA, has_biases=has_biases)
    (only,) = update.collectives
    assert (only.kind, only.in_entry) == ("all-reduce", True)
    sums = [()] * 4
    assert counted(only.shapes) == counted([*as_matrices(update.parameters), *sums])
    assert only.elements == parameter_count(update.state.params) + 4


@pytest.mark.slow
def test_with_fsdp_each_parameter_is_gathered_once_and_its_gradient_summed_once():
    """Scalars aside: the loss sums and the parts of the gradient's norm."""
    fsdp = program(FSDP)
    assert all(each.in_entry for each in fsdp.collectives)
    shapes = {"all-gather": [], "all-reduce": []}
    for each in fsdp.collectives:
        shapes[each.kind] += [shape for shape in each.shapes if shape]
    split = [
        full
        for full, part in zip(
            fsdp.parameters, shard_shapes(fsdp.state.params), strict=True
        )
        if full != part
    ]
    assert collections.Counter(shapes["all-gather"]) == collections.Counter(
        as_matrices(split)
    )
    assert counted(shapes["all-reduce"]) == counted(as_matrices(fsdp.parameters))


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "share"), [(FSDP, 8), (ALL, 4), (TENSOR, 8)])
def test_a_device_is_given_its_share_of_the_state_and_hands_that_back(sizes, share):
    """No matrix, and no moment of Adam's of one, is whole on any device.

    So it is before and after every update: arguments and results of the program.
    """
    state = program(sizes).state
    for leaf in jax.tree.leaves(state):
        if leaf.ndim > 1:
            part = leaf.sharding.shard_shape(leaf.shape)
            assert math.prod(part) * share == math.prod(leaf.shape)
    arguments, results = arguments_and_results(program(sizes).text)
    batch = [(program(sizes).rows, LENGTH)] * 4
    report = [()] * 5
    count = collections.Counter
    assert count(arguments) == count(shard_shapes(state) + batch)
    assert count(results) == count(shard_shapes(state) + report)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [ALL, TENSOR])
def test_with_tensor_no_array_has_the_whole_vocabulary(sizes):
    """Neither the embedding nor logits nor their gradient are ever put together.

    Not even as part of a dimension that several were merged into.
    """
    sizes_used = set(itertools.chain.from_iterable(shapes_in(program(sizes).text)))
    assert V // sizes[2] in sizes_used
    assert not [size for size in sizes_used if size and size % V == 0]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [ALL, TENSOR])
def test_in_the_loss_only_sums_over_the_vocabulary_cross(sizes):
    """For each token of a chunk some numbers, and the gradient of its D inputs."""
    rows = program(sizes).rows
    chunk = max(n for n in (1, 2, 4, 8, 16) if rows * n <= CHUNK)
    in_loop = [each for each in program(sizes).collectives if not each.in_entry]
    assert {each.kind for each in in_loop} == {"all-reduce"}
    shapes = [shape for each in in_loop for shape in each.shapes]
    tokens = rows * chunk
    assert [math.prod(shape) for shape in shapes if D in shape] == [tokens * D]
    assert {math.prod(shape) for shape in shapes if D not in shape} == {tokens}
    # The maxima, the sums and the look-up in the formula of loss.py; measured: 8.
    assert len(shapes) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [ALL, TENSOR])
def test_with_tensor_as_many_activations_cross_as_the_layers_need(sizes):
    """Counted as in Megatron-LM, for N encoder and N decoder layers.

    Forward, an all-reduce after every sub-layer (2 N + 3 N) and after each of three
    look-ups in the split embedding: source, target, and target in the loss. Backward,
    one for every input that split projections read: the inputs of the sub-layers
    (2 N + 3 N) and the memory, which all cross-attentions read. An all-reduce may
    carry several arrays: one for each of the projections behind an input.
    """
    rows = program(sizes).rows
    carried = [
        len([s for s in each.shapes if s in ((rows, LENGTH, D), (1, rows, LENGTH, D))])
        for each in program(sizes).collectives
        if each.in_entry and each.kind == "all-reduce"
    ]
    forward = 5 * LAYERS + 3
    assert sum(count > 0 for count in carried) <= forward + 5 * LAYERS + 1
    queries_keys_values = 3 * 3 * LAYERS
    assert sum(carried) <= forward + queries_keys_values + 2 * LAYERS


# --- sizes that do not divide --------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "key", "field", "size"),
    [
        ("tensor", "data.vocab_size", "vocab_size", 20),
        ("fsdp", "model.d_model", "d_model", 20),
        ("tensor", "model.num_heads", "num_heads", 6),
        ("tensor", "model.d_ff", "d_ff", 36),
    ],
)
def test_a_size_that_does_not_divide_is_refused_with_values_that_would_do(
    axis, key, field, size
):
    """One sentence, and whoever follows either half of its advice gets a run."""
    names = {name: -1 if name == axis else 1 for name in AXES}
    with pytest.raises(InputError) as refusal:
        abstract_state(make_mesh(**names), init_of(make_model(**{field: size})))
    said = re.fullmatch(
        rf"mesh\.{axis}=8 does not divide {key}={size}; choose mesh\.{axis}=(\d+), "
        rf"or a multiple of 8 such as {key}=(\d+)",
        str(refusal.value),
    )
    assert said, refusal.value
    split, better = map(int, said.groups())
    abstract_state(make_mesh(**names), init_of(make_model(**{field: better})))
    fewer = make_mesh(**{**names, "data": -1, axis: split})
    abstract_state(fewer, init_of(make_model(**{field: size})))


# --- rows and copies -----------------------------------------------------------------


@pytest.mark.parametrize("sizes", MESHES)
def test_rows_of_the_mesh_are_those_of_the_host_in_their_order(sizes):
    mesh = mesh_of(sizes)
    rng = np.random.default_rng(2)
    host = Batch(*(rng.integers(0, V, (16, length)) for length in (5, 7, 5, 7)))
    for placed, mine in zip(put_batch(mesh, host), host, strict=True):
        np.testing.assert_array_equal(placed, mine)
        for shard in placed.addressable_shards:
            np.testing.assert_array_equal(shard.data, mine[shard.index])
            assert len(shard.data) == 16 // shards_of(sizes)


@pytest.mark.parametrize("sizes", MESHES)
def test_one_process_holds_all_rows_of_its_mesh(sizes):
    shards = shards_of(sizes)
    assert rows_here(mesh_of(sizes)) == Rows(tuple(range(shards)), shards)


@pytest.mark.parametrize("sizes", MESHES)
def test_batches_differ_between_meshes_by_empty_rows_at_their_end_alone(sizes):
    expected = next(batches(mesh_of(ONE)))
    for array, whole in zip(next(batches(mesh_of(sizes))), expected, strict=True):
        np.testing.assert_array_equal(array[:ROWS], whole)
        assert not np.any(array[ROWS:])


def test_parameters_of_any_mesh_and_of_numpy_are_copied_whole_to_every_device():
    mesh, here = mesh_of(ALL), local_mesh()
    abstract = abstract_state(mesh, init_of(make_model()))
    host = first_values(abstract).params
    spread = jax.tree.map(
        lambda value, leaf: jax.device_put(value, leaf.sharding), host, abstract.params
    )
    for params in (spread, host):
        for copied, value in zip(
            jax.tree.leaves(copy_to(here, params)), jax.tree.leaves(host), strict=True
        ):
            assert copied.sharding.mesh == here
            assert len(copied.addressable_shards) == 8
            for shard in copied.addressable_shards:
                np.testing.assert_array_equal(shard.data, value)
