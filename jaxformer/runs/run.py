"""A run: its config, tokeniser, model and parameters, and how it is trained.

The one way into a workdir, for every command, the Python API and the server.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from jaxformer.config.sections import Config
from jaxformer.corpus.mixture import Mixture, Weighted, make_mixture
from jaxformer.corpus.plan import Plan, Shape, make_plan
from jaxformer.corpus.prepared import PreparedCorpus
from jaxformer.decoding.fastest_dtype import fastest_dtype
from jaxformer.models.architectures import make_model
from jaxformer.models.sequence_model import Model, Parameters
from jaxformer.runs.agreement import require_one_folder, require_one_run
from jaxformer.runs.config_files import RECORDED, ConfigRequest, Record, folder_of
from jaxformer.runs.workdir import Workdir
from jaxformer.system.compiled_cache import open_cache
from jaxformer.system.errors import InputError, counted
from jaxformer.system.first import in_others, once
from jaxformer.system.progress import progress
from jaxformer.tokens import AnyTokenizer
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.checkpoint_files import RemovedError
from jaxformer.training.frozen import trainable
from jaxformer.training.log import read_scores
from jaxformer.training.sharding import copy_to, local_mesh
from jaxformer.training.wandb_log import require_installed

if TYPE_CHECKING:
    from jaxformer.corpus.beam import Beam

logger = logging.getLogger(__name__)
_MANY_EPOCHS = 1000  # above which training warns


class Run(NamedTuple):
    """A config with its tokeniser and model."""

    workdir: Workdir
    config: Config
    tokenizer: AnyTokenizer
    model: Model
    record: Record  # what config.json said when the run was opened
    needs_tag: bool = True  # if the vocabulary has tags: no text was without one
    export: Path | None = None  # folder of an export that translates in the run's place

    def scores(self) -> dict[int, float]:
        """Scores of the evaluations in training, by step; InputError: another run's."""
        by = self.config.training.best_by
        return read_scores(self.workdir.path, self.record.run, by)


@contextlib.contextmanager
def prepare_run(
    workdir: Path,
    request: ConfigRequest,
    pipeline: "Beam | None" = None,
    *,
    is_check: bool = False,
) -> Iterator[tuple[Run, PreparedCorpus]]:
    """Make or open a run's folder, tokeniser and corpus; own the folder in the block.

    The workers of a `pipeline` read the text. A check of the same text, prepared alike,
    leaves the config of a run as it is. Raises InputError, also if another process
    owns it.
    """
    from jaxformer.corpus.preparation import prepare  # which translations do not need

    folder = Workdir(workdir)
    with folder.owned():
        record = folder.recorded()
        config = _resolve(folder, request, record)
        prepared: PreparedCorpus | None = None

        def write() -> None:
            nonlocal prepared
            require_installed(config.training.trackers)
            tokenizer = folder.given_tokenizer(config, record)
            prepared = prepare(
                config.data, folder.path, tokenizer=tokenizer, pipeline=pipeline,
                trained_text=folder.trained_text(record), mirror=folder.mirror,
            )  # fmt: skip
            own, text = config, prepared.report["text"]
            if is_check and record and record.text == text:
                is_alike = record.config.data.fixed() == config.data.fixed()
                own = record.config if is_alike else config
            # With checkpoints, training writes the record when it resumes.
            if not folder.has_checkpoints():
                folder.write_record(own, prepared.tokenizer, text)
            folder.mirror.push(folder.corpus)

        def open_written() -> None:
            nonlocal prepared
            folder.mirror.refresh()
            prepared = folder.open_corpus(record)

        once(write)
        require_one_folder(folder)
        in_others(open_written)
        require_one_run(config, prepared)
        record = folder.read_record()
        yield _make_run(folder, config, prepared.tokenizer, record), prepared


def _resolve(folder: Workdir, request: ConfigRequest, record: Record | None) -> Config:
    """Return the config of a run that is trained or prepared. Raises InputError."""
    config = folder.resolve(request, record)
    config.require_scores()
    config.require_rows()
    if config.training.init_from and not folder.has_checkpoints():
        Workdir(Path(config.training.init_from)).require_same_model(config)
    if config.training.freeze:
        size = config.data.vocab_size
        model = make_model(config.model, vocab_size=size, rematerialise=False)
        params = jax.eval_shape(model.init, jax.random.key(0))
        trainable(params, config.training.freeze)  # refuses unknown names
    return config


def open_run(
    workdir: Path, request: ConfigRequest = RECORDED, dtype: str | None = None
) -> Run:
    """Open the folder of a run, or of an export for CTranslate2.

    Raises InputError if something in it is missing, and if `request` names other paths
    of the text and another text is there. `dtype` replaces `model.dtype`; "auto" is the
    type that is fastest here.
    """
    export = None if (own := folder_of(workdir)) == workdir else workdir
    folder = Workdir(own)
    record = folder.read_record()
    config, tokenizer = folder.resolve(request, record), folder.read_tokenizer(record)
    config.require_scores()
    if export is not None:
        folder.require_same_run(config, record)
        return _make_run(folder, config, tokenizer, record)._replace(export=export)
    if folder.corpus.exists() and config.data.paths != record.config.data.paths:
        from jaxformer.corpus.survey import require_same_text

        require_same_text(config.data, folder.path, folder.open_corpus(record).report)
    if dtype == "auto":
        keep_compiled()
        model = _make_run(folder, config, tokenizer, record).model
        dtype = once(lambda: fastest_dtype(model))
    if dtype is not None:
        model = dataclasses.replace(config.model, dtype=dtype)
        config = dataclasses.replace(config, model=model)
    return _make_run(folder, config, tokenizer, record)


def _make_run(
    folder: Workdir, config: Config, tokenizer: AnyTokenizer, record: Record
) -> Run:
    model = make_model(
        config.model,
        vocab_size=tokenizer.vocab_size,
        source_vocab_size=tokenizer.source_vocab_size,
        rematerialise=config.training.rematerialise,
    )
    data = config.data
    needs_tag = not data.tags or all(part.data.tag for part in data.parts.values())
    tokenizer = tokenizer.for_target(data.only_target_tag)
    return Run(folder, config, tokenizer, model, record, needs_tag)


def plan_training(run: Run, prepared: PreparedCorpus) -> Plan:
    """Plan the batches of the training text, the same for every mesh."""
    data, count = run.config.data, len(prepared.versions)
    if count != data.version_count:
        raise InputError(
            f"{run.workdir.path} has {counted(count, 'version')} of its text instead "
            f"of {data.version_count}, since an earlier jaxformer prepared it; "
            "use another run folder"
        )
    versions = [[side.lengths for side in each] for each in prepared.versions]
    if not data.corpora:
        return _plan(run.config, [(*lengths, None) for lengths in versions])
    bounds, stages = prepared.bounds(), []
    for update in data.stages:
        weights = data.weights(prepared.sizes(), update)
        corpora = [Weighted(*bounds[name], weights[name]) for name in bounds]
        mixed = [(*own, make_mixture(*own, corpora)) for own in versions]
        if not len(mixed[0][2].lengths[0]):
            raise InputError(
                f"an epoch of data.corpora has no pair from update {update} on; raise "
                "a weight"
            )
        stages.append((update, _plan(run.config, mixed)))
    return dataclasses.replace(stages[0][1], later=tuple(stages[1:]))


def largest_shape(model: Model, plan: Plan) -> Shape:
    """The shape of a plan, or of a later one, that takes most memory."""
    plans = [plan, *(later for _, later in plan.later)]
    shapes = [shape for each in plans for shape in each.shapes]
    return max(shapes, key=lambda shape: model.activations(*shape))


def warn_of_plan(run: Run, plan: Plan) -> None:
    """Warn of very many epochs, and of updates that are not as large as asked for."""
    training, multiple = run.config.training, run.config.batches.row_multiple
    update, part = training.tokens_per_update, training.tokens_per_microbatch
    if part > 2 * update:
        raise InputError(
            f"training.tokens_per_microbatch={part} is far more than an update has, "
            f"training.tokens_per_update={update}; lower it"
        )
    if (epochs := plan.epochs(training.steps)) > _MANY_EPOCHS:
        logger.warning(
            "training.steps=%s are %s epochs of this text: a smaller model and fewer "
            "updates suit it, see docs/model_size.md",
            *(f"{number:,.0f}" for number in (training.steps, epochs)),
        )
    longest = max(length for shape in plan.shapes for length in shape[1:])
    wanted, made = (
        max(1, tokens // longest // multiple) * multiple * longest
        for tokens in (training.tokens_per_update, training.tokens_per_microbatch)
    )
    made *= plan.microbatches_per_update
    if abs(made - wanted) > 0.05 * wanted:
        logger.warning(
            "an update of %s has %s positions a side, and not %s as asked for; choose "
            "another training.tokens_per_microbatch",
            counted(plan.microbatches_per_update, "microbatch"), f"{made:,}",
            f"{wanted:,}",
        )  # fmt: skip


def _plan(
    config: Config, versions: list[tuple[np.ndarray, np.ndarray, Mixture | None]]
) -> Plan:
    """Plan a text by the lengths and mixtures of its versions.

    Raises InputError for rows that no model can hold.
    """
    batches, training = config.batches, config.training
    (source, target, mixture), *later = versions
    plan = make_plan(source, target, batches, training, mixture, later)
    config.require_row(max(length for shape in plan.shapes for length in shape[1:]))
    return plan


@progress("reading parameters")
def read_parameters(run: Run, which: str | None) -> Parameters:
    """Read parameters of a run: of a step, "latest", "best" or "average:N".

    None is what the config's `training` section asks for: the moving average if one is
    kept, else the average of the last `average` checkpoints; with `patience`, those of
    the best step. "best" is what was validated: the moving average if one is kept. A
    training of this run may remove checkpoints meanwhile: then they are chosen again.
    Raises InputError for parameters that cannot be read, and for any other word.
    """
    path, training = run.workdir.path, run.config.training
    if run.export is not None:
        raise InputError(
            f"{run.export} is an export, which has no checkpoints; give the run that "
            "it was made from"
        )
    if not run.workdir.checkpoints.exists():
        raise InputError(f"there is no checkpoint in {path}; train it first")
    logger.info("reading parameters of %s", path)
    averages = training.ema_decay is not None and which in (None, "best")
    field = "ema" if averages else "params"
    if which is None:
        which = "latest" if field == "ema" else f"average:{training.average}"
        if training.patience is not None and run.scores():
            which = "best"
    before: list[int] | None = None  # the steps at the last try
    while True:
        checkpoints = run.workdir.open_checkpoints(
            run.record,
            scores=run.scores() if which == "best" else {},
            last=training.steps,
        )
        try:
            return _read_choice(checkpoints, which, field)
        except RemovedError as removed:
            if before == (before := checkpoints.steps()):
                raise
            logger.info("%s", removed)


def _read_choice(checkpoints: Checkpoints, which: str, field: str) -> Parameters:
    match which.split(":"):
        case ["average", number] if _is_count(number) and int(number) > 0:
            return checkpoints.average(int(number), field=field)
        case ["latest"]:
            step = None
        case ["best"]:
            step = checkpoints.best_step()
            if step is None:
                raise InputError(
                    f"no checkpoint in {checkpoints.directory} has a score yet; use "
                    "the checkpoint latest"
                )
            logger.info("using the best checkpoint: step %d", step)
        case [number] if _is_count(number):
            step = int(number)
        case _:
            raise InputError(
                f"the checkpoint {which} is none of: a step, latest, best, average:N"
            )
    return checkpoints.restore_parameters(step, field=field)


def _is_count(word: str) -> bool:
    return word.isdecimal() and len(word) < 20  # Python refuses very long numbers


def keep_compiled(*, in_training: bool = False) -> None:
    """Keep compiled programs, by default in the user's cache folder."""
    # Process 0 alone writes the cache. In training it would then skip compiling, and
    # time out while the other processes compile.
    if not (in_training and jax.process_count() > 1):
        open_cache()


def load_parameters(run: Run, which: str | None) -> Parameters:
    """Copy what `read_parameters` reads to each local device."""
    return copy_to(local_mesh(), read_parameters(run, which))
