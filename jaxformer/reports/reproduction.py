"""Published figures beside ours under the same scorer, as data and text.

`jaxformer reproduce --row=NAME` writes a result into a workdir as reproduced.json.
"""

from collections.abc import Mapping
from typing import Any

from jaxformer.evaluation import published
from jaxformer.system.errors import printable

Json = dict[str, Any]  # objects of JSON
Config = Mapping[str, Json]

# Config keys that do not change what a run reproduces.
IGNORED_KEYS = {
    "data.directory", "batches.executor",
    "batches.row_multiple", "batches.max_shapes", "training.steps",
    "training.tokens_per_microbatch", "training.rematerialise", "training.log_every",
    "training.eval_every", "training.save_every", "training.keep",
    "training.on_divergence", "training.trackers", "decoding.batch_tokens",
}  # fmt: skip


def changed_values(ours: Config, theirs: Config) -> list[str]:
    """Name each value by which our config's experiment differs from the row's."""
    return [
        f"{section}.{key}={ours[section][key]!r}, the row has {value!r}"
        for section, values in theirs.items()
        for key, value in values.items()
        if ours[section][key] != value
        and section != "mesh"
        and f"{section}.{key}" not in IGNORED_KEYS
    ]


def differences(row: str, budget: Json, changed: list[str]) -> list[str]:
    """Return how our experiment differs from the row's: the budget, then the rest."""
    found = [f"config: {each}" for each in changed] + published.row(row).differs
    if budget["steps"] == budget["published_steps"]:
        return found
    averaged = (
        f"checkpoints averaged: {budget['averaged_checkpoints']}, "
        f"{budget['updates_between_them']:,} updates apart"
    )
    return [f"budget: {_updates(budget)}; {averaged}", *found]


def beside_ours(name: str, results: Mapping[str, Json]) -> Json:
    """Return the published row `name` with our figures; `results` by workdir."""
    row = published.row(name)
    runs = [
        {"workdir": k, **each} for k, each in results.items() if each["row"] == name
    ]
    scores = [
        {published.PERPLEXITY: run["ppl"]}
        | {each["scorer"]: each["bleu"] for each in run["every_bleu"]}
        for run in runs
    ]
    figures = [
        {**figure._asdict(), "ours": [each.get(figure.scorer) for each in scores]}
        for figure in row.figures
    ]
    return {"row": name, **row._asdict(), "figures": figures, "runs": runs}


def describe(row: Json) -> str:
    """Return a row of `beside_ours` as text for a terminal."""
    lines = [f"{row['row']}  {row['test']}, config {row['config']}"]
    for figure in row["figures"]:
        ours = ["-" if each is None else f"{each:.2f}" for each in figure["ours"]]
        ours = "  ".join(f"{each:>6}" for each in ours or ["-"])
        note = f" ({figure['note']})" if figure["note"] else ""
        lines.append(
            f"  theirs {figure['value']:6.2f}  ours {ours}  "
            f"{figure['scorer']}: {figure['who']}{note}"
        )
    for run in row["runs"]:
        lines.append(f"  ours is {run['workdir']}: {_updates(run['budget'])}")
        lines += [f"    differs: {each}" for each in run["differs"]]
    return "\n".join(map(printable, lines))


def _updates(budget: Json) -> str:
    return (
        f"{budget['steps']:,} of {budget['published_steps']:,} updates "
        f"({100 * budget['share_of_updates']:.3g} %)"
    )
