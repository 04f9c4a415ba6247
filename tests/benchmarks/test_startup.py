"""The benchmark of starting: both kinds of stack are one function; the script runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.stacks import config_of, gradients_of, scanned, unrolled

ROOT = Path(__file__).parents[2]


def test_a_loop_over_the_layers_gives_the_gradients_of_the_layers():
    """Dropout is on; the layers are different."""
    config = config_of(
        encoder_layers=2, decoder_layers=2, d_model=8, d_ff=8, num_heads=2, d_k=4, d_v=4
    )
    results = []
    for run in (unrolled, scanned):
        function, arguments = gradients_of(run, config, 2, 4)
        results.append(function(*arguments))
    kernel = arguments[0][0]["feed_forward"]["hidden"]["kernel"]
    assert kernel.shape == (2, 8, 8)
    assert not np.array_equal(kernel[0], kernel[1])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *results
    )


@pytest.mark.slow
def test_script_runs():
    """With a stack of tiny layers; most of the time goes into starting commands."""
    done = subprocess.run(
        [
            sys.executable, ROOT / "benchmarks" / "startup.py", "--quick",
            "--layers=1", "--d_model=16",
        ],
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["repeats"] == 1
    assert outcome["starts"]["first_loss"] > 0
    for what in ("update", "translation"):
        seconds = {k: v["seconds"] for k, v in outcome["starts"][what].items()}
        assert 0 < seconds["warm"] < seconds["cold"]
    assert outcome["stacks"].keys() == {"4x32"}
