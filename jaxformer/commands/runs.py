"""From a config or a workdir to the objects of a run; what the modes have in common."""

import dataclasses
import difflib
import functools
import inspect
import itertools
import logging
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.data.corpus import PreparedCorpus, prepare
from jaxformer.data.plan import Plan, make_plan
from jaxformer.data.sources import CorpusConfig
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.decoding.translate import (
    DecodingConfig,
    Hypothesis,
    Translator,
    Wishes,
)
from jaxformer.errors import InputError
from jaxformer.models import architectures
from jaxformer.models.sequence_model import Model
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import read_scores
from jaxformer.training.loop import TrainingConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import batch_sharding, copy_to, local_mesh, make_mesh
from jaxformer.training.step import Parameters, TrainState, TrainStep, init_state
from jaxformer.workdir import Workdir

logger = logging.getLogger(__name__)

SECTIONS = ("data", "batches", "model", "optimizer", "training", "mesh", "decoding")


class Run(NamedTuple):
    """A config with the tokeniser and the model that go with it."""

    workdir: Workdir
    config: dict
    tokenizer: Tokenizer
    model: Model

    @property
    def training(self) -> TrainingConfig:
        return build(TrainingConfig, self.config, "training")


def build(function: Callable, config: dict, section: str, **others: Any) -> Any:
    """Call `function` with a config section as its keyword arguments.

    `others` are arguments that do not come from the section. Raises InputError for a
    key the function does not know, one that is missing, and a value it refuses.
    """
    require_keys(function, config, section, others)
    try:
        return function(**config[section], **others)
    except (ValueError, TypeError) as error:
        raise InputError(f"config section {section}: {error}") from error


def require_keys(
    function: Callable, config: dict, section: str, others: Collection[str] = ()
) -> None:
    """Raise InputError unless section and `others` are the arguments of `function`."""
    values = config[section]
    wanted = set(inspect.signature(function).parameters).difference(others)
    for key in sorted(values.keys() - wanted):
        near = difflib.get_close_matches(key, wanted, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"the config has an unknown key {section}.{key}{hint}")
    for key in sorted(wanted - values.keys()):
        raise InputError(f"the config lacks the key {section}.{key}")


def require_sections(config: dict) -> None:
    """Raise InputError unless the config has exactly the known sections."""
    for section in config.keys() - set(SECTIONS):
        near = difflib.get_close_matches(section, SECTIONS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"the config has an unknown section {section}{hint}")
    for section in SECTIONS:
        if section not in config:
            raise InputError(f"the config lacks the section {section}")


def require_usable(config: dict) -> None:
    """Raise InputError for what no run can use: before hours of work, and a record.

    How the mesh fits the devices is left to training: text may be prepared elsewhere.
    """
    build(TrainingConfig, config, "training")
    make_model(config, vocab_size=4)
    build(CorpusConfig, config, "data")
    build(make_optimizer, config, "optimizer", d_model=config["model"]["d_model"])
    build(DecodingConfig, config, "decoding")
    require_keys(make_mesh, config, "mesh")
    if "executor" not in config["batches"]:
        raise InputError("the config lacks the key batches.executor")
    one = np.ones(1, np.int32)
    plan_batches(config, source_lengths=one, target_lengths=one)


def requested_config(options: Options) -> dict:
    """The config asked for: the file's, or what the workdir's run recorded.

    Raises InputError if there is neither, or if they describe two different runs. Until
    something has been learnt, a run may still become another one.
    """
    workdir = Workdir(options.workdir)
    config = options.config
    if config is None:
        config = workdir.read_record()["config"]
    require_sections(config)
    if workdir.has_checkpoints() and options.config is not None:
        workdir.require_same_run(config)
    return {**config, "decoding": {**config["decoding"], **options.decoding}}


def make_model(config: dict, vocab_size: int) -> Model:
    """The model that a config describes, for a vocabulary of that size."""
    kind = architectures.config_type(config["model"].get("architecture", ""))
    return architectures.make_model(
        build(kind, config, "model"),
        vocab_size=vocab_size,
        rematerialise=config["training"]["rematerialise"],
    )


def prepare_run(options: Options) -> tuple[Run, PreparedCorpus]:
    """Make or open a run's folder with its tokeniser and tokenised corpus."""
    config = requested_config(options)
    require_usable(config)
    workdir = Workdir(options.workdir)
    workdir.create()
    corpus = build(CorpusConfig, config, "data")
    if processes.is_first():  # one writes, and the others find it ready
        tokenizer = workdir.read_tokenizer() if workdir.has_checkpoints() else None
        prepared = prepare(corpus, workdir.path, learnt_with=tokenizer)
        if not workdir.has_checkpoints():  # training records what it goes on with
            workdir.write_record(config, prepared.tokenizer)
    processes.wait_for_all("prepared")
    if not processes.is_first():
        prepared = prepare(corpus, workdir.path)
    model = make_model(config, prepared.tokenizer.vocab_size)
    return Run(workdir, config, prepared.tokenizer, model), prepared


def open_run(options: Options) -> Run:
    """Open a folder that training has left. Raises InputError if it is not whole."""
    workdir = Workdir(options.workdir)
    workdir.read_record()
    config = requested_config(options)
    tokenizer = workdir.read_tokenizer()
    return Run(workdir, config, tokenizer, make_model(config, tokenizer.vocab_size))


class Learner(NamedTuple):
    """How the parameters of a run come to be, and on which devices."""

    mesh: Mesh
    init: Callable[[], TrainState]  # boxed, see training/sharding.py
    train_step: TrainStep
    schedule: Callable[[int], jax.Array]  # learning rate by updates already made


def make_learner(run: Run) -> Learner:
    """Build what the sections `mesh`, `optimizer` and `training` describe."""
    config, training = run.config, run.training
    mesh = build(make_mesh, config, "mesh")
    optimizer, schedule = build(
        make_optimizer, config, "optimizer", d_model=config["model"]["d_model"]
    )
    init = functools.partial(
        init_state,
        run.model,
        optimizer,
        seed=training.seed,
        ema=training.ema_decay is not None,
    )
    train_step = TrainStep(
        run.model,
        optimizer,
        label_smoothing=training.label_smoothing,
        ema_decay=training.ema_decay,
        max_bad_steps=training.max_bad_steps,
    )
    return Learner(mesh, init, train_step, schedule)


def make_run_plan(run: Run, prepared: PreparedCorpus) -> Plan:
    """Plan the batches of a run's training text."""
    return plan_batches(
        run.config,
        source_lengths=prepared.train.source.lengths,
        target_lengths=prepared.train.target.lengths,
    )


def plan_batches(config: dict, **corpus: Any) -> Plan:
    """Plan batches by the section `batches`; `corpus` as `make_plan` takes it.

    Whatever the mesh: a run keeps its batches when it moves to other devices.
    """
    training = build(TrainingConfig, config, "training")
    batches = {k: v for k, v in config["batches"].items() if k != "executor"}
    return build(
        make_plan,
        {"batches": batches},
        "batches",
        tokens_per_microbatch=training.tokens_per_microbatch,
        tokens_per_update=training.tokens_per_update,
        **corpus,
    )


def read_parameters(run: Run, which: str | None) -> Parameters:
    """Parameters of a run: of a step, "latest", "best" or "average:N".

    By default those that the config's `training` section asks for: the moving average
    if one is kept, else the average of the last `average` checkpoints. Raises
    InputError for what cannot be read and what is none of these.
    """
    if not Path(run.workdir.checkpoints).exists():
        raise InputError(
            f"there is no checkpoint in {run.workdir.path}; train first, with "
            f"--config=... --workdir={run.workdir.path}"
        )
    field = "params"
    if which is None:
        field = "params" if run.training.ema_decay is None else "ema"
        which = "latest" if field == "ema" else f"average:{run.training.average}"
    kind, _, number = which.partition(":")
    scores = processes.from_first(list(read_scores(run.workdir.path).items()))
    with Checkpoints(
        run.workdir.checkpoints, keep=None, scores=dict(map(tuple, scores))
    ) as checkpoints:
        if kind == "average" and number.isdecimal() and int(number) > 0:
            params = checkpoints.average(int(number), field=field)
        elif which == "latest":
            params = checkpoints.restore_parameters(None, field=field)
        elif which == "best":
            step = checkpoints.best_step()
            if step is None:
                raise InputError(
                    "no checkpoint has a score to be the best; use --checkpoint=latest"
                )
            params = checkpoints.restore_parameters(step, field=field)
        elif which.isdecimal():
            params = checkpoints.restore_parameters(int(which), field=field)
        else:
            raise InputError(
                f"--checkpoint={which} is none of: a step, latest, best, average:N"
            )
    return params


def local_parameters(run: Run, which: str | None) -> tuple[Mesh, Parameters]:
    """`read_parameters` on each device of this process, and the mesh of those."""
    mesh = local_mesh()
    return mesh, copy_to(mesh, read_parameters(run, which))


def make_wishes(run: Run, options: Options) -> Wishes:
    """What the flags ask of a translator besides the config."""
    return Wishes(
        **{
            "search": options.search,
            "max_source_length": run.config["data"]["max_length"],
            **options.wishes,
        }
    )


def keep_compiled() -> None:
    """Let compiled programs outlive the process, so that the next one starts at once.

    They go where JAX_COMPILATION_CACHE_DIR says, else to the user's cache folder.
    """
    if jax.config.jax_compilation_cache_dir:
        return
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(caches) / "jaxformer"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # there is no such place; then nothing is kept
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def open_translator(options: Options) -> tuple[Run, Translator]:
    """A run, and the translator that the flags ask for, on the local devices."""
    keep_compiled()
    run = open_run(options)
    mesh, params = local_parameters(run, options.checkpoint)
    others = []
    for folder in (options.ensemble or "").split(","):
        if folder.strip():
            other = open_run(dataclasses.replace(options, workdir=Path(folder.strip())))
            others.append((other, local_parameters(other, options.checkpoint)[1]))
    return run, make_translator(run, mesh, params, make_wishes(run, options), others)


def make_translator(
    run: Run,
    mesh: Mesh,
    params: Parameters,
    wishes: Wishes | None = None,
    others: Sequence[tuple[Run, Parameters]] = (),
) -> Translator:
    """Wrap parameters on a local mesh as a translator, by the section `decoding`.

    `others` vote with it; they must share its tokeniser. Raises InputError if not.
    """
    for other, _ in others:
        if other.tokenizer.hash != run.tokenizer.hash:
            raise InputError(
                f"{other.workdir.path} has another tokeniser than {run.workdir.path}; "
                "an ensemble needs runs that share one"
            )
    return Translator(
        [run.model, *(other.model for other, _ in others)],
        [params, *(theirs for _, theirs in others)],
        run.tokenizer,
        config=build(DecodingConfig, run.config, "decoding"),
        rows=batch_sharding(mesh),
        wishes=wishes,
    )


def translate(
    translator: Translator,
    sentences: Sequence[str],
    heed: Callable[[], None] = lambda: None,
    **details: Any,
) -> list[list[Hypothesis]]:
    """Translate sentences, each process its share; all of them get all hypotheses.

    `heed` is called now and then, equally often in all processes; `details` are
    further arguments of `Translator.translate_part`.
    """
    part = (processes.index(), processes.count())
    own = translator.translate_part(sentences, part, heed, **details)
    found: list[list[Hypothesis]] = [[] for _ in sentences]
    for index, hypotheses in itertools.chain.from_iterable(processes.gather(own)):
        found[index] = [Hypothesis(*hypothesis) for hypothesis in hypotheses]
    return found


def texts(found: Sequence[Sequence[Hypothesis]]) -> list[str]:
    """The best translation of each sentence."""
    return [hypotheses[0].text for hypotheses in found]
