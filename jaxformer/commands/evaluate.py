"""jaxformer evaluate: translate a text with a trained model and score it."""

import logging
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer.decoding.options import ModelChoice, TranslateOptions, TranslateRequest
from jaxformer.decoding.parts import split_tag
from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.comet_scores import Comet
from jaxformer.evaluation.evaluator import Evaluation, Evaluator, tokenize_pairs
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.open import open_comet, open_translator
from jaxformer.runs.run import Run, open_run
from jaxformer.runs.texts import files_of_split, read_text, require_text_output
from jaxformer.system.first import once, write_file
from jaxformer.text.sources import Text

logger = logging.getLogger(__name__)

REPORTED = ("bleu", "signature", "bleu_lc_tok", "chrf", "nll", "ppl", "direction")


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    output: Path | None,
    source: Path | None,
    reference: Path | None,
    split: str,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Return BLEU, chrF, NLL and perplexity; `output` gets a translation per line.

    Ensembles and exports have neither NLL nor perplexity. A COMET checkpoint adds its
    score.
    """
    require_text_output(output, [source, reference])
    whole = open_run(workdir, config, models.dtype)
    this, text = read_text(whole, source, reference, split, options)
    if source is None:
        require_text_output(output, files_of_split(whole, split))
    found = options.resolve(this.config)
    metric = open_comet(models)
    done, _ = evaluate(this, text, models, found, metric)
    if output is not None:
        write_file(output, "".join(f"{line}\n" for line in done.translations))
    return {
        **{key: done.scores[key] for key in REPORTED},
        "every_bleu": [each._asdict() for each in done.every_bleu],
        "sentences": len(text.sources),
        **(comet_score(this, text, done.translations, metric) if models.comet else {}),
    }


def comet_score(
    run: Run, text: Text, translations: Sequence[str], metric: Comet
) -> dict[str, Any]:
    """Return the mean of COMET's scores, and how it was computed."""
    tag_of = run.tokenizer.language_code
    sources = [split_tag(source, tag_of)[1] for source in text.sources]
    triples = [*zip(sources, translations, text.references, strict=True)]
    mean = once(lambda: statistics.fmean(metric(triples)))
    logger.info("COMET %.4f (%s)", mean, metric.signature)
    return {"comet": mean, "comet_signature": metric.signature}


def evaluate(
    run: Run,
    text: Text,
    models: ModelChoice,
    options: TranslateOptions,
    comet: Comet | None = None,
) -> tuple[Evaluation, Translator]:
    """Translate and score a text under every scorer; log the scores.

    `comet` is as for `open_choice`.
    """
    translator = open_translator(run, models, options, comet)
    pairs = tokenize_pairs(translator.tokenizer, text)
    is_tagged = bool(translator.tokenizer.target_start)
    evaluator = Evaluator(
        run.model, run.config, text, pairs, lambda _: translator, is_tagged=is_tagged
    )
    params = translator.params[0] if len(translator.params) == 1 else None
    done = evaluator(params, under_all=True)
    logger.info("%s", done)
    return done, translator
