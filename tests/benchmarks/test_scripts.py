"""Every script runs with its smallest settings and ends with a line of JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = (
    "--layers=1 --d_model=8 --d_ff=8 --num_heads=2 --vocabulary=40 --rows=3 "
    "--source=5 --target=9"
)


def run(command: str) -> tuple[dict, str]:
    """Run a script of benchmarks/; gives its outcome and all that it printed."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        f"{sys.executable} {ROOT}/benchmarks/{command}", shell=True, text=True,
        capture_output=True, timeout=900, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.nightly
def test_decode():
    """What is not installed is left out; CTranslate2 says what we say."""
    outcome, printed = run(f"decode.py --quick {TINY}")
    assert set(outcome["forced"]) == {"beam 4", "greedy"}
    for search, found in outcome["forced"].items():
        assert all(f"| {search} | {name} |" in printed for name in found)
        assert all(each["seconds"] > 0 for each in found.values())
        exact = found.get("CTranslate2 float32", {"same_as_ours": 1})
        assert exact["same_as_ours"] == 1


@pytest.mark.nightly
def test_train():
    outcome, printed = run("train.py --model=tiny --quick")
    found = outcome["one_shape"]
    assert {"ours", "matrix products"} <= found.keys()
    assert all(each["seconds"] > 0 for each in found.values())
    assert found["matrix products"]["share_of_products"] == 1
    assert "| tiny, 8 x 8 | ours |" in printed


@pytest.mark.nightly
def test_agreement():
    """Without an accelerator it compares the CPU with itself."""
    outcome, printed = run("agreement.py --model=tiny --rows=4 --length=16")
    errors = outcome["errors"]
    assert errors["float32 highest plain"] == [0, 0]
    assert 0 < errors["bfloat16 default plain"][0] < 0.03
    assert "| bfloat16 | default | fused |" in printed


@pytest.mark.nightly
def test_pipeline():
    outcome, _ = run("pipeline.py --quick")
    assert outcome["rates"]["packed, 25,000"]["python"]["per_second"] > 0


@pytest.mark.nightly
def test_prepare():
    outcome, printed = run("prepare.py --quick")
    assert outcome["found"]["SentencePiece"]["ratio"] == 1
    assert outcome["found"]["jaxformer"]["megabytes"] > 20
    assert "| 20,000 pairs | jaxformer |" in printed


@pytest.mark.nightly
def test_startup():
    outcome, _ = run("startup.py --quick")
    for what in ("first update", "first translation"):
        assert outcome["starts"][what]["warm"]["ratio"] > 1
