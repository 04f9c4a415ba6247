"""What crosses between the devices of a mesh; every mesh makes the same updates.

Eight simulated devices. What crosses between them is read off the compiled update.
"""

import functools
import itertools
import math
from collections import Counter
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np
import pytest

from jaxformer.accelerators import hlo
from jaxformer.accelerators.hlo import Collective, arrays_in
from jaxformer.batch import Batch
from jaxformer.models import local_attention
from jaxformer.training import loss_kernel
from jaxformer.training.sharding import abstract_state, on_mesh, put_batch
from tests.models.tiny import model_of
from tests.training.setups import init_of, mesh_of, optimizer_of, random_batch, step_of

ONE, DATA, FSDP, ALL, TENSOR = (1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)

# No size is another's multiple by chance: V is the only one with the factor 13.
SIZES = {
    "vocab_size": 520, "d_model": 64, "d_ff": 96, "num_heads": 8, "d_k": 16, "d_v": 24,
    "layers": 1,
}  # fmt: skip
V, D, HEADS, LAYERS = map(SIZES.get, ("vocab_size", "d_model", "num_heads", "layers"))
ROWS, LENGTH = 9, 16  # of a batch; 9 rows fill up to 16 on 8 shards, to 12 on 4
BLOCK = 4  # positions, of restricted self-attention
CHUNK = 24  # tokens of the loss's chunks: there are several on each of the meshes
OPTIMIZERS = {
    "adam": {},
    "adafactor": {
        "algorithm": "adafactor", "peak_learning_rate": 0.01, "weight_decay": 0.1,
    },
}  # fmt: skip
VARIANTS = {
    "untied, relative": {
        "source_vocab_size": 2 * SIZES["vocab_size"], "tied_embeddings": "none",
        "positions": "relative", "max_positions": 3,
    },
    "projected keys": {"encoder_projected_keys": 5, "max_positions": 24},
    "rotary, global": {
        "positions": "rotary", "attention_window": 4, "encoder_global_positions": 2,
    },
    "ssru": {"decoder_self_attention": "ssru"},
}  # fmt: skip
UNTIED = {"variant": "untied, relative"}
pytestmark = pytest.mark.slow
NIGHTLY = [pytest.param(each, marks=pytest.mark.nightly) for each in (FSDP, TENSOR)]
with_tensor = pytest.mark.parametrize("sizes", [ALL, TENSOR])


def batches(sizes, *, packed=True):
    """The batches of a run; rows that the mesh does not divide are filled up."""
    widths = ((0, -ROWS % (sizes[0] * sizes[1])), (0, 0))
    for seed in itertools.count():
        batch = random_batch(ROWS, LENGTH, vocabulary=V, seed=seed)
        if not packed:
            one = np.minimum(batch.source_segments, 1)
            batch = batch._replace(source_segments=one, target_segments=one)
        padded = Batch(*(np.pad(array, widths) for array in batch))
        yield put_batch(mesh_of(sizes), padded)


class Program(NamedTuple):
    """The compiled update of a mesh, and what it takes."""

    run: jax.stages.Compiled
    text: str
    collectives: list[Collective]
    state: object  # abstract
    rows: int  # of the batch on one device


@functools.cache
def program(
    sizes, *, has_biases=False, variant=None, freeze=(), rule="adam",
    dtype="float32", adds_transposed=False,
):  # fmt: skip
    """Of the paper's model, one with biases as published models have, or a variant.

    `rule` is one of OPTIMIZERS. The loss is computed by the plan of
    GPUs, or as on CPUs, which add its gradient transposed.
    """
    mesh = mesh_of(sizes)
    optimizer, _ = optimizer_of(d_model=D, **OPTIMIZERS[rule])
    model = model_of(
        **SIZES, dropout=0.1, biases="all" if has_biases else "none", dtype=dtype,
        **VARIANTS.get(variant, {}),
    )  # fmt: skip
    batch = next(batches(sizes))
    plan = loss_kernel.ChunkPlan(CHUNK, False, adds_transposed)
    with (
        on_mesh(mesh),
        mock.patch.dict(loss_kernel.PLANS, cpu=plan),
        mock.patch.object(local_attention, "SMALLEST_BLOCK", BLOCK),
    ):
        state = abstract_state(mesh, init_of(model, optimizer, freeze=freeze))
        step = step_of(model, optimizer, mesh=mesh, freeze=freeze)
        lowered = step.lower(state, batch, accumulate=False)
        compiled = lowered.compile()
    rows = batch.source.sharding.shard_shape(batch.source.shape)[0]
    text = compiled.as_text()
    return Program(compiled, text, hlo.Program(text).collectives(), state, rows)


def elements(collective):
    """The numbers that its results hold."""
    return sum(map(math.prod, collective.shapes))


def first_values(abstract):
    """The values of a state with every feed-forward unit far from its kink.

    Half of the hidden units are always on and half always off; other biases are drawn.
    """
    rng = np.random.default_rng(1)

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        if not name.startswith(".params"):
            value = np.zeros(leaf.shape, leaf.dtype)
        elif "hidden" in name and "bias" in name:
            value = np.resize(np.float32([4.0, -4.0]), leaf.shape)
        else:
            deviation = 0.02 if "hidden" in name else 0.1
            value = np.float32(rng.normal("scale" in name, deviation, leaf.shape))
        return jax.device_put(value, leaf.sharding)

    return jax.tree_util.tree_map_with_path(fill, abstract)


@functools.cache
def reports(sizes, count, **options):
    """Loss, NLL, correct, tokens and gradient norm of the first `count` updates."""
    update, numbers = program(sizes, **options), []
    state = first_values(update.state)
    packed = model_of(**VARIANTS.get(options.get("variant"), {})).config.packs
    for batch in itertools.islice(batches(sizes, packed=packed), count):
        state, report = update.run(state, batch)
        numbers.append([*report.sums, report.gradient_norm])
    return np.array(jax.device_get(numbers))


@pytest.mark.parametrize("sizes", [DATA, ALL, *NIGHTLY])
def test_twenty_losses_are_the_same_on_every_mesh(sizes):
    """Dropout is on, epsilon is the paper's, and each mesh adds its empty rows.

    Bound: relative 1e-6, eight units of float32's last place. A loss is a sum of a
    thousand terms in another order (measured: 1.8e-7). It stays so over twenty updates
    because no gradient is only rounding, which Adam would turn into a full step, and no
    unit is near the kink of its ReLU (measured there: 5e-5).
    """
    expected = reports(ONE, 20)
    losses, tokens = expected[:, 0], expected[:, 3]
    assert len(set(losses.tolist())) == 20
    assert (losses / tokens)[-1] < (losses / tokens)[0] - 0.1  # it is learning
    assert program(sizes).rows == -(-ROWS // (sizes[0] * sizes[1]))
    np.testing.assert_allclose(reports(sizes, 20), expected, rtol=1e-6)


@pytest.mark.parametrize("sizes", [ALL, *NIGHTLY])
def test_the_loss_of_cpus_is_the_same_on_every_mesh(sizes):
    """It sums the gradient of the output matrix transposed; nothing more crosses."""
    found = reports(sizes, 3, adds_transposed=True)
    np.testing.assert_allclose(found, reports(sizes, 3), rtol=1e-6)
    crossing, other = (
        Counter((each.kind, elements(each)) for each in update.collectives)
        for update in (program(sizes, adds_transposed=True), program(sizes))
    )
    assert crossing == other


@pytest.mark.nightly
@pytest.mark.parametrize("sizes", [ALL, DATA])
def test_biases_of_published_models_add_up_on_every_mesh(sizes):
    found, expected = (reports(each, 1, has_biases=True) for each in (sizes, ONE))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "variant",
    [
        "untied, relative",
        pytest.param("ssru", marks=pytest.mark.nightly),
        pytest.param("projected keys", marks=pytest.mark.nightly),
        pytest.param("rotary, global", marks=pytest.mark.nightly),
    ],
)
def test_variants_make_the_same_updates_on_a_mesh(variant):
    found, expected = (reports(each, 3, variant=variant) for each in (ALL, ONE))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.abs(expected[:, 0] / reports(ONE, 3)[:, 0] - 1).max() > 1e-4


@pytest.mark.parametrize("sizes", [ALL, *NIGHTLY])
def test_products_in_bfloat16_make_the_same_updates_on_a_mesh(sizes):
    """As exactly as their rounding, and nothing more crosses.

    A mesh that splits the batch also gathers embeddings in bfloat16.
    """
    found, expected = (reports(each, 3, dtype="bfloat16") for each in (sizes, ONE))
    np.testing.assert_allclose(found[:, :2], expected[:, :2], rtol=2**-9)
    np.testing.assert_allclose(found[:, 4], expected[:, 4], rtol=2**-7)
    assert (found[:, 3] == expected[:, 3]).all()
    rounded, exact = (
        sum(elements(each) for each in update.collectives)
        for update in (program(sizes, dtype="bfloat16"), program(sizes))
    )
    assert rounded <= exact


def test_adafactor_with_decay_makes_the_same_updates_on_a_mesh():
    """From the second update on the losses are those of the rule."""
    found, expected = (reports(each, 3, rule="adafactor") for each in (ALL, ONE))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (np.abs(expected[1:, 0] / reports(ONE, 3)[1:, 0] - 1) > 1e-4).all()


def test_frozen_parameters_are_the_same_on_a_mesh_and_exchange_no_gradients():
    frozen = ("embedding", "encoder")
    found, expected = (reports(each, 3, freeze=frozen) for each in (ALL, ONE))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (expected[:, -1] < reports(ONE, 3)[:, -1]).all()  # gradient norms
    reduced, all_reduced = (
        sum(elements(each) for each in update.collectives if "reduce" in each.kind)
        for update in (program(ALL, freeze=frozen), program(ALL))
    )
    assert reduced < 0.7 * all_reduced


@pytest.mark.parametrize("options", [{}, {"has_biases": True}, UNTIED])
@pytest.mark.parametrize("sizes", [DATA, FSDP])
def test_each_parameter_is_gathered_once_and_its_gradient_is_summed_once(
    sizes, options
):
    """A tied embedding is used three times and crosses once. Nothing is in a loop.

    Besides, scalars are summed: the loss sums and the parts of the gradient's norm.
    """
    update = program(sizes, **options)
    assert all(each.times == 1 for each in update.collectives)
    crossing = {"all-gather": Counter(), "reduce-scatter": Counter()}
    crossing["all-reduce"] = Counter()
    for each in update.collectives:
        crossing[each.kind].update(math.prod(shape) for shape in each.shapes if shape)
    leaves = jax.tree.leaves(update.state.params)
    split = [leaf.size for leaf in leaves if not leaf.sharding.is_fully_replicated]
    assert crossing["all-gather"] == Counter(split)
    assert crossing["reduce-scatter"] == Counter(size // 8 for size in split)
    whole = Counter(leaf.size for leaf in leaves) - Counter(split)
    assert crossing["all-reduce"] == whole
    assert max(whole) <= V  # norms and biases: every matrix is larger


@pytest.mark.parametrize("sizes", [FSDP, ALL, TENSOR])
def test_a_device_is_given_its_share_of_the_state_and_hands_that_back(sizes):
    run, _, _, state, _ = program(sizes)
    for found in (run.input_shardings[0][0], run.output_shardings[0]):
        for leaf, sharding in zip(*map(jax.tree.leaves, (state, found)), strict=True):
            assert sharding.is_equivalent_to(leaf.sharding, leaf.ndim)


@with_tensor
def test_no_array_has_the_whole_vocabulary(sizes):
    """Nor as part of a dimension into which several were merged."""
    arrays = arrays_in(program(sizes).text)
    sizes_used = {size for _, shape in arrays for size in shape}
    assert V // sizes[2] in sizes_used
    assert not [size for size in sizes_used if size and size % V == 0]


@with_tensor
def test_in_the_loss_only_sums_over_the_vocabulary_cross(sizes):
    """For each token of a chunk some numbers, and the gradient of its D inputs."""
    tokens = program(sizes).rows * LENGTH
    tokens = math.ceil(tokens / math.ceil(tokens / CHUNK))
    in_loop = [each for each in program(sizes).collectives if each.times > 1]
    assert {each.kind for each in in_loop} == {"all-reduce"}
    shapes = [shape for each in in_loop for shape in each.shapes]
    assert [math.prod(shape) for shape in shapes if D in shape] == [tokens * D]
    assert {math.prod(shape) for shape in shapes if D not in shape} == {tokens}
    # The maxima, the sums and the look-up in the loss's formula; measured: 8.
    assert len(shapes) <= 8


@with_tensor
def test_as_many_activations_cross_as_the_layers_need(sizes):
    """Counted as in Megatron-LM, for N encoder and N decoder layers.

    Forward, an all-reduce after every sub-layer (2 N + 3 N) and each of three look-ups
    in the split embedding. Backward, one for every input of split projections: those of
    the sub-layers (2 N + 3 N) and the memory of all cross-attentions. An all-reduce may
    carry several arrays: one for each of the projections of an input.
    """
    rows = program(sizes).rows
    activations = ((rows, LENGTH, D), (1, rows, LENGTH, D))
    carried = [
        sum(shape in activations for shape in each.shapes)
        for each in program(sizes).collectives
        if each.times == 1 and each.kind == "all-reduce"
    ]
    forward, queries_keys_values = 5 * LAYERS + 3, 3 * 3 * LAYERS
    assert np.count_nonzero(carried) <= forward + 5 * LAYERS + 1
    assert sum(carried) <= forward + queries_keys_values + 2 * LAYERS
