"""The report of a run, or of several side by side: a page, and its data as JSON.

`text` is what was translated; each of `runs` has its log as `curves`, its
`learning_rate` beside the schedule, its scores, sentences, corpus, batches and config;
`comparison` holds the differences of several runs. Missing values are null.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath

import numpy as np

from jaxformer.corpus.plan import Plan
from jaxformer.reports import page
from jaxformer.reports.page import Json
from jaxformer.reports.translations import ReportedText, compare
from jaxformer.system.errors import InputError
from jaxformer.system.files import write_atomically

# Keys whose values have slashes that are none of a path.
_WITH_SLASHES = "corpus", "best_by", "freeze", "user_defined_symbols"


def describe_run(
    facts: Json,
    config: Mapping[str, Json],
    metrics: Sequence[Json],
    schedule: Callable[[np.ndarray], np.ndarray],
    corpus: Json | None,
    plan: Plan | None,
) -> Json:
    """Return the report's data of a run.

    `facts` are part of it: name, direction, length_unit, tokenizer (its sha256),
    vocabulary and source_vocabulary (pieces), versions, and for a trained run
    parameters (their number), checkpoint and `describe_translations`. `metrics` are the
    lines of metrics.jsonl, `corpus` is corpus/report.json, `schedule` returns the
    learning rate by updates made. Paths are whole; `gather` cuts them.
    """
    curves = {
        kind: [line for line in metrics if line["kind"] == kind]
        for kind in ("train", "eval", "final")
    }
    skipped = [line.get("skipped_updates") for line in curves["train"]]
    flat = {
        f"{section}.{key}": value
        for section, values in sorted(config.items())
        for key, value in sorted(values.items())
    }
    trained = ("parameters", "checkpoint", "scores", "by_length", "worst", "best")
    return {
        **facts,
        **{key: facts.get(key) for key in trained},
        "steps": max((line["step"] for line in metrics), default=0),
        "planned_steps": flat["training.steps"],
        "curves": curves,
        "learning_rate": _learning_rate(
            curves["train"], schedule, flat["optimizer.warmup_steps"]
        ),
        "skipped_updates": max((n for n in skipped if n is not None), default=None),
        "corpus": corpus and {split: corpus[split] for split in ("train", "dev")},
        "batches": plan
        and {
            "layout": flat["batches.layout"],
            "padding_share": 1 - plan.real_token_share,
            "updates_per_epoch": plan.updates_per_epoch,
            "shapes": plan.shapes,
        },
        "config": flat,
    }


def without_folders(value: object) -> object:
    """Cut every path in a config value to its name: folders may be private."""
    match value:
        case str() if "/" in value:
            return ",".join(PurePath(each).name for each in value.split(","))
        case list() | tuple():
            return [without_folders(each) for each in value]
        case dict():
            return {
                k: v if k.rpartition(".")[2] in _WITH_SLASHES else without_folders(v)
                for k, v in value.items()
            }
    return value


def _learning_rate(
    train: Sequence[Json], schedule: Callable, warmup_steps: int
) -> Json:
    """The schedule along the run, and the largest relative difference of logged rates.

    Rates are compared where the schedule is above 0: a shorter run has none later.
    """
    lines = {line["step"]: line for line in train if line["learning_rate"]}
    steps = sorted({1, min(warmup_steps, max(lines)), *lines}) if lines else []
    formula = dict(zip(steps, schedule(np.array(steps) - 1).tolist(), strict=True))
    # A skipped update does not count in the schedule.
    made = [step - (lines[step].get("skipped_updates") or 0) for step in lines]
    expected = zip(lines.values(), schedule(np.array(made) - 1).tolist(), strict=True)
    differences = [abs(line["learning_rate"] / e - 1) for line, e in expected if e]
    return {
        "formula": [{"step": s, "learning_rate": rate} for s, rate in formula.items()],
        "largest_relative_difference": max(differences, default=None),
    }


def gather(
    runs: Sequence[Json],
    translations: Sequence[Sequence[str] | None],
    text: ReportedText | None,
    *,
    examples: int,
) -> Json:
    """Return the data of the report of described runs; None is a run not trained yet.

    Up to `examples` sentences are shown where runs differ.
    """
    uncut = [run["config"] for run in runs]
    configs = [without_folders(config) for config in uncut]
    runs = [{**run, "config": c} for run, c in zip(runs, configs, strict=True)]
    first = runs[0]
    data = {
        "text": text
        and {
            "name": text.name,
            "sentences": len(text.sources),
            "direction": first["direction"],
        },
        "length_unit": first["length_unit"],
        "runs": runs,
        "comparison": None,
    }
    if len(runs) > 1:
        keys = sorted(set().union(*configs))
        rows = [{"key": k, "values": _side_by_side(k, configs, uncut)} for k in keys]
        names = [run["name"] for run in runs]
        systems = {n: t for n, t in zip(names, translations, strict=True) if t}
        compared = {"tests": [], "sentences": []}
        if translations[0] and len(systems) > 1:
            compared = compare(systems, text, examples)
        data["comparison"] = {
            "first": first["name"],
            **compared,
            "config": [r for r in rows if len(set(map(json.dumps, r["values"]))) > 1],
            "same_pieces": len({run["tokenizer"] for run in runs}) == 1,
            "same_loss": len({c["training.label_smoothing"] for c in configs}) == 1,
        }
    # JSON has no NaN and no infinity: null.
    return json.loads(json.dumps(data), parse_constant=lambda _: None)


def _side_by_side(
    key: str, configs: Sequence[Mapping], uncut: Sequence[Mapping]
) -> list[object]:
    """Return a key's value in each run; equal names of other paths are marked."""
    values = [config.get(key) for config in configs]
    return [
        f"{value} (another path)"
        if value == values[0] and config.get(key) != uncut[0].get(key)
        else value
        for value, config in zip(values, uncut, strict=True)
    ]


def render(data: Json) -> str:
    """Return the page of a report's data."""
    curves = [curve for run in data["runs"] for curve in run["curves"].values()]
    lines = [line.items() for curve in curves for line in curve]
    logged = {key for line in lines for key, value in line if value is not None}
    return page.render("run.html", data=data, report=data, logged=logged)


def write(data: Json, output: Path) -> Path:
    """Write the page to `output` and the data beside it; returns where the data is."""
    write_atomically(output, render(data))
    beside = output.with_suffix(".json")
    write_atomically(beside, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return beside


def require_own(beside: Path) -> None:
    """Raise InputError if there is anything else than the data of a report."""
    if not os.path.lexists(beside):
        return
    is_own = beside.is_file() and not beside.is_symlink()  # a device may have no end
    try:
        is_own = is_own and "runs" in json.loads(beside.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        is_own = False
    if not is_own:
        raise InputError(
            f"{beside} is where the report's data would be, and is another file; give "
            "--output another name"
        )


def unique_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell them apart.

    Raises InputError if a folder is given twice.
    """
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*each[-depth:])) for each in parts]
        if len(set(names)) == len(names):
            return names
    twice = max(names, key=names.count)
    raise InputError(f"{twice} is given twice; compare different runs")


def require_one_text(texts: Mapping[str, ReportedText | None]) -> ReportedText | None:
    """Return the text that all runs translate; a run without a checkpoint has None.

    Raises InputError if texts or directions differ; their names may.
    """
    found = {name: text for name, text in texts.items() if text is not None}
    first = next(iter(found), None)
    for name, text in found.items():
        if text[1:] != found[first][1:]:
            raise InputError(
                f"{name} and {first} translate different texts or directions; "
                "compare runs of one direction, on one source and reference"
            )
    return found.get(first)
