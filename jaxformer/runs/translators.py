"""How a run translates, and how its translations are scored."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxformer.config.data import DataConfig, base_language
from jaxformer.corpus.prepared import PreparedCorpus
from jaxformer.decoding.forced import TeacherForcing
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.rerank import Reranker, rerank
from jaxformer.decoding.side_by_side import number_of_searches
from jaxformer.decoding.translate import Translator
from jaxformer.evaluation.comet_scores import Comet
from jaxformer.evaluation.evaluator import Evaluator, Text, tokenize_pairs
from jaxformer.evaluation.metrics import sentence_metric
from jaxformer.evaluation.minimum_bayes_risk import by_utility
from jaxformer.runs.config_files import RECORDED, ConfigRequest
from jaxformer.runs.run import Run, keep_compiled, load_parameters, open_run
from jaxformer.runs.texts import of_tag
from jaxformer.system.errors import InputError
from jaxformer.training.sharding import batch_sharding, local_mesh
from jaxformer.training.step import Parameters


def make_translator(
    run: Run,
    params: Parameters,
    *,
    members: Sequence[tuple[Run, Parameters]] = (),
    rerankers: Sequence[Reranker] = (),
    comet: Comet | None = None,
    kind: type[Translator] = Translator,
    **options: Any,
) -> Translator:
    """Make a translator of parameters on the local devices.

    `options` are those of TranslateOptions, by default the values of the config's
    section `decoding` and of `data.max_length`. `members` complete an ensemble, and
    `rerankers` choose among its hypotheses. `comet` is for minimum_bayes_risk=comet.
    Raises InputError if members have other tokenisers, and for options that no search
    has.
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
    how = {"language_code": run.tokenizer.language_code}
    if utility != "none":
        metric = comet
        if utility != "comet":
            metric = sentence_metric(utility, run.config.data.target_language)
        elif comet is None:
            raise InputError(
                "minimum_bayes_risk=comet needs a COMET checkpoint; translate and "
                "evaluate take --comet=FILE"
            )
        choose = partial(by_utility, utility=metric, **how)
    if rerankers:
        if choose is not None:
            raise InputError("use either rerank or minimum_bayes_risk")
        if options.beam_size == 1:
            raise InputError(
                "rerank chooses among beam_size hypotheses; set beam_size above 1"
            )
        choose = partial(rerank, models=rerankers, options=options, **how)
    rows = batch_sharding(local_mesh())
    return kind(
        [run.model, *(member.model for member, _ in members)],
        [params, *(theirs for _, theirs in members)],
        run.tokenizer,
        language=run.config.data.source_language,
        options=options,
        rows=rows,
        searches=number_of_searches(rows.mesh) if kind is Translator else 1,
        choose=choose,
        needs_tag=run.needs_tag,
    )


def make_evaluator(
    run: Run,
    text: Text,
    **options: Any,
) -> Evaluator:
    """Make the evaluator of a text with the model of a run.

    `options` are the keyword arguments of `make_translator`.
    """
    return Evaluator(
        run.model,
        run.config,
        text,
        tokenize_pairs(run.tokenizer, text),
        lambda params: make_translator(run, params, **options),
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
    run: Run, folders: Sequence[Path], checkpoint: str | None, dtype: str | None
) -> list[tuple[Run, Parameters]]:
    """Open the further models of an ensemble; `dtype` is as for `open_run`.

    Raises InputError if a model does not translate in the run's direction.
    """
    found, own = [], _tags(run)
    for folder in folders:
        member = open_run(folder, dtype=dtype)
        theirs = _tags(member)
        # One tag may be that of several directions.
        tags = set.union(*own.values()) & set.union(*theirs.values()) - {""}
        if not (own.keys() & theirs.keys() or tags):
            raise InputError(
                f"{folder} translates {_names(theirs)} and not {_names(own)}; the "
                "models of an ensemble have one direction"
            )
        found.append((member, load_parameters(member, checkpoint)))
    return found


def open_rerankers(
    run: Run,
    folders: Sequence[Path],
    weights: Sequence[float] = (),
    dtype: str | None = None,
) -> list[Reranker]:
    """Open further models that rerank the hypotheses of a run.

    A model of the run's direction scores the translation, and one of the opposite
    direction the source. `weights` are one for each or one for all, by default 1.
    Raises InputError for any other direction, and for a folder named twice.
    """
    if weights and not folders:
        raise InputError("rerank_weights is for rerank; give both")
    weights = [float(weight) for weight in weights] or [1.0]
    weights = weights * len(folders) if len(weights) == 1 else weights
    if len(weights) != len(folders) or not all(map(math.isfinite, weights)):
        raise InputError(
            f"rerank_weights has {', '.join(map(str, weights))} for {len(folders)} "
            "models of rerank; give a finite weight for each, or one for all"
        )
    rows, seen, found = batch_sharding(local_mesh()), {run.workdir.path.resolve()}, []
    for folder, weight in zip(folders, weights, strict=True):
        this = open_run(folder, dtype=dtype)
        if this.workdir.path.resolve() in seen:
            raise InputError(
                f"rerank names {folder} twice, or it is the workdir; give each model "
                "once"
            )
        seen.add(this.workdir.path.resolve())
        is_reverse, tag = _direction(run, this)
        batch_tokens = this.config.decoding.batch_tokens
        forcing = TeacherForcing(
            this.model, this.tokenizer, batch_tokens=batch_tokens, rows=rows
        )
        params = load_parameters(this, None)
        found.append(
            Reranker(
                str(folder), forcing, params, this.tokenizer, weight, is_reverse, tag
            )
        )
    return found


def _direction(run: Run, other: Run) -> tuple[bool, str]:
    """Whether another run translates in the opposite direction; its tag for that."""
    wanted, tags = _languages(run.config.data), _tags(other)
    for is_reverse, direction in ((False, wanted), (True, wanted[::-1])):
        if "" in tags[direction]:  # others mark text that was made
            return is_reverse, ""
        if len(tags[direction]) == 1:
            return is_reverse, tags[direction].pop()
        if several := ", ".join(sorted(tags[direction])):
            raise InputError(
                f"{other.workdir.path} has the tags {several} for "
                f"{'-'.join(direction)}, and reranking takes one; use another run"
            )
    raise InputError(
        f"{other.workdir.path} translates {_names(tags)} and cannot rerank "
        f"translations of {'-'.join(wanted)}; give a run of {'-'.join(wanted)} or of "
        f"{'-'.join(wanted[::-1])}"
    )


def _languages(data: DataConfig) -> tuple[str, str]:
    return base_language(data.source_language), base_language(data.target_language)


def _tags(run: Run) -> dict[tuple[str, str], set[str]]:
    """The tags of a run's corpora by source and target language."""
    tags = defaultdict(set)
    for part in run.config.data.parts.values():
        tags[_languages(part.data)].add(part.data.tag)
    return tags


def _names(tags: Mapping[tuple[str, str], set[str]]) -> str:
    return ", ".join("-".join(direction) for direction in tags if tags[direction])


def open_translator(
    workdir: Path,
    request: ConfigRequest = RECORDED,
    *,
    checkpoint: str | None = None,
    comet: str | Path | None = None,
    comet_python: str | Path | None = None,
    dtype: str | None = None,
    **options: Any,
) -> tuple[Run, Translator]:
    """Open a run, and a translator with its parameters on the local devices.

    With the option `tag` the run is restricted to the first corpus that has it. `dtype`
    is as for `open_run`. `comet` is the checkpoint for minimum_bayes_risk=comet, and
    `comet_python` the Python that loads it. `checkpoint` and other `options` are as for
    `open_models`. Raises InputError.
    """
    if comet is None and comet_python is not None:
        raise InputError(f"comet_python={comet_python} is for comet; give both")
    if comet is not None:
        if options.get("minimum_bayes_risk") != "comet":
            raise InputError("comet is for minimum_bayes_risk=comet; give both")
        options["comet"] = Comet(Path(comet), comet_python)
    keep_compiled()
    run = of_tag(open_run(workdir, request, dtype), options.get("tag", ""))
    params, options = open_models(run, checkpoint, dtype=dtype, **options)
    return run, make_translator(run, params, **options)


def open_models(
    run: Run,
    checkpoint: str | None = None,
    *,
    ensemble: Sequence[Path] = (),
    rerank: Sequence[Path] = (),
    rerank_weights: Sequence[float] = (),
    dtype: str | None = None,
    **options: Any,
) -> tuple[Parameters, dict[str, Any]]:
    """Load the parameters of a run, and the models beside it for `make_translator`.

    `checkpoint` is as for `read_parameters`, also of an `ensemble`. `ensemble` and
    `rerank` are workdirs of further models; those of `rerank` have the checkpoint that
    their config asks for. `dtype` is as for `open_run`, for each of them. `options` are
    those of `make_translator`.
    """
    rerankers = open_rerankers(run, rerank, rerank_weights, dtype)
    members = open_members(run, ensemble, checkpoint, dtype)
    params = load_parameters(run, checkpoint)
    return params, {"members": members, "rerankers": rerankers, **options}
