"""What can be said of a run's translations: scores, lengths, the worst and the best.

Used by `jaxformer.reports.run`.
"""

from typing import Any

from jaxformer.evaluation import significance
from jaxformer.evaluation.metrics import every_bleu
from jaxformer.reports import lengths
from jaxformer.reports.facts import Facts, Text, Translated


def describe_translations(
    facts: Facts, text: Text | None, examples: int
) -> dict[str, Any]:
    """What can be said once there are translations."""
    found, data = facts.translated, facts.config["data"]
    if found is None or text is None:
        keys = ("scores", "length_ratio", "by_length", "worst", "best")
        return dict.fromkeys(keys)
    target = data["target_language"]
    pair = (found.translations, text.references)
    confidence = significance.estimate_confidence(*pair, target_language=target)
    by_sentence = significance.sentence_scores(*pair)
    chosen = lengths.outstanding(by_sentence, examples) if examples else ([], [])
    worst, best = (
        [_example(place, by_sentence[place], found, text) for place in places]
        for places in chosen
    )
    return {
        "scores": {
            **{name: each._asdict() for name, each in confidence.items()},
            "case": "cased",
            "direction": facts.direction,
            "nll": found.nll,
            "ppl": found.ppl,
            "every_bleu": [
                each._asdict() for each in every_bleu(*pair, target_language=target)
            ],
        },
        "length_ratio": {
            "bleu": significance.length_ratio(*pair, target_language=target),
            "unit": lengths.unit_of(target),
            "histogram": lengths.ratio_histogram(*pair, target),
        },
        "by_length": lengths.score_by_length(
            text.sources,
            text.references,
            found.translations,
            source_language=data["source_language"],
            target_language=target,
        ),
        "worst": worst,
        "best": best,
    }


def _example(place: int, score: float, found: Translated, text: Text) -> dict[str, Any]:
    """A sentence as the page shows it; `line` counts from 1."""
    source, translation = text.sources[place], found.translations[place]
    aligned = found.align(source, translation)
    return {
        "line": place + 1,
        "chrf": score,
        "source": source,
        "reference": text.references[place],
        "translation": translation,
        "alignment": {
            "source": list(aligned.source[:-1]),
            "target": list(aligned.target[:-1]),
            "links": [list(link) for link in aligned.alignment()],
        },
    }
