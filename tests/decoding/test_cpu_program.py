"""The program of decoding steps, compiled for this machine's CPU; it is not run."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.models import Sizes, draw_parameters, one_device
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.slots import Scorer, SlotPrograms
from jaxformer.training.sharding import batch_sharding

SLOTS, SOURCE = 4, 8
SIZES = Sizes(layers=2, d_model=32, d_ff=64, num_heads=2, vocabulary=96)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("beam_size", "ring", "blocks"), [(1, 48, 1), (5, 16, 1), (4, 40, 2)]
)
def test_a_step_copies_no_cache(beam_size, ring, blocks, dtype):
    model = Sizes(**vars(SIZES) | {"dtype": dtype}).model()
    scorer, options = Scorer([model]), SearchOptions(beam_size=beam_size, alpha=0.6)
    programs = SlotPrograms(scorer, options, batch_sharding(one_device()))
    weights = scorer.weights([draw_parameters(model)])
    tokens = np.ones((SLOTS, SOURCE), np.int32)
    lengths = np.full(SLOTS, SOURCE, np.int32)
    prefixes, seeds = np.zeros((SLOTS, ring), np.int32), lengths.astype(np.uint32)
    requests = Requests(lengths, lengths, prefixes, np.zeros_like(lengths), seeds)
    state = programs.begin(programs.encode(weights, tokens), requests, ring)
    _, (cache,) = state.cache
    assert cache[0].key.shape[-1] == ring * beam_size // blocks
    compiled = programs.advance.lower(weights, state, jnp.int32(9), jnp.int32(9))
    text = compiled.compile().as_text()
    body = re.search(r" while\(.*body=%?([\w.\-]+)", text)[1]
    body = re.search(rf"^%?{re.escape(body)} \(.*?^}}", text, re.M | re.S)[0]
    copied = re.findall(r" = \w+\[([\d,]+)\]\S* copy\(", body)
    assert copied  # of other, small arrays
    shapes = {",".join(map(str, leaf.shape)) for leaf in jax.tree.leaves(cache)}
    assert not shapes.intersection(copied)
