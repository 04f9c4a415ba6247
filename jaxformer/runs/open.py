"""Open the models with which a run translates, and by which it is scored."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

import jax

from jaxformer.config.data import DataConfig
from jaxformer.config.languages import base_language
from jaxformer.decoding.forced import TeacherForcing
from jaxformer.decoding.glossary import Glossary
from jaxformer.decoding.options import HypothesisChoice, ModelChoice, TranslateOptions
from jaxformer.decoding.parts import Choose
from jaxformer.decoding.rerank import Reranker, rerank
from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.comet_scores import Comet
from jaxformer.evaluation.minimum_bayes_risk import by_utility
from jaxformer.models.sequence_model import Parameters
from jaxformer.runs.run import Run, keep_compiled, load_parameters, open_run
from jaxformer.system.cores import usable_cores
from jaxformer.system.errors import InputError
from jaxformer.system.files import file_name
from jaxformer.text.lines import read_lines
from jaxformer.training.sharding import batch_sharding, local_mesh


def open_translator(
    run: Run, models: ModelChoice, options: TranslateOptions, comet: Comet | None = None
) -> Translator:
    """Make a translator of a run on the local devices, with all models beside it.

    Raises InputError for models and a glossary that cannot be used, and if the options
    need other models.
    """
    keep_compiled()
    choose = open_choice(run, models, options, comet)
    if run.export is not None:
        for name in ("checkpoint", "ensemble", "dtype", "glossary"):
            if getattr(models, name):
                raise InputError(
                    f"{name} is for runs, and {run.export} is an export; leave {name} "
                    "out, or use the run that it was made from"
                )
        return make_translator(run, None, options, choose=choose)
    file = models.glossary
    glossary = file and Glossary(read_lines(file), file_name(file))
    members = open_members(run, models, options.target_tag)
    params = load_parameters(run, models.checkpoint)
    return make_translator(
        run, params, options, members=members, choose=choose, glossary=glossary
    )


def make_translator(
    run: Run,
    params: Parameters,
    options: TranslateOptions,
    *,
    members: Sequence[tuple[Run, Parameters]] = (),
    choose: Choose | None = None,
    glossary: Glossary | None = None,
) -> Translator:
    """Make a translator of parameters on the local devices.

    An export has `params` None. `members` complete an ensemble. `choose` chooses among
    the hypotheses of a part. Raises InputError for options that do not fit the
    vocabulary or the glossary.
    """
    rows = batch_sharding(local_mesh())
    targets = run.config.data.target_tags
    if targets and not options.target_tag:
        raise InputError(
            f"this model translates to {', '.join(targets)}; choose one by target_tag"
        )
    return Translator(
        [run.model, *(member.model for member, _ in members)],
        [params, *(theirs for _, theirs in members)],
        run.tokenizer.for_target(options.target_tag),
        language=run.config.data.source_language,
        options=options,
        rows=rows,
        searches=number_of_searches(rows.mesh),
        choose=choose,
        needs_tag=run.needs_tag,
        glossary=glossary,
        export=run.export,
    )


def number_of_searches(mesh: jax.sharding.Mesh) -> int:
    """Return how many searches may run at once: 2 on the cores of a CPU, otherwise 1.

    Several processes may share the cores, so each of them has one search.
    """
    if mesh.size > 1 or mesh.devices.item().platform != "cpu":
        return 1
    return 2 if jax.process_count() == 1 and usable_cores() > 1 else 1


def open_choice(
    run: Run, models: ModelChoice, options: TranslateOptions, comet: Comet | None
) -> Choose | None:
    """Return what chooses among hypotheses: a utility, or models that rerank.

    None: the score of the search does. `comet` is the metric of the utility "comet".
    Raises InputError for models that cannot be used, and if the options need others.
    """
    choice, tag_of = models.choose, run.tokenizer.language_code
    if choice is None:
        return None
    if choice.utility:
        if not options.is_sampling:
            raise InputError(
                f"choose={choice} chooses among samples; set a temperature"
            )
        metric = comet
        if choice.utility != "comet":
            from jaxformer.evaluation.metrics import sentence_metric  # sacreBLEU

            metric = sentence_metric(choice.utility, run.config.data.target_language)
        elif metric is None:
            raise InputError(
                "choose=comet needs a COMET checkpoint; translate and evaluate take "
                "--comet=FILE"
            )
        return partial(by_utility, utility=metric, language_code=tag_of)
    if options.beam_size == 1:
        raise InputError(
            "choose takes one of beam_size hypotheses; set beam_size above 1"
        )
    rerankers = open_rerankers(run, choice, models.dtype)
    return partial(rerank, models=rerankers, options=options, language_code=tag_of)


def open_comet(models: ModelChoice) -> Comet | None:
    """Start the process of a COMET model, if there is one. Raises InputError."""
    return models.comet and Comet(*models.comet)


def open_utility(models: ModelChoice) -> Comet | None:
    """Open a COMET model to choose among samples. Raises InputError if nothing does."""
    if models.comet and models.choose != HypothesisChoice("comet"):
        raise InputError("comet is for choose=comet; give both")
    return open_comet(models)


def open_members(
    run: Run, models: ModelChoice, target_tag: str
) -> list[tuple[Run, Parameters]]:
    """Open the further models of an ensemble.

    Their targets begin with `target_tag`, or if it is "", with what those of the run
    do. Raises InputError if a model does not translate in the run's direction, or has
    other tags or another tokeniser.
    """
    found, own = [], _tags(run)
    targets = {target_tag} if target_tag else _target_tags(run)
    for folder in models.ensemble:
        member = open_run(folder, dtype=models.dtype)
        theirs = _tags(member)
        # One tag may be that of several directions.
        tags = set.union(*own.values()) & set.union(*theirs.values()) - {""}
        both = own.keys() & theirs.keys()
        is_alike = tags or any(own[each] & theirs[each] for each in both)
        if both and not (is_alike and targets & _target_tags(member)):
            raise InputError(
                f"{folder} was trained with other tags than {run.workdir.path}, and "
                "the models of an ensemble get the same pieces; use another run"
            )
        if not (both or tags):
            raise InputError(
                f"{folder} translates {_names(theirs)} and not {_names(own)}; the "
                "models of an ensemble have one direction"
            )
        if member.tokenizer.hash != run.tokenizer.hash:
            raise InputError(
                f"{folder} has another tokeniser than {run.workdir.path}; the models "
                "of an ensemble share one"
            )
        found.append((member, load_parameters(member, models.checkpoint)))
    return found


def open_rerankers(
    run: Run, choice: HypothesisChoice, dtype: str | None
) -> list[Reranker]:
    """Open further models that rerank the hypotheses of a run.

    A model of the run's direction scores the translation, and one of the opposite
    direction the source. Each has the checkpoint that its config asks for. `dtype` is
    as for `open_run`. Raises InputError for any other direction, and for a folder named
    twice.
    """
    rows, seen, found = batch_sharding(local_mesh()), {run.workdir.path.resolve()}, []
    for folder, weight in choice.rerankers:
        this = open_run(folder, dtype=dtype)
        if this.workdir.path.resolve() in seen:
            raise InputError(
                f"choose names {folder} twice, or it is the run itself; give each "
                "model once"
            )
        seen.add(this.workdir.path.resolve())
        is_reverse, tag, target_tag = _direction(run, this)
        tokenizer = this.tokenizer.for_target(target_tag)
        batch_tokens = this.config.decoding.batch_tokens
        forcing = TeacherForcing(
            this.model, tokenizer, batch_tokens=batch_tokens, rows=rows
        )
        params = load_parameters(this, None)
        found.append(
            Reranker(str(folder), forcing, params, tokenizer, weight, is_reverse, tag)
        )
    return found


def _direction(run: Run, other: Run) -> tuple[bool, str, str]:
    """Whether another run translates in the opposite direction; its tags for that."""
    wanted, tags = _languages(run.config.data), _tags(other)
    for is_reverse, direction in ((False, wanted), (True, wanted[::-1])):
        targets = {
            part.data.target_tag
            for part in other.config.data.parts.values()
            if _languages(part.data) == direction
        }
        if len(targets) > 1:
            raise InputError(
                f"{other.workdir.path} has several target tags for "
                f"{'-'.join(direction)}, and reranking takes one; use another run"
            )
        if "" in tags[direction]:  # others mark text that was made
            return is_reverse, "", *targets
        if len(tags[direction]) == 1:
            return is_reverse, tags[direction].pop(), *targets
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


def _target_tags(run: Run) -> set[str]:
    return {part.data.target_tag for part in run.config.data.parts.values()}


def _names(tags: Mapping[tuple[str, str], set[str]]) -> str:
    return ", ".join("-".join(direction) for direction in tags if tags[direction])
