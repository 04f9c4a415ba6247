"""Minimum Bayes risk: of samples, choose the one that is most like all the others.

Eikema and Aziz (2020) take samples of a model both for candidates and for references:
the candidate of largest mean utility, here sentence BLEU or chrF, is the translation.
"""

from collections import Counter
from collections.abc import Sequence

from sacrebleu.metrics import CHRF

from jaxformer.decoding.parts import Hypothesis, different
from jaxformer.evaluation.metrics import make_bleu


def expected_utilities(
    texts: Sequence[str], utility: str, target_language: str
) -> dict[str, float]:
    """Return the mean utility, 0 to 100, of each different text against all texts."""
    metric = CHRF()
    if utility == "bleu":
        metric = make_bleu(target_language, effective_order=True)
    counts = Counter(texts)
    return {
        text: sum(
            times * metric.sentence_score(text, [reference]).score
            for reference, times in counts.items()
        )
        / len(texts)
        for text in counts
    }


def by_utility(
    sources: Sequence[str],
    found: Sequence[Sequence[Hypothesis]],
    *,
    utility: str,
    target_language: str,
) -> list[list[Hypothesis]]:
    """Sort the samples of each source by mean utility, the largest first.

    Equal texts are kept once.
    """
    result = []
    for hypotheses in found:
        texts = [each.text for each in hypotheses]
        utilities = expected_utilities(texts, utility, target_language)
        order = sorted(
            different(hypotheses), key=lambda each, of=utilities: -of[each.text]
        )
        result.append(order)
    return result
