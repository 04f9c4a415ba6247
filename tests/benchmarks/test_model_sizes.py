"""The table of scores by model and number of pairs, from records written by hand."""

import itertools
import json
import re
import shutil

import pytest

from benchmarks import model_sizes
from jaxformer.training.log import encode


def write_run(folder, bleu, seconds):
    """Write a run that takes so many seconds, without a pause in its last line."""
    folder.mkdir()
    lines = [
        {"kind": "train", "tokens": 300, "tokens_per_second": 600 / seconds},
        {"kind": "eval", "bleu": 1.0},
        {"kind": "train", "tokens": 200, "tokens_per_second": 600 / seconds},
        {"kind": "train", "tokens": 100, "tokens_per_second": 1},
    ]
    (folder / "metrics.jsonl").write_text("".join(map(encode, lines)))
    (folder / "test.json").write_text(json.dumps({"bleu": bleu}))


def test_a_line_for_each_number_of_pairs(tmp_path, capsys, monkeypatch):
    """Minutes are without pauses, and the spread is that of the seeds.

    A row whose runs are not here any more stays.
    """
    runs = tmp_path / "runs"
    runs.mkdir()
    write_run(runs / "tiny_1000_1", 10.0, 120)
    write_run(runs / "tiny_1000_2", 12.0, 240)
    write_run(runs / "small_10000_1", 20.0, 600)
    monkeypatch.setattr(model_sizes, "QUOTED", tmp_path / "quality.json")
    chart = tmp_path / "chart.svg"
    assert model_sizes.main([f"--runs={runs}", f"--output={chart}"]) == 0
    assert capsys.readouterr().out.splitlines()[2:4] == [
        "| 1,000 | 11.00 ± 1.41 | 3 |  |  |",
        "| 10,000 |  |  | 20.00 | 10 |",
    ]
    assert json.loads((tmp_path / "quality.json").read_text()) == [
        {"pairs": 1000, "model": "tiny", "bleu": [10.0, 12.0], "minutes": 3.0},
        {"pairs": 10000, "model": "small", "bleu": [20.0], "minutes": 10.0},
    ]
    (runs / "tiny_1000_2" / "test.json").unlink()
    write_run(runs / "base_10000_1", 22.0, 900)
    assert model_sizes.main([f"--runs={runs}", f"--output={chart}"]) == 0
    rows = json.loads((tmp_path / "quality.json").read_text())
    assert [row["bleu"] for row in rows] == [[10.0], [20.0], [22.0]]
    shutil.rmtree(runs / "tiny_1000_1")
    assert model_sizes.main([f"--runs={runs}", f"--output={chart}"]) == 0
    assert json.loads((tmp_path / "quality.json").read_text()) == rows
    words = "sacreBLEU", "tiny", "small", "10,000"
    assert all(word in chart.read_text() for word in words)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "give --runs, or --text and --write"),
        (["--text=somewhere"], "give --runs, or --text and --write"),
        (["--runs=nowhere"], "nowhere has no finished run called MODEL_PAIRS_SEED"),
    ],
)
def test_no_runs_is_one_line(flags, said, capsys):
    assert model_sizes.main(flags) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


def test_texts_have_the_first_pairs(tmp_path):
    for split, side in itertools.product(("train", "dev", "test"), ("en", "de")):
        lines = (f"{side} {n}\n" for n in range(1_200))
        (tmp_path / f"{split}.{side}").write_text("".join(lines))
    output = tmp_path / "rows"
    assert model_sizes.main([f"--text={tmp_path}", f"--write={output}"]) == 0
    few = (output / "train_1000.de").read_text().splitlines()
    assert few == [f"de {n}" for n in range(1_000)]
    assert (output / "dev.en").read_text() == (tmp_path / "dev.en").read_text()
    assert len([*output.iterdir()]) == 6 + 2 * 3


def test_the_page_has_what_check_quotes():
    """docs/model_size.md and jaxformer/runs/quality.json are of the same runs."""
    page = (model_sizes.harness.ROOT / "docs/model_size.md").read_text()
    for row in json.loads(model_sizes.QUOTED.read_text()):
        line = re.search(rf"^\| {row['pairs']:,} \|.*$", page, re.M)[0]
        score = model_sizes.rows.spread(row["bleu"])
        assert f"| {score} | {row['minutes']:.0f} |" in line
