"""The objects that train and evaluate a run."""

from collections.abc import Iterator
from functools import partial

from jaxformer.corpus.pipeline import updates
from jaxformer.corpus.prepared import PreparedCorpus
from jaxformer.runs.open import make_dev_evaluators
from jaxformer.runs.run import Run, plan_training, warn_of_update_size
from jaxformer.system.progress import COMPILES
from jaxformer.system.stopping import StopRequests
from jaxformer.training import sharding
from jaxformer.training.loop import Update
from jaxformer.training.setup import make_training_setup
from jaxformer.training.step import Report, TrainState


class Job:
    """The objects that train and evaluate a run, except its state."""

    def __init__(self, run: Run, prepared: PreparedCorpus, stop: StopRequests) -> None:
        self.run, self.prepared, self.stop = run, prepared, stop
        self.setup = make_training_setup(run.config, run.model)
        self.plan = plan_training(run, prepared)
        warn_of_update_size(run, self.plan)
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
