"""How a run translates, and how its translations are scored."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxformer.config_files import RECORDED, ConfigRequest
from jaxformer.data.corpus import PreparedCorpus
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.translate import Translator
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluator import Evaluator, Text, tokenize_pairs
from jaxformer.evaluation.minimum_bayes_risk import by_utility
from jaxformer.run import Run, keep_compiled, load_parameters, open_run
from jaxformer.training.sharding import batch_sharding, local_mesh
from jaxformer.training.step import Parameters


def make_translator(
    run: Run,
    params: Parameters,
    *,
    members: Sequence[tuple[Run, Parameters]] = (),
    kind: type[Translator] = Translator,
    **options: Any,
) -> Translator:
    """Make a translator of parameters on the local devices.

    `options` are those of TranslateOptions, by default the values of the config's
    section `decoding` and of `data.max_length`. `members` complete an ensemble. Raises
    InputError if they have other tokenisers, and for options that no search has.
    """
    for member, _ in members:
        if member.tokenizer.hash != run.tokenizer.hash:
            raise InputError(
                f"{member.workdir.path} has another tokeniser than {run.workdir.path}; "
                "the models of an ensemble share one"
            )
    limit = {"max_source_length": run.config.data.max_length}
    options = {"tag": run.config.data.only_tag, **limit, **options}
    options = TranslateOptions(**{**vars(run.config.decoding), **options})
    choose, utility = None, options.minimum_bayes_risk
    if utility != "none":
        target = run.config.data.target_language
        choose = partial(by_utility, utility=utility, target_language=target)
    return kind(
        [run.model, *(member.model for member, _ in members)],
        [params, *(theirs for _, theirs in members)],
        run.tokenizer,
        language=run.config.data.source_language,
        options=options,
        rows=batch_sharding(local_mesh()),
        choose=choose,
        needs_tag=run.needs_tag,
    )


def make_evaluator(
    run: Run,
    text: Text,
    *,
    members: Sequence[tuple[Run, Parameters]] = (),
    **options: Any,
) -> Evaluator:
    """Make the evaluator of a text with the model of a run.

    The rest is as for `make_translator`.
    """
    return Evaluator(
        run.model,
        run.config,
        text,
        tokenize_pairs(run.tokenizer, text),
        lambda params: make_translator(run, params, members=members, **options),
    )


def make_dev_evaluators(
    run: Run, prepared: PreparedCorpus, check_stop: Callable[[], None]
) -> dict[str, Evaluator]:
    """Make the evaluators of the validation texts by name; they share a translator."""
    evaluators: dict[str, Evaluator] = {}

    def translator(params: Parameters) -> Translator:
        made = (each.translator for each in evaluators.values() if each.translator)
        return next(made, None) or make_translator(run, params)

    for name, dev in prepared.dev.items():
        config = dataclasses.replace(run.config, data=run.config.data.dev_texts[name])
        text = Text(dev.source, dev.target)
        evaluators[name] = Evaluator(
            run.model, config, text, dev.pairs, translator, check_stop
        )
    return evaluators


def open_members(
    folders: Sequence[Path], checkpoint: str | None
) -> list[tuple[Run, Parameters]]:
    """Open the further models of an ensemble."""
    return [(run, load_parameters(run, checkpoint)) for run in map(open_run, folders)]


def open_translator(
    workdir: Path,
    request: ConfigRequest = RECORDED,
    *,
    checkpoint: str | None = None,
    ensemble: Sequence[Path] = (),
    **options: Any,
) -> tuple[Run, Translator]:
    """Open a run, and a translator with its parameters on the local devices.

    `checkpoint` is as for `read_parameters`, `ensemble` are workdirs of further models,
    and `options` are as for `make_translator`. Raises InputError.
    """
    keep_compiled()
    run = open_run(workdir, request)
    params = load_parameters(run, checkpoint)
    members = open_members(ensemble, checkpoint)
    return run, make_translator(run, params, members=members, **options)
