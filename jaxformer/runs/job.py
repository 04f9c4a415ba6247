"""The objects that train and evaluate a run."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

from jaxformer.corpus.pipeline import updates
from jaxformer.corpus.prepared import PreparedCorpus
from jaxformer.decoding.options import TranslateOptions, TranslateRequest
from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.evaluator import Evaluator
from jaxformer.runs.open import make_translator
from jaxformer.runs.run import Run, plan_training, warn_of_plan
from jaxformer.system.progress import COMPILES
from jaxformer.system.stopping import StopRequests
from jaxformer.text.sources import Text
from jaxformer.training import sharding
from jaxformer.training.loop import Update
from jaxformer.training.setup import make_training_setup
from jaxformer.training.step import Parameters, Report, TrainState


class Job:
    """The objects that train and evaluate a run, except its state."""

    def __init__(self, run: Run, prepared: PreparedCorpus, stop: StopRequests) -> None:
        self.run, self.prepared, self.stop = run, prepared, stop
        self.setup = make_training_setup(run.config, run.model)
        self.plan = plan_training(run, prepared)
        warn_of_plan(run, self.plan)
        if self.plan.microbatches_per_update == 1:
            COMPILES.wanted["the training step"] = len(self.plan.shapes)
        self.evaluators = make_dev_evaluators(run, prepared, stop.check)

    def updates(self, start: int) -> Iterator[Update]:
        """The batches from data position `start` on, placed on the mesh."""
        mesh, config = self.setup.mesh, self.run.config
        batches = updates(
            self.prepared.versions,
            self.plan,
            seed=config.training.seed,
            start=start,
            executor=config.batches.executor,
            rows=sharding.rows_here(mesh),
        )
        put = partial(sharding.put_batch, mesh)
        return (tuple(map(put, update)) for update in batches)

    def train_step(
        self, state: TrainState, update: Update
    ) -> tuple[TrainState, Report]:
        """Make an update, which a stop must save from then on."""
        made = self.setup.train_step(state, update)
        self.stop.all_saved = False
        return made


def make_dev_evaluators(
    run: Run, prepared: PreparedCorpus, check_stop: Callable[[], None]
) -> dict[str, Evaluator]:
    """Make the evaluators of the validation texts by name.

    Those to one language share a translator.
    """
    evaluators: dict[str, Evaluator] = {}

    def translator(options: TranslateOptions, params: Parameters) -> Translator:
        made = (each.translator for each in evaluators.values())
        alike = (each for each in made if each and each.options == options)
        return next(alike, None) or make_translator(run, params, options)

    for name, dev in prepared.dev.items():
        data = run.config.data.dev_texts[name]
        tag = {"target_tag": data.target_tag}
        make = partial(translator, TranslateRequest(tag).resolve(run.config))
        evaluators[name] = Evaluator(
            run.model,
            dataclasses.replace(run.config, data=data),
            Text(dev.source, dev.target),
            dev.pairs,
            make,
            check_stop,
            is_tagged=bool(data.target_tag),
        )
    return evaluators
