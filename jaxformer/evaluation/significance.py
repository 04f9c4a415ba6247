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
from sacrebleu.significance import PairedTest, Result

from jaxformer.evaluation import metrics

RESAMPLES = 1000  # of the bootstrap, as sacreBLEU's own default
TRIALS = 10_000  # of approximate randomisation, likewise
MAX_SENTENCES = 10_000  # of a text with all samples
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
    bleu = _metrics(target_language)["bleu"].corpus_score(hypotheses, [references])
    ratios = {"bleu": bleu.sys_len / max(bleu.ref_len, 1), "chrf": None}
    return {
        name: Confidence(
            *map(float, (first.score, first.mean, first.ci)), signature, ratios[name]
        )
        for name, ((first, *_), signature) in _paired_test(
            "bs", RESAMPLES, [hypotheses], references, target_language
        ).items()
    }


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
    bootstrap, randomisation = (
        _paired_test(kind, samples, systems, references, target_language)
        for kind, samples in (("bs", RESAMPLES), ("ar", TRIALS))
    )
    compared: list[dict[str, Comparison]] = [{} for _ in systems[1:]]
    for metric in METRICS:
        first, *others = bootstrap[metric][0]
        for at, other in enumerate(others, start=1):
            difference = other.score - first.score
            # sacreBLEU counts larger differences only: p is near 0 where there is none.
            values = [
                value
                for results, signature in (bootstrap[metric], randomisation[metric])
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


def _paired_test(
    kind: str,
    samples: int,
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    target_language: str,
) -> dict[str, tuple[list[Result], str]]:
    """Results of all systems and the signature, by metric; the first has no p-value.

    A long text has fewer samples, at least a tenth, so that all fit into memory.
    """
    share = min(1, MAX_SENTENCES / len(references))
    test = PairedTest(
        [(str(number), list(system)) for number, system in enumerate(systems)],
        _metrics(target_language),
        [list(references)],
        test_type=kind,
        n_samples=max(samples // 10, int(samples * share)),
    )
    signatures, results = test()
    # sacreBLEU renames the metrics, such as to "chrF2", and keeps their order.
    return {
        metric: (results[name], str(signatures[name]))
        for metric, name in zip(METRICS, signatures, strict=True)
    }
