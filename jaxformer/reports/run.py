"""The report of a run, or of several side by side: a page, and its data as JSON.

The data is one dict that holds all that the page shows:

    text         name, sentences, direction, source_language, target_language; null
                 without translations
    length_unit  of source lengths: words or characters
    runs         of each run
        name, direction, tokenizer (sha256), vocabulary, parameters, sizes
        steps, planned_steps, checkpoint (which parameters translated)
        curves           train, eval and final: lines of metrics.jsonl
        learning_rate    the formula's values, and how far the logged ones are from it
        skipped_updates  null where it was not recorded
        scores           bleu and chrf, each with score, mean, half_width, signature;
                         case, direction, nll, ppl; every_bleu, under each scorer that
                         papers use; null without translations
        length_ratio     bleu's own, and a histogram of the sentences'
        by_length        BLEU and chrF by source length
        worst, best      sentences by chrF, with their alignment
        corpus           what was kept and dropped, by split; null if not recorded
        batches          layouts and shapes with their share of padding; null likewise
        versions, config
    comparison   null for one run: tests against the first run, what differs in configs,
                 sentences that differ most, whether losses can be compared
    environment  where the report was made

Used by `jaxformer.commands.report`, which hands over what is in a workdir.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from jaxformer.reports import lengths, page, run_charts
from jaxformer.reports.alignment import lay_out
from jaxformer.reports.comparison import compare
from jaxformer.reports.facts import Facts, Text
from jaxformer.reports.translations import describe_translations

# Config keys that say where a file is: only its name is told.
_PATHS = {
    "data": (
        "directory", "data_dir", "train", "dev", "test", "train_source", "train_target",
        "dev_source", "dev_target", "test_source", "test_target",
    ),
    "training": ("initial_embeddings",),
}  # fmt: skip
# Of a model's config, what the page's first lines name.
_SIZES = (
    "encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "dropout",
)  # fmt: skip
_TRAIN = (
    "step", "loss", "nll", "ppl", "accuracy", "learning_rate", "gradient_norm",
    "tokens_per_second", "skipped_updates",
)  # fmt: skip
_EVAL = (
    "step", "loss", "nll", "ppl", "accuracy", "bleu", "signature", "chrf",
    "chrf_signature", "direction", "case",
)  # fmt: skip
FORMULA_POINTS = 200


def gather(
    runs: Sequence[Facts],
    text: Text | None,
    *,
    examples: int,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The data of the report; with `examples` 0 no sentence is in it."""
    described = [_describe(facts, text, examples) for facts in runs]
    languages = runs[0].config["data"]
    data = {
        "text": text
        and {
            "name": text.name,
            "sentences": len(text.sources),
            "direction": runs[0].direction,
            "source_language": languages["source_language"],
            "target_language": languages["target_language"],
        },
        "length_unit": lengths.unit_of(languages["source_language"]),
        "runs": described,
        "comparison": compare(
            described,
            [each.translated and each.translated.translations for each in runs],
            text,
            target_language=languages["target_language"],
            examples=examples,
        )
        if len(runs) > 1
        else None,
        "environment": dict(environment),
    }
    return _finite(data)


def write(data: Mapping[str, Any], output: Path) -> Path:
    """Write the page to `output` and the data beside it; returns where the data is.

    Raises InputError if one of them cannot be written.
    """
    beside = output.with_suffix(".json")
    html = page.render(
        "run.html",
        charts=run_charts.make_charts(data),
        data=data,
        report=data,
        lay_out=lay_out,
        sections=_by_section,
    )
    page.write(output, html)
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    page.write(beside, f"{text}\n")
    return beside


def learning_rate(step: int, *, d_model: int, warmup_steps: int, scale: float) -> float:
    """Equation 3 of the paper, times `scale`, which is 1 there; of update 1, 2, ..."""
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def _describe(facts: Facts, text: Text | None, examples: int) -> dict[str, Any]:
    """One run by itself."""
    curves = {
        kind: [
            {key: line.get(key) for key in keys}
            for line in facts.metrics
            if line.get("kind") == kind
        ]
        for kind, keys in (("train", _TRAIN), ("eval", _EVAL), ("final", _EVAL))
    }
    steps = max((line["step"] for line in facts.metrics), default=0)
    skipped = [line["skipped_updates"] for line in curves["train"]]
    return {
        "name": facts.name,
        "direction": facts.direction,
        "tokenizer": facts.tokenizer,
        "vocabulary": facts.vocabulary,
        "parameters": facts.parameters,
        "sizes": {key: facts.config["model"].get(key) for key in _SIZES},
        "steps": steps,
        "planned_steps": facts.config["training"]["steps"],
        "checkpoint": facts.translated and facts.translated.checkpoint,
        "curves": curves,
        "learning_rate": _against_formula(facts.config, curves["train"]),
        "skipped_updates": max((n for n in skipped if n is not None), default=None),
        **describe_translations(facts, text, examples),
        "corpus": facts.corpus
        and {split: facts.corpus[split] for split in ("train", "dev")},
        "batches": facts.batches,
        "versions": dict(facts.versions),
        "config": _shown_config(facts.config),
    }


def _against_formula(config: Mapping, train: Sequence[Mapping]) -> dict[str, Any]:
    """Equation 3 along the run, and the largest relative difference of what was logged.

    None where nothing was logged.
    """
    optimizer = config["optimizer"]
    values = {
        "d_model": config["model"]["d_model"],
        "warmup_steps": optimizer["warmup_steps"],
        "scale": optimizer["learning_rate_scale"],
    }
    differences = [
        abs(line["learning_rate"] / learning_rate(line["step"], **values) - 1)
        for line in train
        if line["learning_rate"]
    ]
    last = max((line["step"] for line in train), default=0)
    steps = {round(last * n / FORMULA_POINTS) for n in range(1, FORMULA_POINTS + 1)}
    steps |= {1, min(values["warmup_steps"], last)}
    return {
        **values,
        "formula": [
            {"step": step, "learning_rate": learning_rate(step, **values)}
            for step in sorted(steps - {0})
        ]
        if train
        else [],
        "largest_relative_difference": max(differences, default=None),
    }


def _shown_config(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The config as "section.key": value; of a path only the last part."""
    return {
        f"{section}.{key}": PurePath(value).name
        if isinstance(value, str) and key in _PATHS.get(section, ())
        else value
        for section, values in sorted(config.items())
        for key, value in sorted(values.items())
    }


def _by_section(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The config for the page: {"section": {"key": value}}."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in config.items():
        section, _, key = name.partition(".")
        found.setdefault(section, {})[key] = value
    return found


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
