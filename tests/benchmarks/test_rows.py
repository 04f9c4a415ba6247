"""The table of runs by row and seed, from records written by hand."""

import json

import pytest

from benchmarks import rows
from jaxformer.training.log import encode


def test_a_row_has_mean_and_spread_and_differences_seed_by_seed(tmp_path, capsys):
    """Standard deviations of two: their difference over the square root of 2."""
    scores = {  # two rows of two seeds, an unfinished run, and one of another name
        "base_1": (5.0, 30.0, 50.0), "base_2": (7.0, 32.0, 52.0),
        "a_head_1": (6.0, 29.5, 49.0), "a_head_2": (7.5, 30.0, 49.0),
        "base_3": None, "other": (1.0, 99.0, 99.0),
    }  # fmt: skip
    names = "ppl", "bleu", "chrf"
    for name, final in scores.items():
        lines = [{"kind": "eval", "step": 1, "ppl": 9, "bleu": 1}]
        if final is not None:
            scores = dict(zip(names, final, strict=True))
            lines.append({"kind": "final", "step": 2, **scores})
        (tmp_path / name).mkdir()
        text = "".join(map(encode, lines))
        (tmp_path / name / "metrics.jsonl").write_text(text)
    rows.main([str(tmp_path)])
    out, err = capsys.readouterr()
    base = "| `base` | 2 | 6.00 ± 1.41 |  | 31.00 ± 1.41 |  | 51.00 ± 1.41 |"
    head = "6.75 ± 1.06 | +1.00, +0.50 | 29.75 ± 0.35 | -0.50, -2.00 | 49.00 ± 0.00"
    assert out.splitlines()[2:] == [base, f"| `a_head` | 2 | {head} |", ""]
    assert "base_3 is left out" in err
    assert "other is left out" in err


def test_scores_of_a_file_are_compared_with_a_row_of_choice(tmp_path, capsys):
    for name, bleu in {"a_1": 10.0, "b_1": 12.0, "b_2": 14.0}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
        scores = {"ppl": 3.0, "bleu": bleu, "chrf": 5.0}
        (tmp_path / name / "test.json").write_text(json.dumps(scores))
    (tmp_path / "b_2" / "test.json").unlink()
    rows.main([str(tmp_path), "--base=b", "--scores=test.json"])
    out, err = capsys.readouterr()
    assert out.splitlines()[2:] == [
        "| `b` | 1 | 3.00 |  | 12.00 |  | 5.00 |",
        "| `a` | 1 | 3.00 | +0.00 | 10.00 | -2.00 | 5.00 |", "",
    ]  # fmt: skip
    assert "b_2 is left out" in err


def test_a_folder_without_runs_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        rows.main([str(tmp_path)])
    assert "has no finished run" in capsys.readouterr().err.splitlines()[-1]
