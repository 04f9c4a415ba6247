"""--mode=evaluate: translate a text with a trained model and score it."""

import dataclasses
import logging
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer import processes
from jaxformer.config_files import ConfigRequest
from jaxformer.data.corpus import open_prepared, read_split
from jaxformer.data.text import read_lines
from jaxformer.decoding.translate import Translator
from jaxformer.errors import InputError, did_you_mean
from jaxformer.evaluation.comet_scores import Comet
from jaxformer.evaluation.evaluator import Evaluation, Text
from jaxformer.files import require_output, write_atomically
from jaxformer.run import Run, keep_compiled, open_run
from jaxformer.translators import make_evaluator, open_models

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
    comet: Path | None,
    comet_python: Path | None,
    **options: Any,
) -> dict:
    """Return BLEU, chrF, NLL and perplexity; `output` gets a translation per line.

    A COMET checkpoint adds its score.
    """
    require_output(output)
    metric = comet and Comet(comet, comet_python)
    this = open_run(workdir, config)
    text = read_text(this, source, reference, split, options.get("tag", ""))
    done, _ = evaluate(of_corpus(this, split), text, comet=metric, **options)
    if output is not None and processes.is_first():
        write_atomically(output, "".join(f"{line}\n" for line in done.translations))
    return {
        **{key: done.scores[key] for key in REPORTED},
        "every_bleu": [each._asdict() for each in done.every_bleu],
        "sentences": len(text.sources),
        **comet_score(this, text, done.translations, metric),
    }


def comet_score(
    run: Run, text: Text, translations: Sequence[str], metric: Comet | None
) -> dict[str, Any]:
    """Return the mean of COMET's scores, and how it was computed; log it."""
    if metric is None:
        return {}
    tag_of, found = run.tokenizer.language_code, 0.0
    sources = [source.removeprefix(tag_of(source)).strip() for source in text.sources]
    with processes.sharing_mistakes():
        if processes.is_first():
            triples = zip(sources, translations, text.references, strict=True)
            found = statistics.fmean(metric(list(triples)))
    logger.info("COMET %.4f (%s)", found, metric.signature)
    return {"comet": found, "comet_signature": metric.signature}


def evaluate(
    run: Run,
    text: Text,
    **options: Any,
) -> tuple[Evaluation, Translator]:
    """Translate and score a text under every scorer; log the scores.

    `options` are as for `open_models`.
    """
    keep_compiled()
    params, options = open_models(run, **options)
    evaluator = make_evaluator(run, text, **options)
    done = evaluator(params, under_all=True)
    logger.info("%s", done)
    return done, evaluator.translator


def corpus_name(run: Run, split: str) -> str:
    """Return NAME of NAME/SPLIT, else that of the first corpus. Raises InputError."""
    name, slash, _ = split.rpartition("/")
    parts = run.config.data.parts
    if slash and name not in parts:
        hint = did_you_mean(name, parts, f"it has {', '.join(filter(None, parts))}")
        raise InputError(f"data.corpora has no corpus {name}{hint}")
    return name if slash else next(iter(parts))


def of_corpus(run: Run, split: str) -> Run:
    """Return the run restricted to the languages and text of one corpus."""
    data = run.config.data.parts[corpus_name(run, split)].data
    return run._replace(config=dataclasses.replace(run.config, data=data))


def with_tag(run: Run, sentences: Sequence[str], tag: str) -> list[str]:
    """Begin sentences that have no tag with `tag`, by default that of the run's text.

    Raises InputError if it is not in the vocabulary.
    """
    tag, tag_of = tag or run.config.data.only_tag, run.tokenizer.language_code
    if tag_of(tag) != tag:
        raise InputError(f"the vocabulary has no tag {tag!r}")
    return [
        f"{tag} {each}" if tag and each.strip() and not tag_of(each) else each
        for each in sentences
    ]


def read_text(
    run: Run, source: Path | None, reference: Path | None, split: str, tag: str = ""
) -> Text:
    """Read sentences and references of two files, or of a split of the run's data.

    Sources of a file without a tag get `tag`, or that of the run's text.
    NAME/SPLIT is a split of the corpus NAME, others are of the first corpus. Raises
    InputError if only one file is given, or their lines do not match.
    """
    if (source is None) != (reference is None):
        raise InputError("--source and --reference go together: give both, or neither")
    if source is None:
        name, split = corpus_name(run, split), split.rpartition("/")[2]
        texts = open_prepared(run.workdir.path).dev if split == "dev" else {}
        if name in texts:
            return Text(texts[name].source, texts[name].target)
        return Text(*read_split(run.config.data.parts[name].data, split))
    sources = with_tag(run, list(read_lines(source)), tag)
    text = Text(sources, list(read_lines(reference)))
    if len(text.sources) != len(text.references):
        raise InputError(
            f"{source} has {len(text.sources)} lines and {reference} has "
            f"{len(text.references)}; line N of one must translate line N of the other"
        )
    return text
