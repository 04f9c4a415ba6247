"""Dropout's random numbers: the right rate, no pattern, the same on every mesh.

Counts are compared with a binomial distribution. Keys are fixed, so results do not
vary; a good generator exceeds four standard deviations once in 16,000 counts.
"""

import functools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.models.kernels.dropout import random_bits
from jaxformer.models.layers import Dropout, dropout
from jaxformer.training.sharding import make_mesh
from tests.models.test_transformer import BATCH
from tests.models.tiny import model_of, shapes_of

SHAPE = (32, 16, 64)
COUNT = math.prod(SHAPE)


@functools.partial(jax.jit, static_argnames="rate")
def dropped_out(x, seed, rate):
    return dropout(x, rate=rate, key=jax.random.key(seed))


def zeroed(seed):
    """Find which of 2^15 ones dropout turns to zero: bool [32, 16, 64]."""
    return np.asarray(dropped_out(np.ones(SHAPE, np.float32), seed, 0.5)) == 0


def seeds_of(*numbers):
    return tuple(map(jnp.uint32, numbers))


def assert_as_likely_as(probability, hits):
    """Check that the count of `hits` is plausible for that probability."""
    spread = math.sqrt(hits.size * probability * (1 - probability))
    assert abs(hits.sum() - hits.size * probability) < 4 * spread


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_each_element_is_dropped_with_the_rate_and_kept_ones_are_scaled_up(rate):
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    y = np.asarray(dropped_out(x, 0, rate))
    assert_as_likely_as(rate, y == 0)
    np.testing.assert_allclose(y[y != 0], x[y != 0] / (1 - rate), rtol=1e-6)


@pytest.mark.parametrize("other", [4, 5, 2**16 + 3])
def test_masks_of_different_keys_are_uncorrelated(other):
    assert_as_likely_as(0.5, zeroed(3) == zeroed(other))


@pytest.mark.parametrize("distance", [1, 2, 3, 64, 64 * 16, 64 * 16 + 1, 4096])
def test_neighbours_are_uncorrelated_along_every_axis(distance):
    flat = zeroed(6).ravel()
    assert_as_likely_as(0.5, flat[:-distance] == flat[distance:])


def test_all_32_bits_are_fair_and_none_repeats_another():
    bits = random_bits(seeds_of(1, 2), (COUNT,))
    unpacked = np.unpackbits(np.asarray(bits).view(np.uint8).reshape(-1, 4), axis=1)
    for i in range(32):
        assert_as_likely_as(0.5, unpacked[:, i])
        if i:
            assert_as_likely_as(0.5, unpacked[:, i] == unpacked[:, i - 1])


def test_a_bit_depends_on_the_seeds_and_the_index_alone():
    seeds = seeds_of(7, 8)
    flat = np.asarray(random_bits(seeds, (60,)))
    np.testing.assert_array_equal(random_bits(seeds, (3, 4, 5)), flat.reshape(3, 4, 5))
    assert len(set(flat.tolist())) == 60
    for changed in ([6, 8], [7, 9]):
        assert (random_bits(seeds_of(*changed), (60,)) != flat).all()


def test_the_mask_is_the_same_on_eight_devices_as_on_one():
    x = np.ones(SHAPE, np.float32)
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    spread = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "tensor"))
    y = dropped_out(jax.device_put(x, spread), 9, 0.3)
    assert len(y.sharding.device_set) == 8
    assert y.addressable_shards[0].data.size == COUNT // 8
    np.testing.assert_array_equal(y, dropped_out(x, 9, 0.3))


def test_each_module_draws_its_own_mask_and_none_without_a_key():
    x = jnp.ones(COUNT, jnp.bfloat16)
    two = nn.Sequential([Dropout(0.5), Dropout(0.5)])
    y = two.apply({}, x, rngs={"dropout": jax.random.key(0)})
    assert y.dtype == jnp.bfloat16
    assert set(np.asarray(y, np.float32).tolist()) == {0.0, 4.0}
    assert_as_likely_as(0.25, np.asarray(y != 0))
    np.testing.assert_array_equal(two.apply({}, x), x)


FED = {"feeding": "attentional"}  # its decoder is a loop over positions


@pytest.mark.parametrize(
    ("architecture", "changes", "of_source", "of_target"),
    [
        ("transformer", {}, 1 + 2 * 3, 1 + 3 * 2),  # embeddings, outputs of sub-layers
        ("recurrent", {}, 3, 2 + 1),  # inputs of layers, and the output
        ("recurrent", FED, 3, 2 + 1),
        ("convolutional", {}, 1 + 3, 1 + 2 + 1),  # embeddings, inputs, and the output
    ],
)
def test_each_architecture_drops_what_its_paper_drops(
    architecture, changes, of_source, of_target
):
    """With three layers in the encoder and two in the decoder."""
    sizes = {"encoder_layers": 3, "decoder_layers": 2, "dropout": 0.1}
    model = model_of(architecture=architecture, **sizes, **changes)
    params, shapes = shapes_of(model), []

    def keep(function, args, kwargs, context):
        if isinstance(context.module, Dropout) and context.method_name == "__call__":
            shapes.append(args[0].shape)
        return function(*args, **kwargs)

    with nn.intercept_methods(keep):
        jax.eval_shape(model.features, params, BATCH, jax.random.key(0))
    assert Counter(shapes) == {(2, 5, 16): of_source, (2, 4, 16): of_target}


def test_the_scale_of_kept_elements_is_not_rounded():
    """bfloat16 would round 1 / 0.9 to 1.109375, 0.16 % less."""
    x = jnp.asarray(np.random.default_rng(0).uniform(1, 2, 2**16), jnp.bfloat16)[None]
    found = np.asarray(dropout(x, rate=0.1, key=jax.random.key(0)), np.float64)
    kept = found > 0
    share = found[kept].sum() / np.asarray(x, np.float64)[kept].sum()
    assert share == pytest.approx(1 / 0.9, rel=2e-4)
