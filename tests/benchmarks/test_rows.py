"""The table of runs by row and seed, from records written by hand."""

import json
import sys

import pytest

from benchmarks import rows


@pytest.fixture
def folder(tmp_path):
    """Two rows of two seeds, a run that is not finished, and one of another name."""
    scores = {
        "base_1": (5.0, 30.0), "base_2": (7.0, 32.0), "one_head_1": (6.0, 29.5),
        "one_head_2": (7.5, 30.0), "base_3": None, "other": (1.0, 99.0),
    }  # fmt: skip
    for name, final in scores.items():
        lines = [
            {"kind": "train", "step": 1},
            {"kind": "eval", "ppl": 9.0, "bleu": 1.0},
        ]
        if final is not None:
            lines.append({"kind": "final", "ppl": final[0], "bleu": final[1]})
        run = tmp_path / name
        run.mkdir()
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run / "metrics.jsonl").write_text(text)
    return tmp_path


def test_a_row_has_mean_and_spread_and_differences_seed_by_seed(
    folder, monkeypatch, capsys
):
    """Standard deviations of two: their difference over the square root of 2."""
    monkeypatch.setattr(sys, "argv", ["rows.py", str(folder)])
    rows.main()
    out, err = capsys.readouterr()
    assert out.splitlines()[2:4] == [
        "| `base` | 2 | 6.00 ± 1.41 |  | 31.00 ± 1.41 |  |",
        "| `one_head` | 2 | 6.75 ± 1.06 | +1.00, +0.50 | 29.75 ± 0.35 | -0.50, -2.00 |",
    ]
    assert "99" not in out
    assert "base_3 is left out" in err
    assert "other is left out" in err


def test_a_folder_without_runs_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rows.py", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        rows.main()
    assert end.value.code == 2
    assert "has no finished run" in capsys.readouterr().err.splitlines()[-1]
