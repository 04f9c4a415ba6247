"""Scores by length of the sentence, ratios of lengths, and sentences that stand out.

Lengths are in words, so that runs with other vocabularies have the same buckets; in
characters for languages that put no spaces between words. Used by
`jaxformer.reports.run`.
"""

from collections.abc import Sequence
from typing import Any

from jaxformer.evaluation.metrics import corpus_scores

UNSPACED = ("zh", "ja", "th", "lo", "km", "my")  # scripts without spaces
WIDTH = 5  # words of a bucket of short sentences
LEAST = 30  # sentences: a score of fewer says little
WIDEST_RATIO = 2.0  # histogram: all above are one bar


def unit_of(language: str) -> str:
    """What lengths of text in this language are counted in: words or characters."""
    base = language.replace("_", "-").split("-")[0].lower()
    return "characters" if base in UNSPACED else "words"


def count(sentence: str, unit: str) -> int:
    """The length of a sentence in `unit`."""
    words = sentence.split()
    return len(words) if unit == "words" else sum(map(len, words))


def make_buckets(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """First and last length of each bucket; together they hold every length.

    The first are 1-5, 6-10, 11-15, and so on, wider for longer sentences. Neighbours
    are one where a bucket would have fewer than LEAST sentences.
    """
    buckets: list[tuple[int, int]] = []
    begin, inside = min(lengths), 0
    edge = WIDTH
    longest = max(lengths)
    while begin <= longest:
        while edge < begin:
            edge += _width_after(edge)
        inside = sum(begin <= length <= edge for length in lengths)
        if inside >= LEAST or edge >= longest:
            buckets.append((begin, min(edge, longest)))
            begin = edge + 1
        edge += _width_after(edge)
    if len(buckets) > 1 and inside < LEAST:  # what is left joins those before
        (first, _), (_, last) = buckets[-2:]
        buckets[-2:] = [(first, last)]
    return buckets


def _width_after(edge: int) -> int:
    """WIDTH up to 20, twice that up to 40, four times up to 80, and so on."""
    width = WIDTH
    while edge >= 4 * width:
        width *= 2
    return width


def score_by_length(
    sources: Sequence[str],
    references: Sequence[str],
    translations: Sequence[str],
    *,
    source_language: str,
    target_language: str,
) -> list[dict[str, Any]]:
    """BLEU and chrF of the sentences of each bucket, each bucket a text of its own.

    `from` and `to` are source lengths, `ratio` is target length by reference length,
    `few` says that a bucket has fewer than LEAST sentences.
    """
    unit = unit_of(source_language)
    lengths = [count(source, unit) for source in sources]
    found = []
    for first, last in make_buckets(lengths):
        inside = [n for n, length in enumerate(lengths) if first <= length <= last]
        theirs = [references[n] for n in inside]
        ours = [translations[n] for n in inside]
        scores = corpus_scores(
            ours,
            theirs,
            source_language=source_language,
            target_language=target_language,
        )
        found.append(
            {
                "from": first,
                "to": last,
                "sentences": len(inside),
                "few": len(inside) < LEAST,
                "bleu": scores.bleu,
                "chrf": scores.chrf,
                "ratio": ratio_of(ours, theirs, target_language),
            }
        )
    return found


def ratio_of(
    translations: Sequence[str], references: Sequence[str], language: str
) -> float:
    """Length of all translations by length of all references."""
    unit = unit_of(language)
    ours, theirs = (
        sum(count(sentence, unit) for sentence in side)
        for side in (translations, references)
    )
    return ours / max(theirs, 1)


def ratio_histogram(
    translations: Sequence[str], references: Sequence[str], language: str
) -> list[dict[str, Any]]:
    """How many sentences have which length by that of their reference.

    Bars are 0.1 wide around `ratio`, which is a multiple of that; the last one holds
    all from WIDEST_RATIO on. Bars before the first and after the last sentence are
    left out.
    """
    unit = unit_of(language)
    most = round(10 * WIDEST_RATIO)
    counts = [0] * (most + 1)
    for ours, theirs in zip(translations, references, strict=True):
        ratio = count(ours, unit) / max(count(theirs, unit), 1)
        counts[min(round(10 * ratio), most)] += 1
    filled = [place for place, number in enumerate(counts) if number]
    return [
        {"ratio": place / 10, "sentences": counts[place]}
        for place in range(filled[0], filled[-1] + 1)
    ]


def outstanding(scores: Sequence[float], number: int) -> tuple[list[int], list[int]]:
    """Places of the `number` worst and the `number` best; of equal ones the first.

    No sentence is in both, unless there is only one.
    """
    number = min(number, max(1, len(scores) // 2))
    places = range(len(scores))
    worst = sorted(places, key=lambda place: scores[place])[:number]
    best = sorted(places, key=lambda place: -scores[place])[:number]
    return worst, best
