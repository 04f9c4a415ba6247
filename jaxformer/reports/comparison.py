"""What tells runs apart: tests against the first one, configs, sentences.

Used by `jaxformer.reports.run`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxformer.evaluation import significance


class Text(Protocol):
    """What was translated."""

    sources: list[str]
    references: list[str]


def compare(
    described: Sequence[Mapping[str, Any]],
    translations: Sequence[Sequence[str] | None],
    text: Text | None,
    *,
    target_language: str,
    examples: int,
) -> dict[str, Any]:
    """The report's `comparison`, of runs as the report describes them.

    `translations` are those of each run, None where there are none yet; at most
    `examples` sentences are shown of each further run.
    """
    tests, sentences = [], []
    others = [
        (each["name"], theirs)
        for each, theirs in zip(described[1:], translations[1:], strict=True)
        if theirs is not None
    ]
    if text is not None and translations[0] is not None and others:
        found = significance.compare_systems(
            [translations[0], *(theirs for _, theirs in others)],
            text.references,
            target_language=target_language,
        )
        tests = [
            {"name": name, **{key: each._asdict() for key, each in test.items()}}
            for (name, _), test in zip(others, found, strict=True)
        ]
        sentences = [
            {
                "name": name,
                "sentences": _apart(translations[0], theirs, text, examples),
            }
            for name, theirs in others
            if examples
        ]
    smoothing = {each["config"]["training.label_smoothing"] for each in described}
    return {
        "first": described[0]["name"],
        "tests": tests,
        "config": _differing(described),
        "sentences": sentences,
        "same_pieces": len({each["tokenizer"] for each in described}) == 1,
        "same_loss": len(smoothing) == 1,
    }


def _differing(described: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The config keys that have not one value in all runs, with the value of each."""
    keys = sorted({key for each in described for key in each["config"]})
    rows = [
        {"key": key, "values": [each["config"].get(key) for each in described]}
        for key in keys
    ]
    return [row for row in rows if len(set(map(json.dumps, row["values"]))) > 1]


def _apart(
    ours: Sequence[str], theirs: Sequence[str], text: Text, number: int
) -> list[dict[str, Any]]:
    """The sentences whose chrF differs most between two systems, largest first."""
    before, after = (
        significance.sentence_scores(side, text.references) for side in (ours, theirs)
    )
    gaps = [abs(score - other) for score, other in zip(before, after, strict=True)]
    order = sorted(range(len(gaps)), key=lambda place: -gaps[place])
    return [
        {
            "line": place + 1,
            "source": text.sources[place],
            "reference": text.references[place],
            "translations": [ours[place], theirs[place]],
            "chrf": [before[place], after[place]],
        }
        for place in order[:number]
        if gaps[place]
    ]
