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


def test_figures_compare_within_a_round():
    """The second round was slow for both, so the ratio hardly notices."""
    rounds = [
        {decode.OURS: seconds, decode.CT2: theirs}
        for seconds, theirs in ((2.0, 1.0), (20.0, 10.0), (1.0, 2.0))
    ]
    found = decode.figures(rounds, decode.OURS, 10)
    assert found == {
        "seconds": 2.0, "spread": 9.5, "per_second": 5.0, "ratio": 0.5,
        "ratio_least": 0.5, "ratio_most": 2.0,
    }  # fmt: skip
    assert "| 2.00 | 950 % | 5.0 | 0.50 (0.50 - 2.00) |" in decode.row("", "", found)
    alone = decode.figures([{decode.OURS: 2.0}], decode.OURS, 10)
    assert alone["ratio"] is None
    assert decode.row("", "", alone).endswith("| - |")


def test_turns_are_taken_in_order(monkeypatch):
    monkeypatch.setattr(decode, "PAUSE", 0)
    order = []
    turns = {name: (lambda name=name: order.append(name)) for name in "ab"}
    rounds = decode.take_turns(turns, 2)
    assert order == ["a", "b", "a", "b"]
    assert [list(each) for each in rounds] == [["a", "b"]] * 2


def test_our_translations_have_the_length_asked_for():
    sizes = Sizes(**TINY)
    model, params = random_model(sizes.config())
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
