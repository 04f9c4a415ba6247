"""How far scores can be trusted: intervals, tests of two systems, scores of a sentence.

All statistics are sacreBLEU's own, with its fixed seed (12345, or SACREBLEU_SEED), and
each comes with the signature that names samples and seed. They speak of one set of
translations of one text: another seed of training moves scores, too, and no test of
this kind sees that. Used by `jaxformer.reports`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from jaxformer.evaluation import metrics

RESAMPLES = 1000  # of the bootstrap, as sacreBLEU's own default
TRIALS = 10_000  # of approximate randomisation, likewise
# All resamples of a text are in memory at once: fewer of a text longer than this.
LONGEST_WITH_ALL = 10_000  # sentences
METRICS = ("bleu", "chrf")


class Confidence(NamedTuple):
    """A corpus score, 0 to 100, and its 95 % interval: mean - or + half_width."""

    score: float
    mean: float  # of the scores of the resamples
    half_width: float
    signature: str


class Comparison(NamedTuple):
    """How a system's score differs from the first one's, and whether by chance.

    A p-value is how often a difference so large comes by chance alone, if both systems
    are equally good; 1 where there is none.
    """

    difference: float  # the system's score less the first one's
    bootstrap_p: float
    bootstrap_signature: str
    randomisation_p: float
    randomisation_signature: str


def estimate_confidence(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> dict[str, Confidence]:
    """BLEU and chrF, cased, with bootstrap intervals; keys as METRICS.

    Raises InputError if the counts differ or there is nothing to score.
    """
    metrics.require_pairs(hypotheses, references)
    found = {}
    for name, metric in _metrics(target_language).items():
        score = metric.corpus_score(
            hypotheses, [references], n_bootstrap=_fitting(RESAMPLES, len(references))
        )
        found[name] = Confidence(
            score.score,
            float(score._mean),
            float(score._ci),
            str(metric.get_signature()),
        )
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
    by_bootstrap, by_randomisation = (
        _paired_test(
            systems,
            references,
            kind=kind,
            samples=_fitting(samples, len(references)),
            target_language=target_language,
        )
        for kind, samples in (("bs", RESAMPLES), ("ar", TRIALS))
    )
    return [
        {
            name: _comparison(place, by_bootstrap[name], by_randomisation[name])
            for name in METRICS
        }
        for place in range(1, len(systems))
    ]


def sentence_scores(
    hypotheses: Sequence[str], references: Sequence[str]
) -> list[float]:
    """Score each sentence by chrF, 0 to 100.

    Not by BLEU, which is 0 for most sentences without a common sequence of four words
    and was made for whole texts. Raises InputError if the counts differ.
    """
    metrics.require_pairs(hypotheses, references)
    chrf = CHRF()
    return [
        float(chrf.sentence_score(hypothesis, [reference]).score)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]


def length_ratio(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> float:
    """BLEU's own ratio: tokens of the translations by tokens of the references.

    Below 1 BLEU is multiplied by the brevity penalty, exp(1 - 1 / ratio).
    """
    metrics.require_pairs(hypotheses, references)
    score = _metrics(target_language)["bleu"].corpus_score(hypotheses, [references])
    return score.sys_len / max(score.ref_len, 1)


def _metrics(target_language: str) -> dict[str, Metric]:
    """New ones: each holds what its signature says of the last use."""
    tokenizer = metrics.tokenizer_for(target_language)
    bleu: BLEU = metrics.make_bleu(tokenizer, lowercase=False)
    return {"bleu": bleu, "chrf": CHRF()}


def _comparison(
    place: int, bootstrap: tuple[list, str], randomisation: tuple[list, str]
) -> Comparison:
    """Of the system at `place` with the first one."""
    difference = bootstrap[0][place].score - bootstrap[0][0].score
    p_values = [
        # sacreBLEU counts larger differences only: p near 0 where there is none.
        results[place].p_value if difference else 1.0
        for results, _ in (bootstrap, randomisation)
    ]
    return Comparison(
        difference, p_values[0], bootstrap[1], p_values[1], randomisation[1]
    )


def _paired_test(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    kind: str,
    samples: int,
    target_language: str,
) -> dict[str, tuple[list, str]]:
    """Results of all systems and the signature, by metric."""
    test = PairedTest(
        [(str(number), list(system)) for number, system in enumerate(systems)],
        _metrics(target_language),
        [list(references)],
        test_type=kind,
        n_samples=samples,
    )
    signatures, results = test()
    # sacreBLEU names the metrics anew, such as "chrF2", and keeps their order.
    return {
        ours: (results[theirs], str(signatures[theirs]))
        for ours, theirs in zip(METRICS, signatures, strict=True)
    }


def _fitting(samples: int, sentences: int) -> int:
    return max(
        samples // 10, samples * LONGEST_WITH_ALL // max(sentences, LONGEST_WITH_ALL)
    )
