"""The training benchmark: that it starts, and that its work is what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.train_ours import ours
from benchmarks.peers.train_text import Text, joined
from benchmarks.peers.training import BASE, SMALL, TINY, flops
from jaxformer.batch import EOS, PAD
from jaxformer.commands.flops import train_flops
from jaxformer.data.plan import Shape
from jaxformer.data.store import Ragged, TokenizedCorpus

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "train.py"


@pytest.mark.parametrize("sizes", [BASE, SMALL, TINY])
def test_products_are_those_that_a_run_counts(sizes):
    shape = Shape(sizes.rows, sizes.source, sizes.target)
    assert flops(sizes) == train_flops(sizes.config(), shape)


def test_an_update_learns():
    update = ours(TINY)
    losses = [update(TINY.batch(seed=0)) for _ in range(30)]
    assert losses[-1] < losses[0]


def ragged(*sequences):
    offsets = np.cumsum([0, *map(len, sequences)])
    return Ragged(np.concatenate(sequences).astype(np.uint16), offsets)


def test_joined_sentences_keep_one_end():
    side = ragged([5, 6, EOS], [7, EOS], [EOS], [8, EOS], [9, EOS])
    long = joined(side, 2)
    assert [list(long[i]) for i in range(len(long))] == [[5, 6, 7, EOS], [8, EOS]]
    assert joined(side, 1) is side


@pytest.fixture
def text():
    draw = np.random.default_rng(0)
    sides = [
        ragged(*(draw.integers(4, 60, draw.integers(1, 20)) for _ in range(100)))
        for _ in range(2)
    ]
    batching = {
        "layout": "buckets", "row_length": 32, "max_shapes": 4, "row_multiple": 1,
    }  # fmt: skip
    return Text(TokenizedCorpus(*sides), 64, batching)


@pytest.mark.parametrize("kind", ["ours", "sorted_by_length"])
def test_an_epoch_has_every_pair_once_within_the_budget(text, kind):
    epoch = getattr(text, kind)(64)
    parts = epoch.parts(3, 0)
    batches = [batch for part in parts for batch in part]
    assert len(parts) == 3
    for side in ("source", "target"):
        found = np.sort(np.concatenate([
            ids[ids != PAD] for ids in (getattr(batch, side) for batch in batches)
        ]))  # fmt: skip
        assert (found == np.sort(getattr(text.corpus, side).tokens)).all()
        assert max(getattr(batch, side).size for batch in batches) <= 64
    real = sum((ids != PAD).sum() for batch in batches for ids in batch[:2])
    places = sum(ids.size for batch in batches for ids in batch[:2])
    assert epoch.real_token_share == pytest.approx(real / places)
    shapes = {(*batch.source.shape, batch.target.shape[1]) for batch in batches}
    assert epoch.shape_count == len(shapes) == len(epoch.one_of_each_shape())


def test_it_starts_and_ends_with_a_line_of_json():
    run = subprocess.run(
        [sys.executable, SCRIPT, "--model=tiny", "--quick"],
        capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])["one_shape"]
    assert {"ours", "Flax port", "matrix products"} <= found.keys()
    assert all(each["seconds"] > 0 for each in found.values())
    assert "| tiny, 4 x 8 | ours |" in run.stdout


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--only=ours,theirs"], "there is no contestant theirs"),
        (["--workdir=nowhere"], "there is no run in nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(flags, sentence):
    run = subprocess.run(
        [sys.executable, SCRIPT, "--model=tiny", *flags],
        capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )  # fmt: skip
    assert run.returncode == 2
    assert sentence in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
