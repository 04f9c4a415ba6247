"""Compare runs of a config with rows, in folders called ROW_SEED.

    python benchmarks/rows.py runs/rows
    python benchmarks/rows.py runs/architectures --base=transformer --scores=test.json

Prints a table in Markdown of the last evaluation of each finished run, or of --scores,
a file in each folder with the output of --mode=evaluate: mean and sample standard
deviation over seeds, and the difference from the base row, seed by seed. docs/claims.md
and docs/architectures.md say how to train the runs.
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
from jaxformer.training.log import read_metrics

COMPARED = "ppl", "bleu"
MEASURES = *COMPARED, "chrf"
Scores = dict[str, dict[int, dict[str, float]]]  # by row and seed


def read(folder: Path, file: str | None) -> Scores:
    """Read the scores of all runs; unfinished runs go to stderr."""
    found: Scores = {}
    for path in sorted(folder.glob("*/metrics.jsonl")):
        name = re.fullmatch(r"(.+)_(\d+)", path.parent.name)
        if file is None:
            lines = read_metrics(path.parent)
            final = [each for each in lines if each["kind"] == "final"]
        else:
            texts = map(Path.read_text, path.parent.glob(file))
            final = [json.loads(text) for text in texts]
        if name is None or not final:
            print(f"{path.parent.name} is left out: not finished", file=sys.stderr)
            continue
        found.setdefault(name[1], {})[int(name[2])] = final[-1]
    return found


def spread(values: Sequence[float]) -> str:
    """Write the mean and, of two or more, the sample standard deviation."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2f}"


def table(found: Scores, base: str) -> list[str]:
    """Make a line for each row, that of `base` first.

    Differences are from the base run of the same seed.
    """
    lines = []
    for row in sorted(found, key=lambda row: (row != base, row)):
        runs = found[row]
        shared = sorted(runs.keys() & found[base].keys()) if row != base else []
        cells = [f"`{row}`", str(len(runs))]
        for measure in MEASURES:
            cells.append(spread([scores[measure] for scores in runs.values()]))
            if measure in COMPARED:
                less = [runs[s][measure] - found[base][s][measure] for s in shared]
                cells.append(", ".join(f"{each:+.2f}" for each in less))
        lines.append(" | ".join(cells))
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with workdirs called ROW_SEED")
    parser.add_argument("--base", default="base", help="row to compare with")
    parser.add_argument("--scores", help="file of each workdir, by default its log")
    options = parser.parse_args(argv)
    found = read(options.folder, options.scores)
    if options.base not in found:
        parser.error(f"{options.folder} has no finished run called {options.base}_SEED")
    header = "row | seeds | perplexity | less base | sacreBLEU | less base | chrF"
    print_table(header, table(found, options.base))


if __name__ == "__main__":
    main()
