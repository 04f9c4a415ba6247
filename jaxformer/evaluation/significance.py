"""Confidence intervals, significance tests of systems, and scores of sentences.

Systems are compared by paired approximate randomisation. sacreBLEU's paired bootstrap
takes absolute values of the resampled differences before it subtracts their mean, so
its p-values are too small. Of 300 pairs of equally good systems, 150 sentences each,
10 % have p < 0.05 by bootstrap, and 4 % by randomisation.

All statistics are sacreBLEU's, with its fixed seed (12345, or SACREBLEU_SEED); their
signatures name samples and seed. Only ties are added to its p-values. They describe
translations of one text by given models. Training with another seed also changes
scores, which no such test measures.
"""

import itertools
import operator
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest, Result

from jaxformer.evaluation.metrics import make_bleu

RESAMPLES = 1000  # of the bootstrap, sacreBLEU's default
TRIALS = 10_000  # of approximate randomisation, sacreBLEU's default
MAX_SENTENCES = 10_000  # above, a text has fewer samples, to limit memory
METRICS = ("bleu", "chrf")


class Confidence(NamedTuple):
    """A corpus score, 0 to 100, and its 95 % interval: mean - or + half_width.

    `half_width` is None where all resamples score the same, such as 0 for a weak model:
    then no interval can be estimated.
    """

    score: float
    mean: float  # of the scores of the resamples
    half_width: float | None
    signature: str
    # BLEU's tokens of the translations by tokens of the references: below 1, BLEU is
    # multiplied by the brevity penalty, exp(1 - 1 / length_ratio). None for chrF.
    length_ratio: float | None


class Comparison(NamedTuple):
    """The difference between a system and the first one, and whether it is chance.

    A p-value is the probability of a difference at least as large if both systems are
    equally good; 1 where there is no difference. sacreBLEU's randomisation counts only
    larger differences. The probability of the same one is added: that of swapping none
    or all of the sentences with different scores.
    """

    difference: float  # the system's score less the first one's
    randomisation_p: float
    randomisation_signature: str


def estimate_confidence(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> dict[str, Confidence]:
    """Return BLEU and chrF, cased, with bootstrap intervals; keys as METRICS."""
    found = _paired_test("bs", RESAMPLES, [hypotheses], [references], target_language)
    lengths = make_bleu(target_language).corpus_score(hypotheses, [references])
    ratios = {"bleu": lengths.sys_len / max(lengths.ref_len, 1), "chrf": None}
    return {
        name: Confidence(
            float(own.score),
            float(own.mean),
            float(own.ci) if own.ci else None,
            signature,
            ratios[name],
        )
        for name, ((own,), signature) in found.items()
    }


def compare_systems(
    systems: Sequence[Sequence[str]], *references: Sequence[str], target_language: str
) -> list[dict[str, Comparison]]:
    """Test each further system against the first one, by BLEU and by chrF."""
    found = _paired_test("ar", TRIALS, systems, references, target_language)
    metrics = {"bleu": make_bleu(target_language), "chrf": CHRF()}

    def compare(metric: str, index: int) -> Comparison:
        results, signature = found[metric]
        difference = results[index].score - results[0].score
        larger = results[index].p_value if difference else 1.0
        texts = zip(systems[0], systems[index], *references, strict=True)
        differ = sum(itertools.starmap(partial(_differ, metrics[metric]), texts))
        same = 2.0 ** (1 - differ)
        return Comparison(difference, min(1.0, larger + same), signature)

    return [
        {metric: compare(metric, index) for metric in METRICS}
        for index in range(1, len(systems))
    ]


def _differ(metric: BLEU | CHRF, first: str, other: str, *references: str) -> bool:
    """Whether a corpus scores differently with one of two translations."""
    if first == other:
        return False
    expected = [[reference] for reference in references]
    scores = (metric.corpus_score([each], expected) for each in (first, other))
    return operator.ne(*map(vars, scores))  # counts and lengths


def sentence_scores(
    hypotheses: Sequence[str], references: Sequence[str]
) -> list[float]:
    """Return the chrF of each sentence, 0 to 100.

    BLEU is 0 for most sentences, which share no sequence of four words with their
    reference.
    """
    chrf = CHRF()
    return [
        float(chrf.sentence_score(hypothesis, [reference]).score)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]


def _paired_test(
    kind: str,
    samples: int,
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    target_language: str,
) -> dict[str, tuple[list[Result], str]]:
    """Results of all systems and the signature, by metric; the first has no p-value."""
    share = max(0.1, min(1, MAX_SENTENCES / len(references[0])))
    test = PairedTest(
        [(str(number), list(system)) for number, system in enumerate(systems)],
        {"bleu": make_bleu(target_language), "chrf": CHRF()},
        [*map(list, references)],
        test_type=kind,
        n_samples=int(samples * share),
    )
    signatures, results = test()
    # sacreBLEU renames the metrics, such as to "chrF2", and keeps their order.
    return {
        metric: (results[name], str(signatures[name]))
        for metric, name in zip(METRICS, signatures, strict=True)
    }
