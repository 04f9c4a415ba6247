"""--mode=train: prepare what is missing, then train or resume.

SIGTERM and Ctrl-C end it early, with the step saved.
"""

from pathlib import Path
from typing import Any

from jaxformer import processes
from jaxformer.config_files import ConfigRequest
from jaxformer.run import keep_compiled, prepare_run
from jaxformer.stops import StoppedError, stop_requests
from jaxformer.trainer import Job, train_past_divergence
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.workdir import Workdir


def run(*, config: ConfigRequest, workdir: Path, **labels: Any) -> dict:
    """Train; returns the final validation scores and the speed.

    A run that was asked to stop returns `labels`, its step and "stopped".
    """

    def saved_step() -> int:
        folder = Workdir(workdir).checkpoints
        return Checkpoints(folder, keep=None, scores={}).latest_step() or 0

    if not processes.are_several():
        # If only process 0 used the cache, it would skip compiling and time out while
        # the other processes compile.
        keep_compiled()
    with stop_requests(saved_step, **labels) as stop:
        try:
            with prepare_run(workdir, config) as (this, prepared):
                return train_past_divergence(Job(this, prepared, stop))
        except StoppedError:
            return stop.result(saved_step())
