"""Translate and score the validation texts of a run that is trained."""

import logging
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from jaxformer.config.sections import BEST_BY
from jaxformer.models.sequence_model import parameter_hash
from jaxformer.runs.job import Job
from jaxformer.runs.run import load_parameters
from jaxformer.training import sharding
from jaxformer.training.log import MetricsLog
from jaxformer.training.step import Parameters

logger = logging.getLogger(__name__)

SAMPLES = 3  # translations logged at each evaluation


def validate(
    job: Job, step: int, params: Parameters, *, under_all: bool = False
) -> dict[str, Any]:
    """Translate and score the validation texts; log scores and a few samples.

    Returns the scores of the first text, and the hash of the parameters. Of several
    texts, the scores of all follow as NAME/SCORE, and their means as mean/SCORE.
    """
    with job.stop.stopping_at_once():  # an evaluated step is saved before
        params = sharding.copy_to(sharding.local_mesh(), params)
        found = {
            name: evaluate(params, under_all=under_all)
            for name, evaluate in job.evaluators.items()
        }
        for evaluate in job.evaluators.values():  # or updates would lack the memory
            evaluate.release()
    for name, done in found.items():
        which = f"validation {name}".rstrip()
        logger.info("step %s, %s: %s", f"{step:,}", which, done)
        _warn_of_explosion(job, step, done.scores["nll"])
        triples = list(zip(*job.evaluators[name].text, done.translations, strict=True))
        for index in range(0, len(triples), -(-len(triples) // SAMPLES)):
            logger.info(
                "sentence %s\n  source    %s\n  reference %s\n  output    %s",
                f"{index + 1:,}",
                *triples[index],
            )
    scores = {name: done.scores for name, done in found.items()}
    first, *others = scores.values()
    first = {**first, "parameters": parameter_hash(params)}
    if not others:
        return first
    mean = {
        key: statistics.mean(each[key] for each in scores.values()) for key in BEST_BY
    }
    several = {
        f"{name}/{key}": each[key]
        for name, each in {**scores, "mean": mean}.items()
        for key in BEST_BY
    }
    return {**first, **several}


def _warn_of_explosion(job: Job, step: int, nll: float) -> None:
    """Warn of a loss above that of a uniform guess, once the warm-up is over."""
    uniform = math.log(job.run.tokenizer.vocab_size)
    if nll > uniform and step >= job.run.config.optimizer.warmup_steps:
        logger.warning(
            "step %s: nll %.4g is worse than %.4g of a uniform guess; training has "
            "diverged: start anew in another run folder with a lower "
            "optimizer.peak_learning_rate or a longer optimizer.warmup_steps",
            f"{step:,}", nll, uniform,
        )  # fmt: skip


def evaluate_result(job: Job, log: MetricsLog, step: int) -> dict[str, Any]:
    """Score the parameters that `translate` uses, and record the scores."""
    params = load_parameters(job.run, None)
    scores = validate(job, step, params, under_all=True)
    log.record(step, "final", scores)
    first = next(iter(job.evaluators.values()))
    report_grammar(job, lambda text: first.translate(params, text))
    reported = ("loss", "nll", "ppl", "bleu", "signature", "direction")
    speed = {"tokens_per_second": round(log.tokens_per_second, 1)}
    several = [key for key in scores if "/" in key]
    return {key: scores[key] for key in (*reported, *several)} | speed


def report_grammar(job: Job, translate: Callable[[Sequence[str]], list[str]]) -> None:
    """Log the exact matches of the first corpus that is the built-in grammar, if any.

    The grammar itself says what is right from English to German.
    """
    wanted = "builtin:grammar", "en-de"
    for data in (part.data for part in job.run.config.data.parts.values()):
        if (data.corpus, data.direction) == wanted and data.test:
            from jaxformer.grammar.exact_matches import report_exact_matches

            pairs = data.pairs_of("test")
            report_exact_matches(translate, pairs=pairs, seed=data.seed, tag=data.tag)
            return
