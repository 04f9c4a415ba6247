"""Compare runs of configs/multi30k_rows.py: means over seeds, and their spread.

    rows="base one_head small_d_k learned_positions no_smoothing no_dropout no_warmup"
    for row in $rows; do for seed in 1 2 3; do
        python -m jaxformer.main --config=configs/multi30k_rows.py:$row \\
            --config.training.seed=$seed --config.data.directory=data/multi30k \\
            --workdir=runs/rows/${row}_$seed
    done; done
    python benchmarks/rows.py runs/rows

Reads the last evaluation of each finished run, on the validation split, and prints a
table in Markdown: mean and sample standard deviation over seeds, and the difference
from the base row, seed by seed.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import print_table

MEASURES = "ppl", "bleu"
BASE = "base"


def read(folder: Path) -> dict[str, dict[int, dict[str, float]]]:
    """Read the last evaluations of the runs ROW_SEED, by row and seed, base row first.

    Runs that have not finished are named on stderr.
    """
    found: dict[str, dict[int, dict]] = {BASE: {}}
    for path in sorted(folder.glob("*/metrics.jsonl")):
        name = re.fullmatch(r"(.+)_(\d+)", path.parent.name)
        lines = map(json.loads, path.read_text().splitlines())
        final = [line for line in lines if line["kind"] == "final"]
        if name is None or not final:
            print(f"{path.parent.name} is left out: not finished", file=sys.stderr)
            continue
        found.setdefault(name[1], {})[int(name[2])] = final[-1]
    return {row: runs for row, runs in found.items() if runs}


def spread(values: Sequence[float]) -> str:
    """Write the mean and, of two or more, the sample standard deviation."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2f}"


def table(found: dict[str, dict[int, dict[str, float]]]) -> list[list[str]]:
    """Make a line for each row; differences are from the base run of the same seed."""
    base, lines = found.get(BASE, {}), []
    for row, runs in found.items():
        lines.append([f"`{row}`", str(len(runs))])
        for measure in MEASURES:
            shared = sorted(runs.keys() & base.keys() if row != BASE else ())
            less = (runs[seed][measure] - base[seed][measure] for seed in shared)
            lines[-1].append(spread([scores[measure] for scores in runs.values()]))
            lines[-1].append(", ".join(f"{each:+.2f}" for each in less))
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table of the runs in a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with workdirs called ROW_SEED")
    folder = parser.parse_args(argv).folder
    found = read(folder)
    if not found:
        parser.error(f"{folder} has no finished run called ROW_SEED")
    header = ("row", "seeds", "perplexity", "less base", "sacreBLEU", "less base")
    print_table(header, table(found))


if __name__ == "__main__":
    main()
