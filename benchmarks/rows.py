"""Runs of configs/multi30k_rows.py side by side: means over seeds, and their spread.

    rows="base one_head small_d_k learned_positions no_smoothing no_dropout no_warmup"
    for row in $rows; do for seed in 1 2 3; do
        python -m jaxformer.main --config=configs/multi30k_rows.py:$row \\
            --config.training.seed=$seed --config.data.directory=data/multi30k \\
            --workdir=runs/rows/${row}_$seed
    done; done
    python benchmarks/rows.py runs/rows

Reads the last evaluation of each run, on the validation split, and prints a table in
Markdown: mean and sample standard deviation over seeds, and the difference from the
base row, seed by seed.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import print_table

MEASURES = {"ppl": 2, "bleu": 2}  # and the decimals that are shown
BASE = "base"


class Finished(NamedTuple):
    """One run's last evaluation."""

    row: str
    seed: int
    scores: dict[str, float]


def read(folder: Path) -> list[Finished]:
    """The runs ROW_SEED in `folder` that have come to their end."""
    runs = []
    for path in sorted(folder.glob("*/metrics.jsonl")):
        name = re.fullmatch(r"(.+)_(\d+)", path.parent.name)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        final = [line for line in lines if line["kind"] == "final"]
        if name is None or not final:
            print(f"{path.parent.name} is left out: not finished", file=sys.stderr)
            continue
        runs.append(Finished(name[1], int(name[2]), final[-1]))
    return runs


def spread(values: Sequence[float], decimals: int) -> str:
    """Mean and, of two or more, sample standard deviation."""
    mean = f"{statistics.mean(values):.{decimals}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values):.{decimals}f}"


def differences(
    row: dict[int, Finished], base: dict[int, Finished], measure: str, decimals: int
) -> str:
    """Each seed's difference from the base row's run of the same seed."""
    return ", ".join(
        f"{row[seed].scores[measure] - base[seed].scores[measure]:+.{decimals}f}"
        for seed in sorted(row.keys() & base.keys())
    )


def table(runs: Sequence[Finished]) -> list[str]:
    """A line for each row, the base row first."""
    by_row: dict[str, dict[int, Finished]] = {}
    for run in sorted(runs, key=lambda run: run.row != BASE):
        by_row.setdefault(run.row, {})[run.seed] = run
    base = by_row.get(BASE, {})
    lines = []
    for name, row in by_row.items():
        cells = [f"`{name}`", str(len(row))]
        for measure, decimals in MEASURES.items():
            cells.append(
                spread([run.scores[measure] for run in row.values()], decimals)
            )
            shown = "" if name == BASE else differences(row, base, measure, decimals)
            cells.append(shown)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the table of the runs in a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with workdirs called ROW_SEED")
    folder = parser.parse_args().folder
    runs = read(folder)
    if not runs:
        parser.error(f"{folder} has no finished run called ROW_SEED")
    header = ("row", "seeds", "perplexity", "less base", "sacreBLEU", "less base")
    print_table(header, table(runs))


if __name__ == "__main__":
    main()
