"""A trained run from Python; docs/api.md has examples."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.decoding import translator as decoding
from jaxformer.decoding.options import (
    CometModel,
    HypothesisChoice,
    ModelChoice,
    TranslateRequest,
)
from jaxformer.runs.open import open_translator, open_utility
from jaxformer.runs.run import open_run
from jaxformer.runs.texts import of_tag
from jaxformer.system.errors import InputError

if TYPE_CHECKING:
    from jaxformer.reports.attention import AttentionView


def Translator(
    workdir: str | Path,
    *,
    checkpoint: str | None = None,
    ensemble: Sequence[str | Path] = (),
    choose: str | None = None,
    comet: str | Path | None = None,
    comet_python: str | Path | None = None,
    dtype: str | None = None,
    **options: object,
) -> decoding.Translator:
    """Open the run in `workdir` for translation.

    `checkpoint` is a step, "latest", "best" or "average:N"; `ensemble` names workdirs
    of further models, whose probabilities are averaged with this one's. `choose` takes
    one of the hypotheses: "bleu", "chrf" or "comet" by minimum Bayes risk, or
    "WORKDIR,WORKDIR:WEIGHT" by models of the same or the opposite direction. `comet`
    and `comet_python` are the checkpoint of choose="comet" and the Python that loads
    it. `dtype` is the type of the factors of products, "float32", "bfloat16" or
    "auto", the fastest here. Other `options` are those of
    `jaxformer.decoding.options.TranslateOptions`, such as beam_size or n_best. The
    sentences and lines of a text are translated one by one, unless the option
    `split_sentences` is False. Raises InputError for a run that cannot be opened,
    TypeError for an unknown option, or one folder where a list is needed.
    """
    if isinstance(ensemble, str | Path):
        raise TypeError(f"ensemble is one folder, {ensemble}; give a list")
    model = comet and CometModel(Path(comet), comet_python and Path(comet_python))
    models = ModelChoice(
        checkpoint=checkpoint,
        ensemble=tuple(map(Path, ensemble)),
        choose=HypothesisChoice.of(choose) if choose else None,
        comet=model,
        dtype=dtype,
    )
    request = TranslateRequest(options)
    run = of_tag(open_run(Path(workdir), dtype=dtype), request.tag)
    found = request.resolve(run.config, split_sentences=True)
    return open_translator(run, models, found, open_utility(models))


def attention_view(
    translator: decoding.Translator,
    sources: str | Sequence[str],
    targets: str | Sequence[str] | None = None,
) -> "AttentionView":
    """Return the attention of each head as charts, pictures and a page.

    Sentences without `targets` are translated first; a translator opened with n_best=4
    shows four hypotheses of each. Raises InputError if jaxformer[report] is not
    installed, and for no, too many or too long sentences.
    """
    from jaxformer.reports.attention import AttentionView
    from jaxformer.reports.attention_data import attend

    sources = [sources] if isinstance(sources, str) else list(sources)
    if targets is not None:
        targets = [targets] if isinstance(targets, str) else list(targets)
        if len(targets) != len(sources):
            raise InputError(
                f"there are {len(sources)} sentences and {len(targets)} translations; "
                "give one translation for each sentence"
            )
    return AttentionView(attend(translator, sources, targets))
