"""The decoding benchmark: what it computes of times, and that it starts."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.ours import ours
from benchmarks.peers.sizes import Sizes, random_model
from jaxformer.batch import EOS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "decode.py"
TINY = {
    "num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2, "vocabulary": 40,
    "sentences": 3, "source": 5, "target": 9,
}  # fmt: skip


def load():
    """benchmarks/decode.py, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("decode", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        spec.loader.exec_module(module)
    return module


decode = load()


def test_our_translations_have_the_length_asked_for():
    sizes = Sizes(**TINY)
    model, params = random_model(sizes.config(), sizes.vocabulary)
    found = ours(model, params, sizes, 2)(sizes.sources())
    assert [len(each) for each in found] == [sizes.target] * sizes.sentences
    assert all(each.index(EOS) == sizes.target - 1 for each in found)


def test_text_and_workdir_go_together(capsys):
    with pytest.raises(SystemExit):
        decode.main(["--text=a"])
    assert "go together" in capsys.readouterr().err


@pytest.mark.slow
def test_script_runs():
    """With tiny sizes; those of its peers that are not installed are left out."""
    sizes = [f"--{name}={value}" for name, value in TINY.items()]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick", *sizes],
        capture_output=True, text=True, timeout=600, check=True, cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    )  # fmt: skip
    *table, last = done.stdout.splitlines()
    outcome = json.loads(last)
    assert outcome["repeats"] == 1
    assert outcome["machine"]["jax"]
    assert set(outcome["forced"]) == {"beam 4", "greedy"}
    for search, found in outcome["forced"].items():
        for name, figures in found.items():
            assert figures["seconds"] > 0
            assert sum(f"| {search} | {name} |" in line for line in table) == 1
    peers = found.keys() - {decode.OURS}
    for name in peers & {decode.CT2}:
        assert found[name]["same_as_ours"] == 1
