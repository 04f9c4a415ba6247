"""Compare runs of configs/multi30k_rows.py in folders called ROW_SEED.

    python benchmarks/rows.py runs/rows

Prints a table in Markdown of the last evaluation of each finished run: mean and sample
standard deviation over seeds, and the difference from the base row, seed by seed.
docs/claims.md says how to train the runs.
"""

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import print_table
from jaxformer.training.log import read_metrics

MEASURES = "ppl", "bleu"
BASE = "base"
Scores = dict[str, dict[int, dict[str, float]]]  # by row and seed


def read(folder: Path) -> Scores:
    """Read the last evaluations, base row first; unfinished runs go to stderr."""
    found: Scores = {BASE: {}}
    for path in sorted(folder.glob("*/metrics.jsonl")):
        name = re.fullmatch(r"(.+)_(\d+)", path.parent.name)
        final = [each for each in read_metrics(path.parent) if each["kind"] == "final"]
        if name is None or not final:
            print(f"{path.parent.name} is left out: not finished", file=sys.stderr)
            continue
        found.setdefault(name[1], {})[int(name[2])] = final[-1]
    return {row: runs for row, runs in found.items() if runs}


def spread(values: Sequence[float]) -> str:
    """Write the mean and, of two or more, the sample standard deviation."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2f}"


def table(found: Scores) -> list[str]:
    """Make a line for each row; differences are from the base run of the same seed."""
    base, lines = found.get(BASE, {}), []
    for row, runs in found.items():
        cells = [f"`{row}`", str(len(runs))]
        for measure in MEASURES:
            shared = sorted(runs.keys() & base.keys() if row != BASE else ())
            less = (runs[seed][measure] - base[seed][measure] for seed in shared)
            cells.append(spread([scores[measure] for scores in runs.values()]))
            cells.append(", ".join(f"{each:+.2f}" for each in less))
        lines.append(" | ".join(cells))
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with workdirs called ROW_SEED")
    folder = parser.parse_args(argv).folder
    found = read(folder)
    if not found:
        parser.error(f"{folder} has no finished run called ROW_SEED")
    header = "row | seeds | perplexity | less base | sacreBLEU | less base"
    print_table(header, table(found))


if __name__ == "__main__":
    main()
