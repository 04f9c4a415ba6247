"""What the tests of training share: an optimiser, comparison bit by bit, names."""

import jax
import numpy as np

from jaxformer.batch import Batch
from jaxformer.training.optimizer import make_optimizer


def optimizer_of(**changes):
    """Adam of the paper for d_model 16 and a short warm-up, and its schedule."""
    values = {
        "d_model": 16, "warmup_steps": 20, "learning_rate_scale": 1.0, "beta1": 0.9,
        "beta2": 0.98, "epsilon": 1e-9, "clip_norm": None,
    }  # fmt: skip
    return make_optimizer(**values | changes)


def random_batch(rows, length, *, vocabulary=16, seed=0):
    """Rows of one pair each, of random lengths up to `length`."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(1, length + 1, (rows, 1))
    segments = (np.arange(length)[None] < ends).astype(np.int32)
    source, target = rng.integers(3, vocabulary, (2, rows, length), dtype=np.int32)
    return Batch(source * segments, target * segments, segments, segments)


def assert_same(left, right):
    """Every bit of every leaf."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())


def by_name(tree):
    """Leaves by the names of their fields and keys, such as "params/embedding"."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
