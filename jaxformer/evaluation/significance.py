"""Confidence intervals, significance tests of systems, and scores of sentences.

All statistics are sacreBLEU's own, with its fixed seed (12345, or SACREBLEU_SEED), and
each has the signature that names samples and seed. They are about one set of
translations of one text: another seed of training changes scores, too, and no test of
this kind sees that. Used by `jaxformer.reports`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from jaxformer.evaluation import metrics

RESAMPLES = 1000  # of the bootstrap, as sacreBLEU's own default
TRIALS = 10_000  # of approximate randomisation, likewise
# All resamples of a text are in memory at once: a longer text has fewer of them.
MAX_SENTENCES = 10_000
METRICS = ("bleu", "chrf")


class Confidence(NamedTuple):
    """A corpus score, 0 to 100, and its 95 % interval: mean - or + half_width."""

    score: float
    mean: float  # of the scores of the resamples
    half_width: float
    signature: str
    # BLEU's tokens of the translations by tokens of the references: below 1, BLEU is
    # multiplied by the brevity penalty, exp(1 - 1 / length_ratio). None for chrF.
    length_ratio: float | None


class Comparison(NamedTuple):
    """How a system's score differs from the first one's, and whether by chance.

    A p-value is the probability of a difference at least as large if both systems are
    equally good; 1 where there is no difference.
    """

    difference: float  # the system's score less the first one's
    bootstrap_p: float
    bootstrap_signature: str
    randomisation_p: float
    randomisation_signature: str


def estimate_confidence(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> dict[str, Confidence]:
    """Return BLEU and chrF, cased, with bootstrap intervals; keys as METRICS.

    Raises InputError if the counts differ or there is nothing to score.
    """
    metrics.require_pairs(hypotheses, references)
    found = {}
    for name, metric in _metrics(target_language).items():
        score = metric.corpus_score(
            hypotheses, [references], n_bootstrap=_samples(RESAMPLES, references)
        )
        ratio = score.sys_len / max(score.ref_len, 1) if name == "bleu" else None
        signature = str(metric.get_signature())
        interval = float(score._mean), float(score._ci)
        found[name] = Confidence(score.score, *interval, signature, ratio)
    return found


def compare_systems(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    target_language: str,
) -> list[dict[str, Comparison]]:
    """Test each further system against the first one, by BLEU and by chrF.

    Paired bootstrap resampling and paired approximate randomisation. Raises InputError
    if the counts differ or there is nothing to score.
    """
    for hypotheses in systems:
        metrics.require_pairs(hypotheses, references)
    compared: list[dict[str, Comparison]] = [{} for _ in systems[1:]]
    tests = []
    for kind, samples in (("bs", RESAMPLES), ("ar", TRIALS)):
        test = PairedTest(
            [(str(number), list(system)) for number, system in enumerate(systems)],
            _metrics(target_language),
            [list(references)],
            test_type=kind,
            n_samples=_samples(samples, references),
        )
        signatures, results = test()
        # sacreBLEU renames the metrics, such as to "chrF2", and keeps their order.
        tests.append([(results[name], str(signatures[name])) for name in signatures])
    for metric, bootstrap, randomisation in zip(METRICS, *tests, strict=True):
        first, *others = bootstrap[0]
        for at, other in enumerate(others, start=1):
            difference = other.score - first.score
            # sacreBLEU counts larger differences only: p is near 0 where there is none.
            values = [
                value
                for results, signature in (bootstrap, randomisation)
                for value in (results[at].p_value if difference else 1.0, signature)
            ]
            compared[at - 1][metric] = Comparison(difference, *values)
    return compared


def sentence_scores(
    hypotheses: Sequence[str], references: Sequence[str]
) -> list[float]:
    """Return the chrF of each sentence, 0 to 100.

    BLEU would be 0 for most sentences without a common sequence of four words. Raises
    InputError if the counts differ.
    """
    metrics.require_pairs(hypotheses, references)
    chrf = CHRF()
    return [
        float(chrf.sentence_score(hypothesis, [reference]).score)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]


def _metrics(target_language: str) -> dict[str, Metric]:
    """New metrics: each keeps what its signature says of its last use."""
    tokenizer = metrics.tokenizer_for(target_language)
    return {"bleu": metrics.make_bleu(tokenizer, lowercase=False), "chrf": CHRF()}


def _samples(wanted: int, references: Sequence[str]) -> int:
    """As many resamples of a text as fit into memory, at least a tenth."""
    share = min(1, MAX_SENTENCES / len(references))
    return max(wanted // 10, int(wanted * share))
