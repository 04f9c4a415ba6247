"""Minimum Bayes risk: of samples, choose the one that is most like all the others.

Eikema and Aziz (2020) take samples of a model both for candidates and for references:
the candidate of largest mean utility is the translation. The utility is a metric of
sentences: BLEU, chrF or COMET.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from jaxformer.decoding.parts import Hypothesis, distinct_texts, split_tag

Triple = tuple[str, str, str]  # a source, its translation and a reference
Metric = Callable[[Sequence[Triple]], Sequence[float]]  # scores of sentences


def expected_utilities(
    sources: Sequence[str], samples: Sequence[Sequence[str]], utility: Metric
) -> list[dict[str, float]]:
    """Return the mean utility of each different sample against all of its source.

    `utility` is called once, with the pairs of all sources.
    """
    counts = [Counter(texts) for texts in samples]
    triples = [
        (source, text, reference)
        for source, times in zip(sources, counts, strict=True)
        for text in times
        for reference in times
    ]
    scores = iter(utility(triples))
    return [
        {
            text: sum(n * next(scores) for n in times.values()) / times.total()
            for text in times
        }
        for times in counts
    ]


def by_utility(
    sources: Sequence[str],
    found: Sequence[Sequence[Hypothesis]],
    *,
    utility: Metric,
    language_code: Callable[[str], str],
) -> list[list[Hypothesis]]:
    """Sort the samples of each source by mean utility, the largest first.

    Equal texts are kept once. `language_code` returns the tag of a source or "".
    """
    plain = [split_tag(source, language_code)[1] for source in sources]
    samples = [[each.text for each in hypotheses] for hypotheses in found]
    utilities = expected_utilities(plain, samples, utility)
    return [
        sorted(distinct_texts(hypotheses), key=lambda each, of=values: -of[each.text])
        for hypotheses, values in zip(found, utilities, strict=True)
    ]
