"""jaxformer evaluate: score a model's translations of a text, or --hypotheses."""

import logging
from collections.abc import Sequence
from pathlib import Path

from jaxformer.commands.flags import paths
from jaxformer.decoding.options import ModelChoice, TranslateOptions, TranslateRequest
from jaxformer.decoding.parts import split_tag
from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.comet_scores import Comet, mean_comet
from jaxformer.evaluation.evaluator import Evaluation, Evaluator, tokenize_pairs
from jaxformer.evaluation.of_files import evaluate_files
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.open import open_comet, open_translator
from jaxformer.runs.run import Run, open_run
from jaxformer.runs.texts import files_of_split, read_text, require_text_output
from jaxformer.system.errors import InputError
from jaxformer.system.first import write_file
from jaxformer.text.sources import Text

logger = logging.getLogger(__name__)


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    output: Path | None,
    source: Path | None,
    reference: Path | None,
    split: str,
    hypotheses: Sequence[Path],
    source_language: str | None,
    target_language: str | None,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Return BLEU, chrF, NLL and perplexity; `output` gets a translation per line.

    Ensembles and exports have neither NLL nor perplexity. A COMET checkpoint adds its
    score.
    """
    languages = {"source_language": source_language, "target_language": target_language}
    of_run = {
        **{"workdir": workdir, "config": config.values or config.overrides},
        **{"output": output, "split": None if split == "test" else split},
        **{**vars(models), "comet": None, **options.given},
    }
    for name, value in (of_run if hypotheses else languages).items():
        if value not in (None, ()):
            hint = "--hypotheses needs no run" if hypotheses else "a run has its own"
            raise InputError(f"--{name} has no use here: {hint}; leave it out")
    if hypotheses:
        files = hypotheses, paths(str(reference or "")), source
        return evaluate_files(*files, languages, models.comet)
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
    tag_of = this.tokenizer.language_code
    sources = [split_tag(source, tag_of)[1] for source in text.sources]
    result = {**done.reported(), "sentences": len(text.sources)}
    return result | mean_comet(metric, sources, done.translations, text.references)


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
