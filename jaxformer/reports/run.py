"""The report of a run, or of several side by side: a page, and its data as JSON.

`text` is what was translated; each of `runs` has its log as `curves`, its
`learning_rate` beside equation 3, its scores, sentences, corpus, batches and config;
`comparison` holds the differences of several runs. Missing values are null.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from jaxformer.data.plan import Plan
from jaxformer.errors import InputError
from jaxformer.reports import page
from jaxformer.reports.run_charts import KINDS, make_charts
from jaxformer.reports.translations import (
    Text,
    Translated,
    compare,
    describe_translations,
    unit_of,
)


class RunFacts(NamedTuple):
    """The contents of a run's workdir."""

    name: str
    config: Mapping[str, Mapping[str, Any]]
    direction: str
    tokenizer: str  # sha256
    vocabulary: int
    metrics: Sequence[Mapping[str, Any]]  # the lines of metrics.jsonl
    schedule: Callable[[np.ndarray], np.ndarray]  # learning rate by updates made
    corpus: Mapping[str, Any] | None  # corpus/report.json
    plan: Plan | None  # the batches of the training text
    versions: Mapping[str, str]  # as recorded
    translated: Translated | None


def gather(
    runs: Sequence[RunFacts], text: Text | None, *, examples: int
) -> dict[str, Any]:
    """Return the data of the report; with `examples` 0 no sentence is in it."""
    described = [_describe(run, text, examples) for run in runs]
    name, direction = text and text.name, runs[0].direction
    data = {
        "text": text
        and {"name": name, "sentences": len(text.sources), "direction": direction},
        "length_unit": unit_of(runs[0].config["data"]["source_language"]),
        "runs": described,
        "comparison": None,
    }
    if len(runs) > 1:
        configs = [each["config"] for each in described]
        keys = sorted(set().union(*configs))
        rows = [{"key": k, "values": [c.get(k) for c in configs]} for k in keys]
        evaluations = {r.name: r.translated.evaluation for r in runs if r.translated}
        systems = {name: each.translations for name, each in evaluations.items()}
        compared = {"tests": [], "sentences": []}
        if runs[0].translated and len(systems) > 1:
            compared = compare(systems, text, examples)
        data["comparison"] = {
            "first": runs[0].name,
            **compared,
            "config": [r for r in rows if len(set(map(json.dumps, r["values"]))) > 1],
            "same_pieces": len({run.tokenizer for run in runs}) == 1,
            "same_loss": len({c["training.label_smoothing"] for c in configs}) == 1,
        }
    # JSON has no NaN and no infinity: null.
    return json.loads(json.dumps(data), parse_constant=lambda _: None)


def _describe(run: RunFacts, text: Text | None, examples: int) -> dict[str, Any]:
    curves = {
        kind: [line for line in run.metrics if line["kind"] == kind] for kind in KINDS
    }
    skipped = [line.get("skipped_updates") for line in curves["train"]]
    found = run.translated
    scores = dict.fromkeys(("scores", "by_length", "worst", "best"))
    if found is not None:
        scores = describe_translations(found, text, examples)
    config = {
        f"{section}.{key}": value
        for section, values in sorted(run.config.items())
        for key, value in sorted(values.items())
    }
    for key, value in config.items():
        if key != "data.corpus" and "/" in str(value):  # a path has private folders
            config[key] = PurePath(value).name
    facts = ("name", "direction", "tokenizer", "vocabulary", "versions")
    return {
        **{fact: getattr(run, fact) for fact in facts},
        "parameters": found and found.parameters,
        "checkpoint": found and found.checkpoint,
        "steps": max((line["step"] for line in run.metrics), default=0),
        "planned_steps": run.config["training"]["steps"],
        "curves": curves,
        "learning_rate": _learning_rate(run, curves["train"]),
        "skipped_updates": max((n for n in skipped if n is not None), default=None),
        **scores,
        "corpus": run.corpus and {key: run.corpus[key] for key in ("train", "dev")},
        "batches": run.plan
        and {
            "layout": run.config["batches"]["layout"],
            "padding_share": 1 - run.plan.real_token_share,
            "updates_per_epoch": run.plan.updates_per_epoch,
            "shapes": run.plan.shapes,
        },
        "config": config,
    }


def render(data: Mapping[str, Any]) -> str:
    """Return the page of a report's data."""
    return page.render("run.html", charts=make_charts(data), data=data, report=data)


def write(data: Mapping[str, Any], output: Path) -> Path:
    """Write the page to `output` and the data beside it; returns where the data is.

    Raises InputError if one of them cannot be written.
    """
    page.write(output, render(data))
    beside = output.with_suffix(".json")
    page.write(beside, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return beside


def unique_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell them apart.

    Raises InputError if a folder is given twice.
    """
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    twice = next(name for name in names if names.count(name) > 1)
    raise InputError(f"{twice} is given twice; compare different runs")


def require_one_text(texts: Mapping[str, Text | None]) -> Text | None:
    """Return the text that all runs translate; a run without a checkpoint has None.

    Raises InputError if texts or directions differ; their names may.
    """
    found = [(name, text) for name, text in texts.items() if text is not None]
    for name, text in found:
        if text[1:] != found[0][1][1:]:
            raise InputError(
                f"{name} and {found[0][0]} translate different texts or directions; "
                "compare runs of one direction, on one source and reference"
            )
    return found[0][1] if found else None


def _learning_rate(run: RunFacts, train: Sequence[Mapping]) -> dict[str, Any]:
    """Equation 3 along the run, and the largest relative difference of logged rates."""
    logged = {line["step"]: line["learning_rate"] for line in train}
    logged = {step: rate for step, rate in logged.items() if rate}
    peak = min(run.config["optimizer"]["warmup_steps"], max(logged, default=0))
    steps = sorted({1, peak, *logged}) if logged else []
    rates = run.schedule(np.array(steps) - 1).tolist()
    formula = dict(zip(steps, rates, strict=True))
    differences = [abs(rate / formula[step] - 1) for step, rate in logged.items()]
    return {
        "formula": [
            {"step": step, "learning_rate": rate} for step, rate in formula.items()
        ],
        "largest_relative_difference": max(differences, default=None),
    }
