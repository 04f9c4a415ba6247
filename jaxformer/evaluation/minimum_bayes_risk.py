"""Minimum Bayes risk: of samples, choose the one that is most like all the others.

Eikema and Aziz (2020) take samples of a model both for candidates and for references:
the candidate of largest mean utility, here sentence BLEU or chrF, is the translation.
"""

from collections import Counter
from collections.abc import Sequence

from sacrebleu.metrics import CHRF

from jaxformer.decoding.parts import Hypothesis
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
    hypotheses: Sequence[Hypothesis], utility: str, target_language: str
) -> list[Hypothesis]:
    """Sort samples by their mean utility, the largest first; equal texts once."""
    texts = [each.text for each in hypotheses]
    utilities = expected_utilities(texts, utility, target_language)
    different = {each.text: each for each in reversed(hypotheses)}
    order = sorted(dict.fromkeys(texts), key=lambda text: -utilities[text])
    return [different[text] for text in order]
