"""The benchmark of sizes: which models it compares, and that it runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scaling

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("table", ["d_model", "num_layers", "vocabulary", "microbatch"])
def test_one_size_changes_at_a_time(table):
    base = scaling.Sizes()
    values = scaling.TABLES[table]
    for value, sizes in zip(
        values, scaling.variants(table, values, base).values(), strict=True
    ):
        assert getattr(sizes, table) == value
        assert sizes._replace(**{table: getattr(base, table)}) == base
        assert sizes.batch().target.size == sizes.microbatch


def test_lengths_have_as_many_tokens_with_and_without_a_window():
    found = scaling.variants("length", (32, 4096), scaling.Sizes())
    assert list(found) == ["32 full", "32 windowed", "4,096 full", "4,096 windowed"]
    assert {sizes.batch().source.size for sizes in found.values()} == {4096}
    windows = [sizes.model().config.attention_window for sizes in found.values()]
    assert windows == [None, scaling.WINDOW] * 2


def test_plots_are_written(tmp_path):
    rates = {"32 full": {"per_second": 3.0}, "1,024 full": {"per_second": 2.0}}
    scaling.plot("length", rates, tmp_path / "new")
    moved = {"2 data": {"parameters": 4, "all-reduce": 8}}
    scaling.plot("devices", moved, tmp_path / "new")
    names = sorted(file.name for file in (tmp_path / "new").iterdir())
    assert names == ["devices.png", "length.png"]


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        scaling.main(["--only=width"])
    assert "no table width" in capsys.readouterr().err


@pytest.mark.slow
def test_script_runs():
    done = subprocess.run(
        [
            sys.executable, ROOT / "benchmarks" / "scaling.py", "--quick",
            "--only=microbatch,devices",
        ],
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout.splitlines()[-1])["tables"]
    assert all(each["per_second"] > 0 for each in tables["microbatch"].values())
    data = tables["devices"]["2 data"]
    assert data["all-reduce"] == pytest.approx(data["parameters"], rel=1e-3)
