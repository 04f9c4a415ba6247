"""Compare the models of configs/tatoeba_rows.py by the number of pairs.

    python benchmarks/model_sizes.py --text=data/tatoeba_ende --write=data/tatoeba_rows
    python benchmarks/model_sizes.py --runs=runs/model_sizes
        [--output=docs/model_size.svg]

The first form copies a text in random order, and writes the first pairs of train beside
it as train_1000, train_10000, ...

The second prints a table of sacreBLEU, mean and sample standard deviation over seeds,
and of the minutes of the updates at their median speed. --runs has folders of finished
runs, called MODEL_PAIRS_SEED, with the output of --mode=evaluate --split=test in
test.json. The table also has the rows of jaxformer/runs/quality.json that these runs
lack. --output draws BLEU by pairs, and writes the table to quality.json for
--mode=check.
"""

import argparse
import functools
import itertools
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness, rows
from jaxformer.configs.tatoeba_rows import MODELS, ROWS, TEXTS
from jaxformer.system.errors import InputError
from jaxformer.system.files import write_atomically
from jaxformer.text.lines import read_lines
from jaxformer.training.log import read_metrics

QUOTED = harness.ROOT / "jaxformer" / "runs" / "quality.json"
Row = dict[str, Any]  # pairs, model, BLEU by seed and minutes


def write_texts(text: Path, output: Path) -> list[str]:
    """Copy the splits, and write the first pairs of train; return the files' names."""
    output.mkdir(parents=True, exist_ok=True)
    for split, side in itertools.product(("train", "dev", "test"), ("en", "de")):
        found = [*text.glob(f"{split}.{side}"), *text.glob(f"{split}.{side}.gz")]
        if not found:
            raise InputError(f"{text} has no {split}.{side} and no {split}.{side}.gz")
        shutil.copyfile(found[0], output / found[0].name)
        for pairs in sorted(TEXTS)[:-1] if split == "train" else ():
            lines = itertools.islice(read_lines(found[0]), pairs)
            file = output / f"train_{pairs}.{side}"
            file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return sorted(path.name for path in output.iterdir())


def minutes(workdir: Path) -> float:
    """The minutes of a run's updates at their median speed, as if nothing paused it."""
    logged = [each for each in read_metrics(workdir) if each["kind"] == "train"]
    speed = statistics.median(each["tokens_per_second"] for each in logged)
    return sum(each["tokens"] for each in logged) / speed / 60


def read(folder: Path) -> list[Row]:
    """Read the finished runs, and the rows of quality.json that they lack, by pairs."""
    scores = rows.read(folder, "test.json")
    earlier = json.loads(QUOTED.read_text()) if QUOTED.exists() else []
    found = {(row["pairs"], row["model"]): row for row in earlier}
    for row in [row for row in ROWS if row in scores]:
        model, pairs = ROWS[row]
        times = [minutes(folder / f"{row}_{seed}") for seed in scores[row]]
        found[pairs, model] = {
            "pairs": pairs, "model": model,
            "bleu": [each["bleu"] for each in scores[row].values()],
            "minutes": round(statistics.mean(times), 1),
        }  # fmt: skip
    if not scores.keys() & ROWS.keys():
        raise InputError(f"{folder} has no finished run called MODEL_PAIRS_SEED")
    return sorted(found.values(), key=lambda row: row["pairs"])


def draw(found: list[Row], models: list[str], output: Path) -> None:
    """Draw BLEU by the number of pairs, a line for each model."""
    import altair as alt

    from jaxformer.reports import page

    points = [
        {"pairs": row["pairs"], "model": row["model"], "bleu": bleu}
        for row in found
        for bleu in row["bleu"]
    ]
    colours = alt.Scale(range=list(page.COLOURS[: len(models)]), domain=models)
    ticks = alt.Axis(values=[*TEXTS], format=",")
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("pairs:Q", title="pairs", scale=alt.Scale(type="log"), axis=ticks),
        color=alt.Color("model:N", scale=colours, title=None),
    )
    lines = base.mark_line().encode(y=alt.Y("mean(bleu):Q", title="sacreBLEU"))
    chart = alt.layer(lines, base.mark_point(filled=True).encode(y="bleu:Q"))
    write_atomically(
        output, page.picture(chart.properties(width=480, height=260), "svg")
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.text is not None and options.write is not None:
        return {"written": write_texts(options.text, options.write)}
    if options.runs is None:
        raise InputError("give --runs, or --text and --write")
    found = read(options.runs)
    cells = {
        (row["pairs"], row["model"]): (
            f"{rows.spread(row['bleu'])} | {row['minutes']:.0f}"
        )
        for row in found
    }
    models = [model for model in MODELS if any(model == each for _, each in cells)]
    lines = []
    for pairs in dict.fromkeys(row["pairs"] for row in found):
        of_pairs = [cells.get((pairs, model), " | ") for model in models]
        lines.append(" | ".join([f"{pairs:,}", *of_pairs]))
    heads = [f"{model} | minutes" for model in models]
    harness.print_table(" | ".join(["pairs", *heads]), lines)
    if options.output:
        draw(found, models, options.output)
        write_atomically(QUOTED, f"{json.dumps(found, indent=1)}\n")
    return {"rows": found}


main = functools.partial(
    harness.run, __doc__, measure, text=None, write=None, runs=None, output=None
)


if __name__ == "__main__":
    sys.exit(main())
