"""Scores, sentences and comparisons of translations for a report."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxformer.config.languages import language_and_script
from jaxformer.decoding.forced import Attention
from jaxformer.decoding.parts import split_tag
from jaxformer.evaluation import significance
from jaxformer.evaluation.evaluator import Evaluation
from jaxformer.evaluation.metrics import TOKENIZERS, corpus_scores
from jaxformer.reports.page import Json

UNSPACED = TOKENIZERS.keys() - {"Kore"}  # scripts without spaces between words
BUCKET_ENDS = (5, 10, 15, 20, 30, 40, 60, 80, 120, 160, 240, 320)
MIN_BUCKET = 30  # sentences: scores of fewer are unreliable


class ReportedText(NamedTuple):
    """Sentences to translate, with their reference translations."""

    name: str
    source_language: str
    target_language: str
    sources: list[str]
    references: list[str]

    def pair(self, at: int) -> Json:
        """Return a pair as the page shows it; `line` counts from 1."""
        source, reference = self.sources[at], self.references[at]
        return {"line": at + 1, "source": source, "reference": reference}


def describe_translations(
    found: Evaluation,
    text: ReportedText,
    align: Callable[[str, str], Attention | None] | None,
    examples: int,
    tag_of: Callable[[str], str],
) -> Json:
    """Return scores, by_length, and the `examples` worst and best sentences.

    `found` has BLEU under every scorer; `align` takes a source and its translation. It
    returns None for a line in several parts, and is None for a model without attention.
    `tag_of` returns the tag that begins a source, or "".
    """
    pair = found.translations, text.references
    confidence = significance.estimate_confidence(
        *pair, target_language=text.target_language
    )
    chrf = significance.sentence_scores(*pair)

    def example(at: int) -> Json:
        translation = found.translations[at]
        alignment = {"source": [], "target": [], "links": []}
        if align and (aligned := align(text.sources[at], translation)):
            pieces = {"source": aligned.source[:-1], "target": aligned.target[:-1]}
            alignment = {**pieces, "links": aligned.alignment()}
        return {
            **text.pair(at),
            "chrf": chrf[at],
            "translation": translation,
            "alignment": alignment,
        }

    order = sorted(range(len(chrf)), key=chrf.__getitem__)
    number = min(examples, max(1, len(chrf) // 2))
    return {
        "scores": {
            **{name: each._asdict() for name, each in confidence.items()},
            "nll": found.scores["nll"],
            "ppl": found.scores["ppl"],
            "every_bleu": [each._asdict() for each in found.every_bleu],
        },
        "by_length": score_by_length(found.translations, text, tag_of),
        "worst": list(map(example, order[:number])),
        "best": list(map(example, order[::-1][:number])),
    }


def unit_of(language: str) -> str:
    """Return the unit of lengths in this language: words or characters."""
    return "characters" if language_and_script(language)[1] in UNSPACED else "words"


def make_buckets(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last length of each bucket; together they hold all lengths.

    Buckets end at BUCKET_ENDS; those of fewer than MIN_BUCKET sentences are merged.
    """
    first, longest = min(lengths), max(lengths)
    buckets: list[tuple[int, int]] = []
    for last in (*(end for end in BUCKET_ENDS if first <= end < longest), longest):
        if sum(first <= length <= last for length in lengths) >= MIN_BUCKET:
            buckets.append((first, last))
            first = last + 1
    if first <= longest:  # too few are left
        buckets[-1:] = [(buckets[-1][0] if buckets else first, longest)]
    return buckets


def score_by_length(
    translations: Sequence[str], text: ReportedText, tag_of: Callable[[str], str]
) -> list[Json]:
    """Score the sentences of each bucket of source lengths as a text of its own.

    Tags do not count as words.
    """
    is_spaced = unit_of(text.source_language) == "words"
    words = [split_tag(source, tag_of)[1].split() for source in text.sources]
    lengths = [len(each if is_spaced else "".join(each)) for each in words]
    found = []
    for first, last in make_buckets(lengths):
        rows = zip(lengths, translations, text.references, strict=True)
        _, *pair = zip(*(row for row in rows if first <= row[0] <= last), strict=True)
        scores = corpus_scores(
            *map(list, pair),
            source_language=text.source_language,
            target_language=text.target_language,
        )
        bucket = {"from": first, "to": last, "sentences": len(pair[0])}
        found.append({**bucket, "bleu": scores.bleu, "chrf": scores.chrf})
    return found


def compare(
    systems: Mapping[str, Sequence[str]], text: ReportedText, examples: int
) -> dict[str, list[Json]]:
    """Compare the translations of each further system with those of the first one.

    Returns significance tests, and the `examples` sentences whose chrF differs most.
    """
    (_, first), *others = systems.items()
    found = significance.compare_systems(
        list(systems.values()), text.references, target_language=text.target_language
    )
    return {
        "tests": [
            {"name": name, **{key: each._asdict() for key, each in test.items()}}
            for (name, _), test in zip(others, found, strict=True)
        ],
        "sentences": [
            {"name": name, "sentences": _differing(first, theirs, text)[:examples]}
            for name, theirs in others
            if examples
        ],
    }


def _differing(
    first: Sequence[str], other: Sequence[str], text: ReportedText
) -> list[Json]:
    """Return the sentences whose chrF differs, the largest difference first."""
    sides = [significance.sentence_scores(s, text.references) for s in (first, other)]
    found = [
        {**text.pair(at), "translations": [first[at], other[at]], "chrf": list(chrf)}
        for at, chrf in enumerate(zip(*sides, strict=True))
        if chrf[0] != chrf[1]
    ]
    return sorted(found, key=lambda each: -abs(each["chrf"][0] - each["chrf"][1]))
